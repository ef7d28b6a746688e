"""A stage waits for its consumers, and for nothing longer than it must."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from channel_logs import Channel, at

from absflow.columnar.spec import InputSpec, StageSpec
from absflow.errors import StorageError
from absflow.protocol.load import Backlog
from absflow.spark.batch.backpressure import Backpressure
from absflow.spark.batch.listener import BatchDone
from absflow.storage.layout import Layout

LONG_S = 10


class Files:
    """The files of a job of one producer and two consumers, in memory."""

    def __init__(self) -> None:
        self.channel = Channel()
        self.offsets: dict[str, str] = {}
        self.broken = False

    def read(self, path: str) -> str | None:
        if self.broken:
            raise StorageError("no storage")
        if path in self.offsets:
            return self.offsets[path]
        return self.channel.files.get(path.replace("/job/channels/from/attempt=1", "c"))

    def names(self, path: str) -> list[str]:
        """Of Spark's commits: a stage that has offsets has committed their batch."""
        folder = path.removesuffix("commits") + "offsets/"
        return [name.removeprefix(folder) for name in self.offsets if name.startswith(folder)]


def stage(name: str, *inputs: str) -> StageSpec:
    empty = pa.schema([])
    given = tuple(InputSpec(i, empty, root=i == "source") for i in inputs)
    return StageSpec(name, given, empty, empty, empty, {}, key_groups=1)


STAGES = {
    s.name: s for s in (stage("from", "source"), stage("a", "source", "from"), stage("b", "from"))
}


def done(*ends: str | None, start_ms: int = 0, end_ms: int = 0) -> BatchDone:
    return BatchDone("", 0, (0,), start_ms, end_ms, ends, ())


class Job:
    """Backpressure with a clock to set, a bound of 150 bytes by default."""

    def __init__(self, files: Files, bound: int | None = 150) -> None:
        self.now = 0
        layout = Layout("/job")
        self.given = Backpressure(files, layout, 1, STAGES, bound, *[lambda: self.now] * 2)  # type: ignore[arg-type]

    def begins(self, snapshot: int = 0) -> threading.Thread:
        """The producer begins a batch, in a thread that ends when it need not wait any more."""
        thread = threading.Thread(target=self.given.wait, args=("from", 0, snapshot), daemon=True)
        thread.start()
        thread.join(0.05)
        return thread


@pytest.fixture
def files() -> Iterator[Files]:
    files = Files()
    files.channel.rows(0, 1, 1)
    files.channel.rows(1, 1, 1)
    return files


def goes_on(thread: threading.Thread) -> bool:
    thread.join(LONG_S)
    return not thread.is_alive()


def test_it_waits_for_the_slowest_consumer(files: Files) -> None:
    """Until that has no more unread than it may have."""
    job = Job(files)
    thread = job.begins()
    job.given.done("a", done(None, at(2, 1)))
    assert thread.is_alive()
    job.given.done("b", done(at(1, 1)))
    assert thread.is_alive()
    job.given.done("b", done(at(2, 0)))
    assert goes_on(thread)


def test_what_was_read_before_the_start_is_not_unread(files: Files) -> None:
    """The readers' newest committed batches say so; one without a batch has read nothing."""
    work = "/job/work/attempt=1"
    files.offsets[f"{work}/a/spark/offsets/7"] = "\n".join(["v1", "{}", "-", at(1, 1)])
    files.offsets[f"{work}/a/spark/offsets/12"] = "\n".join(["v1", "{}", "-", at(2, 1)])
    job = Job(files)
    assert job.given.load("a").backlogs == (Backlog("from"),)
    (unread,) = job.given.load("b").backlogs or ()
    assert (unread.commits, unread.rows, unread.bytes) == (2, 40, 400)
    files.offsets[f"{work}/b/spark/offsets/3"] = "\n".join(["v1", "{}", at(2, 0)])
    assert goes_on(Job(files).begins())


def test_a_pending_checkpoint_is_not_held_up(files: Files) -> None:
    """Until the stage has snapshotted it; one that ends lets it wait again."""
    job = Job(files)
    thread = job.begins(snapshot=3)
    job.given.pending(3)
    thread.join(0.05)
    assert thread.is_alive()
    job.given.pending(4)
    assert goes_on(thread)
    assert goes_on(job.begins(snapshot=3))
    thread = job.begins(snapshot=4)
    assert thread.is_alive()
    job.given.pending(0)
    thread.join(0.05)
    assert thread.is_alive()
    job.given.stop()
    assert goes_on(thread)


def test_nobody_waits_without_a_bound(files: Files) -> None:
    """Nor does a stage without consumers."""
    assert goes_on(Job(files, bound=None).begins())
    job = Job(files)
    job.given.wait("a", 0, 0)


def test_it_says_so_once_a_minute(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    """Whom it waits for, how far that is behind, and the setting."""
    caplog.set_level(logging.WARNING)
    job = Job(files)
    for now in (5_000, 10_000, 65_000):
        job.now = now
        thread = job.begins()
        job.given.pending(1)
        assert goes_on(thread)
        job.given.pending(0)
    lines = [record.message for record in caplog.records]
    assert len(lines) == 2
    assert "stage from waits for stage a, which has 40 rows (400 bytes)" in lines[0]
    assert "oldest for 4.0 s; spark.absflow.channel.max-backlog is 150 bytes" in lines[0]


def test_the_load_of_a_stage(files: Files) -> None:
    """Shares of the time so far, and a backlog for each channel that it reads."""
    job = Job(files, bound=None)
    job.given.wait("b", 0, 0)
    job.now = 4_000
    job.given.done("b", done(at(1, 1), start_ms=0, end_ms=1_000))
    load = job.given.load("b")
    assert (load.busy, load.backpressured) == (0.25, 0)
    assert load.backlogs == (Backlog("from", 1, 20, 200, 2_000),)
    assert job.given.load("from").backlogs == ()


def test_time_that_a_stage_waits_is_not_busy(files: Files) -> None:
    """But backpressured, also while it lasts; and none of it is when its query is dead."""
    job = Job(files)
    thread = job.begins()
    job.now = 3_000
    assert (job.given.load("from").busy, job.given.load("from").backpressured) == (0, 1)
    job.given.stop()
    assert goes_on(thread)
    job.given.died("from")
    job.now = 6_000
    assert (job.given.load("from").busy, job.given.load("from").backpressured) == (0, 0.5)


def test_a_log_that_cannot_be_read_is_not_a_backlog_of_nothing(files: Files) -> None:
    """Who asks learns that it is not known; a stage that must know fails, and tries again."""
    job = Job(files)
    files.broken = True
    assert job.given.load("a").backlogs is None
    with pytest.raises(StorageError):
        job.given.wait("from", 0, 0)
    files.broken = False
    assert job.given.load("a").backlogs is not None
