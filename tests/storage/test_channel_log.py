"""What a reader has not read, found in the log of the channel alone."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
from channel_logs import Channel, at

from absflow.errors import StorageError
from absflow.protocol.load import Backlog
from absflow.storage.channel_log import ChannelTail
from absflow.storage.delta.log import DeltaPosition

NOW = 100_000


@pytest.fixture
def channel() -> Channel:
    """Versions 1 to 4: two files, a barrier, three files, one file; 0 creates the table."""
    channel = Channel()
    channel.rows(0, 1, 1)
    channel.control(0, "barrier 1")
    channel.rows(1, 2, 2, 2)
    channel.rows(2, 2)
    return channel


def tail(channel: Channel, version: int = 0) -> ChannelTail:
    made = ChannelTail(channel.files.get, "c", version)
    made.advance()
    return made


def position(version: int, index: int) -> DeltaPosition:
    return DeltaPosition.parse(at(version, index))


@pytest.mark.parametrize(
    ("place", "commits", "files", "oldest"),
    [
        (None, 3, 6, 1),
        (position(0, -100), 3, 6, 1),
        (position(1, -1), 3, 6, 1),
        (position(1, 0), 3, 5, 1),
        (position(1, 1), 2, 4, 3),
        (position(2, 0), 2, 4, 3),
        (position(3, 1), 2, 2, 3),
        (position(3, 2), 1, 1, 4),
        (position(3, 2**60), 1, 1, 4),
        (position(4, -1), 1, 1, 4),
    ],
)
def test_what_is_behind_a_position(
    channel: Channel, place: DeltaPosition | None, commits: int, files: int, oldest: int
) -> None:
    """Commits, rows and bytes, and the age of the oldest commit that is not read to its end."""
    age = NOW - 1000 * oldest
    due = Backlog("s", commits, 10 * files, 100 * files, age)
    assert tail(channel).backlog("s", place, NOW) == due


@pytest.mark.parametrize("place", [position(4, 0), position(5, -1)])
def test_a_reader_that_has_read_all(channel: Channel, place: DeltaPosition) -> None:
    """Nothing is unread, and nothing is old."""
    assert tail(channel).backlog("s", place, NOW) == Backlog("s")


def test_what_comes_later_is_seen(channel: Channel) -> None:
    """A commit is read once, when somebody asks for it."""
    followed = tail(channel)
    channel.rows(3, 2)
    assert followed.backlog("s", position(4, 0), NOW) == Backlog("s")
    followed.advance()
    assert followed.backlog("s", position(4, 0), NOW) == Backlog("s", 1, 10, 100, NOW - 5_000)
    channel.files = {}
    assert followed.backlog("s", position(3, 2), NOW).rows == 20


def test_a_clock_that_was_set_back_gives_no_negative_age(channel: Channel) -> None:
    """Another machine's clock made the commit."""
    assert tail(channel).backlog("s", None, 500).age_ms == 0


def test_a_log_that_does_not_count_its_rows(channel: Channel) -> None:
    """Is no backlog of nothing."""
    text = channel.files["c/_delta_log/00000000000000000003.json"]
    channel.files["c/_delta_log/00000000000000000003.json"] = text.replace('"stats"', '"other"')
    with pytest.raises(StorageError, match=r"spark\.databricks\.delta\.stats\.collect"):
        tail(channel)


@pytest.mark.parametrize("seed", range(50))
def test_commits_that_others_have_read_are_forgotten(seed: int) -> None:
    """Two readers at their own pace: each gets what it has not read, and little stays."""
    draw = random.Random(seed)
    channel = Channel()
    sizes = [0]
    followed = tail(channel)
    readers = [(0, -1), (0, -1)]
    for batch in range(40):
        sizes.append(draw.randint(1, 3))
        channel.rows(batch, *[1] * sizes[-1])
        followed.advance()
        for number, (version, _) in enumerate(readers):
            if draw.random() < 0.8:
                read = draw.randint(version, len(sizes) - 1)
                readers[number] = (read, sizes[read] - 1)
        followed.forget(min(version for version, _ in readers))
        ends = list(accumulate(sizes))
        for version, index in readers:
            unread = ends[-1] - ends[version]
            backlog = followed.backlog("s", position(version, index), NOW)
            assert (backlog.rows, backlog.commits) == (10 * unread, len(sizes) - 1 - version)
    assert len(followed._commits) <= len(sizes) - min(version for version, _ in readers)


def test_what_every_reader_has_read_may_be_gone_from_the_log(channel: Channel) -> None:
    """A tail that nobody has asked for long goes on where the slowest reader is."""
    followed = ChannelTail(channel.files.get, "c", 0)
    followed.forget(3)
    for version in range(3):
        del channel.files[f"c/_delta_log/{version:020d}.json"]
    followed.advance()
    assert followed.backlog("s", position(3, 2), NOW).rows == 10
