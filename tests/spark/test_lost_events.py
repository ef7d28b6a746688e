"""What the thread of a job learns though no event says it, and what no wall clock says to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from chain import chain, check, conf, expected, run, wait
from diamond import OUTPUT, ROWS, STATE, to_group, write_source
from pyspark.sql import DataFrame, SparkSession
from reading import facts
from session import settings

import absflow
from absflow.spark.batch.listener import QueryListener
from absflow.storage import clock

pytestmark = pytest.mark.spark

FILES = 4
PATIENCE_S = 240
HOUR_MS = 3_600_000


def test_a8_a_job_whose_listener_gets_nothing_goes_on_and_ends(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its query is killed and started again, its sources are read to the end, and all is exact."""
    for event in ("onQueryTerminated", "onQueryIdle", "progressed"):
        monkeypatch.setattr(QueryListener, event, lambda self, event: None)
    write_source(tmp_path / "a", FILES, rows=30, seed=5)
    written: dict[tuple[str, int], list[int]] = {}
    deaths: list[int] = []

    def write(rows: DataFrame, made: absflow.SinkWrite) -> None:
        if written and not deaths:
            deaths.append(made.version)
            raise RuntimeError("the sink has a bad day")
        ids = [row.id for row in rows.select("id").collect()]
        written[made.app_id, made.version] = ids

    job = absflow.Job("lost", spark)
    frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    a = job.source("a", frame.parquet(str(tmp_path / "a")), bounded=True)
    left = job.stage("left", a, key="k", state=STATE, output=OUTPUT, process=to_group)
    job.sink("out", left, absflow.ForeachBatchSink(write))
    with settings(spark, conf(tmp_path, restart__initial_delay="0s")):
        started = job.start()
        try:
            assert started.await_termination(timeout=PATIENCE_S), started.progress()
        finally:
            if started.is_active:
                started.stop()
    assert len(deaths) == 1
    due = sorted(expected(tmp_path, FILES)["sink"]["id"])
    assert sorted(number for ids in written.values() for number in ids) == due


@pytest.mark.soak
def test_a8_a_wall_clock_that_jumps_neither_stops_nor_expires_checkpoints(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour forth, two back: they go on to complete, and none is given up for it."""
    jumped, real = [0], clock.now_ms
    monkeypatch.setattr(clock, "now_ms", lambda: real() + jumped[0])
    write_source(tmp_path / "a", FILES, rows=30, seed=5)
    with settings(spark, conf(tmp_path)):
        started = chain(spark, tmp_path, bounded=False).start()

    def two_more() -> None:
        due = started.progress().completed + 2
        wait(lambda: started.progress().completed >= due, started, PATIENCE_S)

    for jump in (0, HOUR_MS, -HOUR_MS, 0):
        jumped[0] = jump
        two_more()
    started.stop()
    reasons = {row["reason"] for row in facts(spark, tmp_path / "job")}
    assert reasons <= {None, "JOB_STOPPED"}
    check(spark, tmp_path, run(spark, tmp_path), FILES)
