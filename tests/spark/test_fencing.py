"""Two drivers on one storage root: the older stops by itself, and what is committed is exact."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chain import SETTINGS, chain, expected
from diamond import write_source
from fencing import recording
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, facts, files_read, rows_of
from session import settings

from absflow.errors import FencedError, GraphError, StorageError
from absflow.facts import driver_table, lock
from absflow.facts.fence import Fence
from absflow.facts.lock import RootLock
from absflow.protocol.restarts import RestartPolicy
from absflow.spark.start.attempt import prepare_attempt
from absflow.storage.delta import tables, transactions
from absflow.storage.delta.log import Commit, newest_version, parse_commit
from absflow.storage.files import Files
from absflow.storage.root import StorageRoot

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

FILES = 18
PATIENCE_S = 300
# So slow that it is far from its end when others have started.
SLOW = "trigger.interval=4s"


class Driver:
    """A driver in a process group of its own."""

    def __init__(self, root: Path, name: str, wait_s: float, *more: str) -> None:
        """Start it."""
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        }
        self._appends, self._said = root / f"{name}.appends", root / f"{name}.said"
        program = str(Path(__file__).parent / "fencing.py")
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, program, str(root), str(self._appends), str(wait_s), *more],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """Its stderr."""
        return self._said.read_text()

    def last(self, error: str) -> str:
        """The last of its error messages of this class."""
        start = f"absflow.errors.{error}: "
        return [line for line in self.said.splitlines() if line.startswith(start)][-1]

    def appends(self) -> list[dict[str, Any]]:
        """What it has appended."""
        if not self._appends.exists():
            return []
        lines = self._appends.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def wait_for_appends(self, count: int) -> None:
        """Wait until it has made so many."""
        end = time.monotonic() + PATIENCE_S
        while len(self.appends()) < count:
            assert self.process.poll() is None, self.said[-3000:]
            assert time.monotonic() < end, self.said[-3000:]
            time.sleep(0.05)

    def signal(self, number: int) -> None:
        """Send a signal to Python and JVM."""
        os.killpg(self.process.pid, number)


@dataclass(frozen=True)
class Story:
    """What happened."""

    root: Path
    older: Driver
    refused: Driver
    newer: Driver
    at_stop: int
    at_refusal: list[dict[str, Any]]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """A driver hangs while a second is started, goes on, and a third takes over and finishes."""
    root = tmp_path_factory.mktemp("fencing")
    write_source(root / "a", files=FILES, rows=100, seed=11)
    drivers = []

    def start(*words: Any) -> Driver:
        drivers.append(Driver(root, *words))
        return drivers[-1]

    try:
        older = start("older", 0, SLOW)
        older.wait_for_appends(8)
        older.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, older.process.pid, os.WSTOPPED)
        at_stop = len(older.appends())
        refused = start("refused", 1)
        refused.process.wait(PATIENCE_S)
        at_refusal = older.appends()
        older.signal(signal.SIGCONT)
        older.wait_for_appends(at_stop + 4)
        newer = start("newer", 60)
        older.process.wait(PATIENCE_S)
        newer.process.wait(PATIENCE_S)
        yield Story(root, older, refused, newer, at_stop, at_refusal)
    finally:
        for driver in drivers:
            if driver.process.poll() is None:
                driver.signal(signal.SIGKILL)
                driver.process.wait()


def commits(root: Path) -> Iterator[Commit]:
    """Every commit of every table."""
    for log in root.rglob("_delta_log"):
        newest = newest_version(path.name for path in log.iterdir())
        assert newest is not None
        for version in range(newest + 1):
            text = (log / f"{version:020d}.json").read_text()
            yield parse_commit(version, text)


def test_a_driver_that_finds_a_hanging_one_is_refused(story: Story) -> None:
    """It says whom it waited for, and has written nothing."""
    assert story.refused.process.returncode not in (0, None)
    error = story.refused.last("StorageError")
    assert "another driver runs on this storage root and has not stopped in 1 s" in error
    assert f"pid {story.older.process.pid} on" in error
    assert story.refused.appends() == []
    assert len(story.at_refusal) == story.at_stop


def test_the_older_driver_says_why_it_stopped(story: Story) -> None:
    """It went on after it had hung, and stopped when the newer asked for the lock."""
    assert len(story.older.appends()) >= story.at_stop + 4
    assert story.older.process.returncode not in (0, None)
    error = story.older.last("FencedError")
    assert f"a newer driver takes the job over: pid {story.newer.process.pid} on" in error
    assert "incarnation 1, commits nothing more" in error


def test_the_older_driver_commits_nothing_after_the_claim(
    spark: SparkSession, story: Story
) -> None:
    """Not to a channel, sink or state history, and not a fact of its own."""
    claim = story.newer.appends()[0]
    assert claim["path"].endswith("/attempts")
    assert max(made["ended"] for made in story.older.appends()) < claim["begun"]
    rows = spark.read.format("delta").load(str(story.root / "job" / "attempts")).collect()
    kinds = [(row.incarnation, row.kind) for row in sorted(rows, key=lambda row: row.at)]
    assert kinds == [(1, "STARTED"), (1, "READY"), (2, "DRIVER"), (2, "ENDED")]
    mine = {(made["app_id"], made["version"]) for made in story.newer.appends()}
    found = list(commits(story.root))
    first = (claim["app_id"], claim["version"])  # of each driver table; that of the claim is oldest
    claimed_at = min(c.at for c in found if first in c.transactions.items())
    later = [c for c in found if c.at > claimed_at and c.operation == "WRITE"]
    assert len(later) > FILES
    assert all(c.transactions and set(c.transactions.items()) <= mine for c in later)


def test_the_newer_driver_finishes_the_job(spark: SparkSession, story: Story) -> None:
    """Every row is in the sink once, and the last checkpoint holds all input."""
    assert story.newer.process.returncode == 0, story.newer.said[-3000:]
    sink = rows_of(story.root / "sink").to_pandas()
    assert_same_rows(sink, expected(story.root, FILES)["sink"], ["id"])
    rows = facts(spark, story.root / "job")
    assert rows[-1]["kind"] == "COMPLETED"
    assert files_read(rows[-1], "left", "a") == FILES
    ids = [row["checkpoint_id"] for row in rows]
    assert ids == sorted(set(ids))
    assert {row["incarnation"] for row in completed(spark, story.root / "job")} == {1, 2}


def test_a_start_that_is_refused_leaves_the_running_driver_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The graph is another one: nobody is asked to stop."""
    write_source(tmp_path / "a", files=2, rows=100, seed=13)
    conf = {**SETTINGS, "storage.path": str(tmp_path / "job")}
    with settings(spark, {**conf, "trigger.interval": "10s"}):
        run = chain(spark, tmp_path).start()
    with settings(spark, {**conf, "key-groups": "3"}):
        with pytest.raises(GraphError, match="was 4, is 3"):
            chain(spark, tmp_path).start()
    assert not (tmp_path / "job" / "driver.takeover").exists()
    run.stop()


