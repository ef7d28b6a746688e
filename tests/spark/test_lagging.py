"""One job through three starts: too much held, a query that dies while it aligns, an end.

::

    a --> [slow] ==> [join] --> a function
    b ---------------/

``slow`` cannot keep up, so the barriers of ``b`` reach ``join`` before those of ``slow``, and rows
of ``b`` are held. The job is started, stopped and started again:

1. nothing may be held: checkpoints are aborted for it, and what was held goes on;
2. the sink raises while a barrier waits: the query is started again in the middle of the alignment;
3. ``a`` ends and ``b`` does not: ``slow`` ends, and checkpoints go on without it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from diamond import (
    OUTPUT,
    ROWS,
    STATE,
    expected_state,
    read_source,
    slowly,
    source_files,
    to_group,
)
from pyspark.sql import DataFrame, SparkSession
from reading import assert_same_rows, completed, facts, files_read, stage_of, state_at
from session import settings

import absflow
from absflow.protocol import alignment_state

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]

PATIENCE_S = 900
CONF = {
    # The tests read each checkpoint as it was taken; on a busy machine retention would come by.
    "checkpoint.retained": "10000",
    "lineage.max-sets": "10000",
    "checkpoint.interval": "1s",
    "checkpoint.aligned-timeout": "never",
    "checkpoint.tolerable-failed": "1000",
    "key-groups": "3",
    "restart.initial-delay": "0s",
}

Wanted = Callable[[list[dict[str, Any]]], object]


class Lagging:
    """The job, what feeds it, and what its sink was called with."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        """Over files below ``root``."""
        self.spark, self.root = spark, root
        self.sources = {
            "a": source_files(root / "a", rows=200, seed=7),
            "b": source_files(root / "b", rows=50, seed=8, first_id=1_000_000),
        }
        self.files = {"a": 0, "b": 0}
        self.written: list[tuple[str, int, list[int]]] = []
        self.deaths = 0
        self.deadly = False
        self.marks: list[int] = []  # the newest id at the end of each start

    def feed(self, name: str) -> None:
        """One more file."""
        next(self.sources[name])
        self.files[name] += 1

    def start(self, *, a_ends: bool = False) -> absflow.Run:
        """Start it with the session's settings."""
        job = absflow.Job("lagging", self.spark)

        def files(name: str) -> DataFrame:
            reader = self.spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
            return reader.parquet(str(self.root / name))

        a = job.source("a", files("a"), bounded=a_ends)
        b = job.source("b", files("b").selectExpr("id", "id % 7 AS g", "v"))
        slow = job.stage("slow", a, key="k", state=STATE, output=OUTPUT, process=slowly)
        join = job.stage(
            "join",
            [slow, b],
            key="g",
            state=STATE,
            output=OUTPUT,
            process={"slow": to_group, "b": to_group},
        )
        job.sink("out", join, absflow.ForeachBatchSink(self.write))
        return job.start()

    def write(self, rows: DataFrame, made: absflow.SinkWrite) -> None:
        """The sink; dies once if it is deadly and a barrier waits."""
        if self.deadly and self.waits():
            self.deadly = False
            self.deaths += 1
            raise RuntimeError("the sink has a bad day")
        ids = [row.id for row in rows.select("id").collect()]
        self.written.append((made.app_id, made.version, ids))

    def newest(self, stage: str, kind: str) -> list[str]:
        """The lines of a stage's newest file of a kind that has one for each batch."""
        folder = self.root / "job" / "work" / "attempt=1" / stage / kind
        batches = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
        return (folder / str(max(batches))).read_text().splitlines() if batches else []

    def waits(self) -> bool:
        """Whether a barrier waits at ``join``, as it has made durable."""
        saved = self.newest("join", "alignment")
        return bool(saved) and bool(alignment_state.from_json(saved[0]).blocking)

    def unread(self, name: str) -> int:
        """How many files of ``name`` no batch has been planned for."""
        stage, place = {"a": ("slow", 0), "b": ("join", 1)}[name]
        planned = self.newest(stage, "spark/offsets")
        if not planned:
            return self.files[name]
        position = planned[2 + place]
        return self.files[name] - (json.loads(position)["logOffset"] + 1 if position != "-" else 0)

    def run_until(self, run: absflow.Run, wanted: Wanted, feeding: str = "") -> None:
        """Feed the sources named by letters, a few files ahead, until the facts are as wanted."""
        deadline = time.monotonic() + PATIENCE_S
        while not wanted(rows := facts(self.spark, self.root / "job")):
            assert time.monotonic() < deadline, [(r["checkpoint_id"], r["reason"]) for r in rows]
            for name in feeding:
                if self.unread(name) < 3:
                    self.feed(name)
            run.await_termination(timeout=1)

    def holds_all(self, rows: list[dict[str, Any]]) -> bool:
        """Whether the newest fact is a checkpoint that stands behind every file."""
        return rows[-1]["kind"] == "COMPLETED" and self.files == cut_of(rows[-1])

    def expected(self, cut: dict[str, int]) -> dict[str, pd.DataFrame]:
        """The state of both stages over the first files of each source."""
        a, b = (read_source(self.root / name, cut[name]) for name in "ab")
        both = pd.concat([a, b], ignore_index=True)
        return {
            "slow": expected_state(a, "k"),
            "join": expected_state(both.assign(g=both["id"] % 7), "g"),
        }


