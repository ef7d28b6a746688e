"""An executor is killed in the middle of a checkpoint, on a cluster of several processes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from chain import check, expected
from cluster import HERE, Cluster, Worker, python_path, standalone
from deltalake import DeltaTable
from diamond import source_files
from processes import bury, tail
from pyspark.sql import SparkSession
from reading import assert_same_rows, facts, files_read, state_at

from absflow.facts.records import millis

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(400)]

FIRST, FILES = 4, 7  # files before the kills, and in all
PATIENCE_S = 120
FAST = {"spark.absflow.checkpoint.interval": "100ms"}
Found = TypeVar("Found")


@dataclass(frozen=True)
class Kill:
    """A kill, and what was to be seen before it."""

    checkpoint: int
    before_ms: int
    after_ms: int
    killed: list[str]


class Driver:
    """The chain job as an application of the cluster."""

    def __init__(self, root: Path, cluster: Cluster, process: subprocess.Popen[bytes]) -> None:
        self.root = root
        self.cluster = cluster
        self.process = process

    def rows(self, table: str, *columns: str, **equal: str) -> list[dict[str, Any]]:
        """Rows of a table of the job, read while it runs."""
        path = str(self.root / "job" / table)
        if not DeltaTable.is_deltatable(path):
            return []
        read = DeltaTable(path).to_pyarrow_table(columns=list(columns)).to_pylist()
        return [row for row in read if equal.items() <= row.items()]

    def pending(self, behind: int) -> int | None:
        """A checkpoint later than another one, while it is under way."""
        triggered = {row["checkpoint_id"] or 0 for row in self.rows("barriers", "checkpoint_id")}
        ended = {row["checkpoint_id"] for row in self.rows("checkpoints", "checkpoint_id")}
        return max((n for n in triggered - ended if n > behind), default=None)

    def forwarded(self) -> int | None:
        """The first checkpoint, while it is under way and ``left`` has sent its barrier on."""
        there = self.rows("channels/left/attempt=1", "_kind", _kind="BARRIER")
        return self.pending(behind=0) if there else None

    def read_all(self, behind: int = 0) -> bool | None:
        """Once a checkpoint later than another one has completed that holds every file."""
        rows = self.rows("checkpoints", "checkpoint_id", "kind", "stages", kind="COMPLETED")
        later = (row for row in rows if row["checkpoint_id"] > behind)
        return any(files_read(row, "left", "a") == FILES for row in later) or None

    def wait(self, condition: Callable[[], Found | None]) -> Found:
        """Look until there is something, while the job runs."""
        end = time.monotonic() + PATIENCE_S
        while (found := condition()) is None:
            assert self.process.poll() is None, tail(self.root / "driver.log")
            assert time.monotonic() < end, tail(self.root / "driver.log")
            time.sleep(0.02)
        return found

    def kill_when(self, condition: Callable[[], int | None], worker: Worker) -> Kill:
        """Kill the executor of a worker at a moment of a checkpoint."""
        checkpoint = self.wait(condition)
        before_ms = time.time_ns() // 1_000_000
        killed = worker.kill_executor()
        return Kill(checkpoint, before_ms, time.time_ns() // 1_000_000, killed)


@contextmanager
def driver(root: Path, cluster: Cluster) -> Iterator[Driver]:
    """The driver, which is dead behind the block."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": python_path()}
    environment |= {"PYSPARK_PYTHON": sys.executable, "ABSFLOW_SIGTERM": "true"}
    conf = [f"{name}={value}" for name, value in (cluster.conf() | FAST).items()]
    with (root / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "chain.py"), str(root), *conf],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield Driver(root, cluster, process)
    finally:
        bury(process)


def test_an_executor_is_killed_in_the_middle_of_a_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One checkpoint is half through, another just triggered: the job goes on, and is exact."""
    files = source_files(tmp_path / "a", rows=100, seed=17)
    for _ in itertools.islice(files, FIRST):
        pass
    with standalone(tmp_path) as cluster, driver(tmp_path, cluster) as job:
        one, other = cluster.workers
        first = job.kill_when(job.forwarded, one)
        second = job.kill_when(lambda: job.pending(first.checkpoint), other)
        for _ in itertools.islice(files, FILES - FIRST):
            pass
        job.wait(lambda: job.read_all(second.checkpoint))
        job.process.send_signal(signal.SIGTERM)
        assert job.process.wait(PATIENCE_S) == 0, tail(tmp_path / "driver.log")
        started = cluster.executors()
    # What was killed was an executor that had worked, and another came in its place.
    for kill in (first, second):
        assert any("CoarseGrainedExecutorBackend" in command for command in kill.killed)
        assert any("pyspark.daemon" in command for command in kill.killed)
    assert started >= {0, 1, 2, 3}

    rows = {row["checkpoint_id"]: row for row in facts(spark, tmp_path / "job")}
    for kill in (first, second):
        hit = rows[kill.checkpoint]
        assert millis(hit["triggered_at"]) <= kill.before_ms
        assert kill.after_ms < millis(hit["ended_at"])
        later = [n for n, row in rows.items() if n > kill.checkpoint]
        assert any(rows[n]["kind"] == "COMPLETED" for n in later)
        if hit["kind"] == "COMPLETED":
            due = expected(tmp_path, files_read(hit, "left", "a"))
            for stage, key in (("left", "k"), ("tally", "g")):
                state = state_at(spark, tmp_path / "job", hit, stage, key)
                assert_same_rows(state, due[stage], [key])
    last = max(rows)
    assert (rows[last]["kind"], rows[last]["type"]) == ("COMPLETED", "SAVEPOINT")
    assert files_read(rows[last], "left", "a") == FILES
    check(spark, tmp_path, last, FILES)
