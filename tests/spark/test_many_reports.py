"""Many queries report to the thread of one job, on real storage; only they are not real.

Half of the stages read a source and write a channel, half read a channel. Their micro-batches are a
clock's: each commits what a real one commits to a channel's log, and posts what a real one posts.
Every checkpoint overtakes: what is in flight is found in those logs when it completes.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from chain import wait
from channel_logs import Channel, at
from diamond import to_group
from pyspark.sql import DataFrame, SparkSession
from reading import completed, stage_of
from session import settings

import absflow
from absflow.protocol.checkpoints import StageReport
from absflow.protocol.coordinator.messages import HistoryFound, StageReported
from absflow.protocol.restarts import Restarts
from absflow.spark.batch.listener import BatchDone, batch_done
from absflow.spark.control import loop
from absflow.spark.control.progress import RetentionProgress, StageProgress
from absflow.spark.start import attempt
from absflow.storage.files import Files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

BATCH_EVERY_S = 0.5
BACKLOG = 20  # commits in front of a barrier that the second stage of a pair has not read
PATIENCE_S = 240
STATE = "n long"
OUTPUT = "id long, g long, v long"
# What one commit of the job's thread asks the storage for: the fence, and the log behind it.
CALLS_PER_FACT = 12


class Reports:
    """What the queries of a run have in common: its checkpoints, and when they end."""

    def __init__(self) -> None:
        self.pending: Callable[[], Sequence[int]] = tuple
        self.over = threading.Event()
        self.channels: dict[str, Log] = {}


class Log(Channel):
    """A channel's log in files, and how many there are up to the newest barrier."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.kept, self.barrier = folder, 0, 0
        folder.mkdir(parents=True, exist_ok=True)
        self.keep()

    def keep(self) -> None:
        """Put into files what is not there yet."""
        for path, text in list(self.files.items())[self.kept :]:
            aside = self.folder / ".aside"
            aside.write_text(text)
            aside.rename(self.folder / Path(path).name)
        self.kept = len(self.files)


class Query:
    """A chain of one stage that does nothing but report, twice a second."""

    reports: Reports

    def __init__(
        self, root: Any, job: Any, prepared: Any, chain: Sequence[str], *, post: Any, **rest: Any
    ) -> None:
        self.names, self.title = list(chain), chain[0]
        self.first = job.graph.stages[chain[0]]
        self.query, self.run_id, self.started_ms = None, "", 0
        self.restarts, self.restart_at_ms = Restarts(), None
        self.progress, self.silent, self.seen = StageProgress(), True, None
        self.post = post
        (given,) = self.first.inputs
        name = self.first.name if given.root else given.name
        folder = Path(prepared.layout.channel(name, prepared.attempt).removeprefix("file:"))
        self.channel = self.reports.channels.setdefault(name, Log(folder / "_delta_log"))
        self.input = given
        self.thread = threading.Thread(target=self.run, daemon=True)

    def time_progress(self, _stage: str) -> StageProgress:
        return self.progress

    def start(self) -> None:
        self.run_id = uuid.uuid4().hex
        self.thread.start()

    def run(self) -> None:
        batch, snapshot = 0, 0
        while not self.reports.over.wait(BATCH_EVERY_S):
            fresh = [n for n in self.reports.pending() if n > snapshot]
            if self.input.root:
                self.channel.rows(batch, snapshot + 1)
            for n in fresh:
                snapshot = n
                if self.input.root:
                    self.channel.control(batch, f"barrier {n}")
                    self.channel.keep()
                    self.channel.barrier = self.channel.kept
                self.post(StageReported(self.report(n, batch)))
                self.post(HistoryFound(n, self.first.name))
            if self.input.root:
                self.channel.keep()
            self.post(batch_done(self.done(batch)))
            batch += 1

    def position(self) -> str:
        return at(max(self.channel.barrier - BACKLOG, 0), -1)

    def report(self, checkpoint_id: int, batch: int) -> StageReport:
        place = {self.input.name: "-" if self.input.root else self.position()}
        return StageReport(
            self.first.name,
            checkpoint_id,
            batch,
            positions=place if self.input.root else {},
            in_flight={} if self.input.root else place,
        )

    def done(self, batch: int) -> dict[str, Any]:
        end = None if self.input.root else json.loads(self.position())
        source = {"startOffset": None, "endOffset": end, "latestOffset": None, "numInputRows": 10}
        return {
            "runId": self.run_id,
            "batchId": batch,
            "timestamp": "2026-01-01T00:00:00.000Z",
            "durationMs": {"latestOffset": 1, "addBatch": 3, "triggerExecution": 5},
            "sources": [source],
        }

    def death(self) -> None:
        return None

    def last_progress(self) -> None:
        return None

    def rows_of(self, batch: BatchDone) -> int:
        return sum(batch.rows)

    def stop(self) -> None:
        self.reports.over.set()

    def close(self) -> None:
        if self.thread.is_alive():
            self.thread.join()