def cut_of(row: dict[str, Any]) -> dict[str, int]:
    """How many files of each source a completed checkpoint stands behind."""
    return {"a": files_read(row, "slow", "a"), "b": files_read(row, "join", "b")}


def completions(rows: list[dict[str, Any]], after: int = 0) -> list[dict[str, Any]]:
    """The completed checkpoints with a greater id."""
    return [r for r in rows if r["kind"] == "COMPLETED" and r["checkpoint_id"] > after]


def last_id(rows: list[dict[str, Any]]) -> int:
    """The newest id that has a fact."""
    return max((r["checkpoint_id"] for r in rows), default=0)


@pytest.fixture(scope="module")
def lagging(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lagging:
    """The job after its three starts."""
    job = Lagging(spark, tmp_path_factory.mktemp("lagging"))
    job.feed("a")
    job.feed("b")
    conf = {**CONF, "storage.path": str(job.root / "job")}

    with settings(spark, {**conf, "alignment.max-held": "1B"}):
        run = job.start()

        def given_up(rows: list[dict[str, Any]]) -> bool:
            return any(row["reason"] == "HELD_TOO_MUCH" for row in rows)

        job.run_until(run, given_up, feeding="ab")
        job.run_until(run, completions)  # with nothing new on `b`, nothing is held
        run.stop()
    job.marks.append(last_id(facts(spark, job.root / "job")))

    with settings(spark, conf):
        run = job.start()
        job.deadly = True

        def died_and_held(rows: list[dict[str, Any]]) -> bool:
            held = [s["held_rows"] for r in completions(rows, job.marks[0]) for s in r["stages"]]
            return job.deaths == 1 and any(held)

        job.run_until(run, died_and_held, feeding="ab")
        run.stop()
        job.marks.append(last_id(facts(spark, job.root / "job")))

        run = job.start(a_ends=True)

        def ended_and_gone_on(rows: list[dict[str, Any]]) -> bool:
            new = completions(rows, job.marks[1])
            return sum(stage_of(r, "slow")["checkpoint_id"] < r["checkpoint_id"] for r in new) >= 2

        job.run_until(run, ended_and_gone_on, feeding="b")
        job.run_until(run, job.holds_all)
        assert run.is_active
        run.stop()
    return job


def test_every_checkpoint_is_a_cut(spark: SparkSession, lagging: Lagging) -> None:
    """Whatever was aborted, restarted or ended before it, in which start ever."""
    rows = completed(spark, lagging.root / "job")
    for row in rows:
        due = lagging.expected(cut_of(row))
        for stage, key in (("slow", "k"), ("join", "g")):
            state = state_at(spark, lagging.root / "job", row, stage, key)
            assert_same_rows(state, due[stage], [key])
        assert state_at(spark, lagging.root / "job", row, "slow", "k")["ordered"].all()
    assert len({tuple(cut_of(row).values()) for row in rows}) >= 4


def test_the_function_got_every_row_at_least_once(lagging: Lagging) -> None:
    """And a write that was made twice had the same rows and the same version both times."""
    once = {(app, version): ids for app, version, ids in lagging.written}
    assert all(sorted(ids) == sorted(once[app, n]) for app, n, ids in lagging.written)
    both = pd.concat([read_source(lagging.root / name, 10_000) for name in "ab"])
    assert sorted(i for ids in once.values() for i in ids) == sorted(both["id"])


def test_what_a_stop_left_pending_says_so(spark: SparkSession, lagging: Lagging) -> None:
    """Each id has one fact, the reasons are these, and no driver found anything left behind."""
    rows = facts(spark, lagging.root / "job")
    assert [row["checkpoint_id"] for row in rows] == list(range(1, len(rows) + 1))
    reasons = {row["reason"] for row in rows if row["kind"] == "ABORTED"}
    assert reasons <= {"HELD_TOO_MUCH", "JOB_STOPPED"}
    attempts = spark.read.format("delta").load(str(lagging.root / "job" / "attempts")).collect()
    kinds = [row.kind for row in sorted(attempts, key=lambda row: (row.incarnation, row.at))]
    assert kinds == ["STARTED", "READY", "ENDED", "DRIVER", "ENDED", "DRIVER", "ENDED"]


def test_only_what_ended_got_an_end(spark: SparkSession, lagging: Lagging) -> None:
    """One END row, and from then on the last report of ``slow`` stands in the manifests."""
    barriers = spark.read.format("delta").load(str(lagging.root / "job" / "barriers"))
    ends = barriers.where("kind = 'END'").collect()
    assert [(row.stage, row.input) for row in ends] == [("slow", "a")]
    last = completed(spark, lagging.root / "job")[-1]
    assert stage_of(last, "slow")["checkpoint_id"] < last["checkpoint_id"]
    assert cut_of(last) == lagging.files
