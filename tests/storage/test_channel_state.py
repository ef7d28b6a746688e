"""What a checkpoint has overtaken, found in the log of the channel alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import channel_logs
import pytest
from channel_logs import at

from absflow.columnar.pages import SEQ_BITS
from absflow.errors import StorageError
from absflow.protocol.checkpoints import ChannelState
from absflow.storage.channel_state import channel_state


class Channel(channel_logs.Channel):
    """One whose rows in flight can be asked for."""

    def state(self, version: int, index: int, checkpoint_id: int) -> ChannelState | None:
        """The channel state behind a position."""
        return self.of(at(version, index), checkpoint_id)

    def of(self, position: str, checkpoint_id: int) -> ChannelState | None:
        read = self.files.get
        return channel_state(read, "c", "reader", "s", 4, position, checkpoint_id)


def due(state: ChannelState | None) -> ChannelState:
    assert state is not None
    return state


@pytest.fixture
def channel() -> Channel:
    """Versions 1 to 7: rows, barrier 1, rows of two epochs, barriers 2 and 3, rows, the end."""
    channel = Channel()
    channel.rows(0, 1, 1)
    channel.rows(1, 1)
    channel.control(1, "barrier 1")
    channel.rows(2, 2, 3, 2)
    channel.control(2, "barrier 2, barrier 3")
    channel.rows(3, 4)
    channel.control(3, "end 4")
    return channel


def test_all_behind_the_position_and_before_the_barrier(channel: Channel) -> None:
    """A reader that had come to the second batch has its rows in flight, and no later ones."""
    state = due(channel.state(2, -1, 1))
    assert (state.stage, state.input, state.attempt) == ("reader", "s", 4)
    assert (state.rows, state.bytes, state.epoch) == (10, 100, 1)
    assert (state.from_seq, state.files) == (1 << SEQ_BITS, ())


@pytest.mark.parametrize("position", ["-", at(0, -100)])
def test_a_reader_that_has_read_nothing(channel: Channel, position: str) -> None:
    """The first batch is number 0, and in flight like any other."""
    state = due(channel.of(position, 1))
    assert (state.rows, state.from_seq, state.files) == (30, 0, ())


def test_a_reader_in_the_middle_of_a_commit(channel: Channel) -> None:
    """The unread files of that commit are named, but for those behind the barrier."""
    state = due(channel.state(4, 0, 2))
    assert (state.rows, state.epoch, state.files) == (10, 2, ("_epoch=2/2-2",))
    assert state.from_seq == 3 << SEQ_BITS
    state = due(channel.state(4, 0, 3))
    assert state.files == ("_epoch=3/2-1", "_epoch=2/2-2")


def test_rows_behind_the_barrier_are_not_in_flight(channel: Channel) -> None:
    """Rows of epoch 3 that came before barrier 2 belong to checkpoint 3."""
    behind_barrier_1 = due(channel.state(4, -1, 2))
    assert (behind_barrier_1.rows, behind_barrier_1.epoch) == (20, 2)
    assert channel.state(4, 2, 3) is None
    assert channel.state(3, -1, 1) is None


def test_an_end_is_as_good_as_a_barrier(channel: Channel) -> None:
    """A sender that has ended brings no barrier."""
    state = due(channel.state(5, -1, 9))
    assert (state.rows, state.epoch) == (10, 4)


def test_a_position_in_a_commit_of_barriers(channel: Channel) -> None:
    """Its file has been read; all rows behind it are in flight."""
    assert channel.state(3, 0, 2) == replace(due(channel.state(4, -1, 2)), position=at(3, 0))


def test_without_statistics_nothing_can_be_counted(channel: Channel) -> None:
    text = channel.files["c/_delta_log/00000000000000000002.json"]
    channel.files["c/_delta_log/00000000000000000002.json"] = text.replace('"stats"', '"other"')
    with pytest.raises(StorageError, match=r"spark\.databricks\.delta\.stats\.collect"):
        channel.state(1, -1, 1)


def test_a_log_that_ends_before_the_barrier_is_not_whole(channel: Channel) -> None:
    del channel.files["c/_delta_log/00000000000000000005.json"]
    with pytest.raises(StorageError, match="ends with version 4, before barrier 2"):
        channel.state(2, -1, 2)


# Version, batch and epochs of each commit of rows; a commit without rows has no file to stop at.
LOG = ((1, 0, (1, 1)), (2, 1, (1,)), (4, 2, (2, 3, 2)), (6, 3, (4,)))
PLACES = [*product(range(8), [-1]), *((at, i) for at, _, files in LOG for i in range(len(files)))]


@pytest.mark.parametrize(("version", "index"), PLACES)
@pytest.mark.parametrize("checkpoint_id", [1, 2, 3])
def test_a_reference_selects_the_rows_that_were_not_read(
    channel: Channel, version: int, index: int, checkpoint_id: int
) -> None:
    """From any position, for any checkpoint: those before the barrier, and no other."""
    state = channel.state(version, index, checkpoint_id)
    due, selected = set(), set()
    for place, batch, epochs in LOG:
        for number, epoch in enumerate(epochs):
            if epoch > checkpoint_id:
                continue
            path = f"_epoch={epoch}/{batch}-{number}"
            if (place, number) > (version, index):
                due.add(path)
            if state and (batch << SEQ_BITS >= state.from_seq or path in state.files):
                selected.add(path)
    assert selected == due
    assert (state.rows if state else 0) == 10 * len(due)