def test_a_start_that_fails_lets_go_of_the_root(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the storage did not answer; the same process may try again at once."""
    write_source(tmp_path / "a", files=1, rows=10, seed=14)
    real = Files.read

    def fails(self: Files, path: str) -> str | None:
        if f"/requests/_delta_log/{failing}" in path:
            raise StorageError("no answer")
        return real(self, path)

    monkeypatch.setattr(Files, "read", fails)
    monkeypatch.setattr(lock, "TAKEOVER_WAIT_S", 0)
    with settings(spark, {**SETTINGS, "storage.path": str(tmp_path / "job")}):
        failing = "_last_checkpoint"
        for _ in range(2):
            with pytest.raises(StorageError, match="no answer"):
                chain(spark, tmp_path).start()
        failing = "nothing"
        chain(spark, tmp_path).start().stop()


@pytest.mark.soak
def test_without_a_lock_the_claim_stops_the_older_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on an object store. Both are in one JVM here, for in two a local log is not safe."""
    write_source(tmp_path / "a", files=FILES, rows=100, seed=12)
    monkeypatch.setattr(lock, "local_directory", lambda root: None)
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(transactions, "append_once", recording(made.append))
    conf = {**SETTINGS, "storage.path": str(tmp_path / "job")}
    with settings(spark, {**conf, "trigger.interval": "1s"}):
        older = chain(spark, tmp_path).start()
        end = time.monotonic() + PATIENCE_S
        while older.progress().completed < 1:
            assert older.is_active
            assert time.monotonic() < end
            time.sleep(0.05)
        later = StorageRoot.open(spark, str(tmp_path / "job"))
        prepared = prepare_attempt(later, chain(spark, tmp_path)._checked())
        assert (prepared.claim.incarnation, prepared.claim.lock.held) == (2, False)
        with pytest.raises(FencedError, match="driver incarnation 2 took the job over at"):
            older.await_termination(PATIENCE_S)
    of_newer = [m for m in made if m["app_id"] == "chain/driver" and m["version"] >> 32 == 2]
    assert [m["path"].rsplit("/")[-1] for m in of_newer[:4]] == [
        "attempts",
        "barriers",
        "overtakes",
        "checkpoints",
    ]
    assert [m for m in made if m["begun"] > of_newer[0]["ended"] and m not in of_newer] == []
    with settings(spark, conf):
        chain(spark, tmp_path).start().await_termination()
    sink = rows_of(tmp_path / "sink").to_pandas()
    assert_same_rows(sink, expected(tmp_path, FILES)["sink"], ["id"])


def test_behind_a_claim_delta_skips_the_facts_of_older_drivers(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also of one that has looked for a newer driver just before."""
    files, path = Files(spark), f"file:{tmp_path}/facts"
    blind = Fence(lambda path: None, lambda path: [], path, 1, RootLock("", None))
    schema = pa.schema([("fact", pa.string())])
    policy = RestartPolicy(attempts=0, initial_ms=0, max_ms=0, multiplier=1, reset_after_ms=1)
    older, newer = (
        driver_table.DriverTable(
            spark, files, path, schema, "job/driver", n, f"driver {n}", blind, policy
        )
        for n in (1, 2)
    )
    older.append({"fact": "of 1"})
    newer.claim()
    with pytest.raises(FencedError, match="has driver incarnation 2, this driver is 1"):
        older.append({"fact": "too late"})
    newer.append({"fact": "of 2"})
    assert sorted(row["fact"] for row in tables.read(spark, path).collect()) == ["of 1", "of 2"]