class NoRetention:
    """Deletes nothing."""

    progress = RetentionProgress()

    def __init__(self, *given: object) -> None:
        """It has nothing to begin with."""

    def start(self, *given: object) -> None:
        """Nothing stands."""

    def wake(self, *given: object) -> None:
        """It sleeps on."""

    def close(self) -> None:
        """It has not begun."""


def job_of(spark: SparkSession, pairs: int) -> absflow.Job:
    """Stages in pairs."""
    job = absflow.Job("many", spark)
    rows = spark.readStream.format("rate").load()
    for number in range(pairs):
        frame = rows.selectExpr("value AS id", "'k' AS k", "value AS v")
        source = job.source(f"source_{number}", frame)
        shape = {"state": STATE, "output": OUTPUT, "process": to_group}
        first = job.stage(f"first_{number}", source, key="k", **shape)
        last = job.stage(f"last_{number}", first, key="g", **shape)
        job.sink(f"sink_{number}", last, absflow.ForeachBatchSink(_ignore))
    return job


def _ignore(rows: DataFrame, made: absflow.SinkWrite) -> None:
    """A sink that is never called."""


def _counting(real: Any, counted: Counter[str]) -> Any:
    def call(self: Files, *given: Any) -> Any:
        counted[threading.current_thread().name] += 1
        return real(self, *given)

    return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each thread has asked the storage for something, by its name."""
    counted: Counter[str] = Counter()
    for name in ("read", "exists", "names", "write"):
        monkeypatch.setattr(Files, name, _counting(getattr(Files, name), counted))
    yield counted


@pytest.mark.parametrize("pairs", [10, pytest.param(50, marks=pytest.mark.soak)])
def test_b_the_thread_of_a_job_keeps_pace_with_its_stages(
    spark: SparkSession,
    tmp_path: Path,
    pairs: int,
    monkeypatch: pytest.MonkeyPatch,
    calls: Counter[str],
    record_property: Callable[[str, object], None],
) -> None:
    """It asks the storage for nothing but its own facts, however many events come, and keeps up.

    Checkpoints complete at the pace of their facts, with the rows in flight of every channel.
    """
    reports = Reports()
    monkeypatch.setattr(Query, "reports", reports, raising=False)
    monkeypatch.setattr(loop, "ChainQuery", Query)
    monkeypatch.setattr(loop, "Retention", NoRetention)
    monkeypatch.setattr(attempt, "_create_tables", lambda *given: None)
    conf = {"storage.path": str(tmp_path / "job"), "checkpoint.interval": "1s", "edges": "channel"}
    with settings(spark, {**conf, "checkpoint.mode": "unaligned"}):
        run = job_of(spark, pairs).start()
    coordinator = run._loop._coordinator
    reports.pending = lambda: sorted(coordinator.state.pending)
    before = calls["absflow-many"]
    wait(lambda: coordinator.completed_count >= 5, run, PATIENCE_S)
    wait(lambda: run._loop._events.qsize() < pairs, run, PATIENCE_S)
    load = run.progress().thread
    asked = calls["absflow-many"] - before
    run.stop()
    rows = completed(spark, tmp_path / "job")
    events = sum(times.count for kind, times in load.events.items() if kind != "clock")
    facts = 3 * coordinator.state.next_id  # of a checkpoint: trigger, overtake, completion
    for kind, times in sorted(load.events.items()):
        record_property(kind, str(times))
        print(f"{kind}: {times.count} in {times.total_ms:.0f} ms, longest {times.longest_ms:.1f}")
    print(
        f"busy {load.busy:.2f}, most waiting {load.most_waiting}, {asked} calls, {len(rows)} done"
    )
    assert asked <= CALLS_PER_FACT * facts < events
    for row in rows[-2:]:
        for number in range(pairs):
            (state,) = stage_of(row, f"last_{number}")["in_flight"]
            assert state["rows"] > 0
