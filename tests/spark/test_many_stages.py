"""A hundred tiny stages on one driver: a query each, with a rate source and a key group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from chain import wait
from diamond import OUTPUT, STATE, to_group
from pyspark.sql import SparkSession
from reading import completed
from session import settings, shuffle_partitions, spark_conf

import absflow
from absflow.spark.control.progress import Progress

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(7200)]

STAGES = 100
CHECKPOINTS = 3
PATIENCE_S = 3600
CONF = {
    "key-groups": "1",
    "trigger.interval": "30s",
    "checkpoint.interval": "30s",
    "checkpoint.timeout": "1h",
}


def job_of(spark: SparkSession) -> absflow.Job:
    """The stages, each by itself."""
    job = absflow.Job("many", spark)
    for number in range(STAGES):
        rows = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
        frame = rows.selectExpr("value AS id", "concat('k', value % 7) AS k", "value AS v")
        source = job.source(f"source_{number}", frame)
        name = f"stage_{number}"
        job.stage(name, source, key="k", state=STATE, output=OUTPUT, process=to_group)
    return job


def test_b_a_driver_answers_a_hundred_stages_at_the_pace_at_which_they_report(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Checkpoints of all of them complete, no event is left waiting, and it is known why."""
    conf = {**CONF, "storage.path": str(tmp_path / "job")}
    # By default Spark keeps the progress of a hundred batches of each query.
    few = {"spark.sql.streaming.numRecentProgressUpdates": "2"}
    with settings(spark, conf), spark_conf(spark, few), shuffle_partitions(spark, 1):
        run = job_of(spark).start()

        def came_to(count: int) -> None:
            wait(lambda: run.progress().completed >= count, run, PATIENCE_S)
            _print(run.progress())

        for count in range(1, CHECKPOINTS + 1):
            came_to(count)
        wait(lambda: run.progress().thread.waiting == 0, run, PATIENCE_S)
        progress = run.progress()
        run.stop()
    for kind, times in progress.thread.events.items():
        record_property(kind, str(times))
    rows = completed(spark, tmp_path / "job")
    assert len(rows) >= CHECKPOINTS
    for row in rows:
        print(row["checkpoint_id"], row["duration_ms"], "ms")
        assert len(row["stages"]) == STAGES
    reports = progress.thread.events["StageReported"]
    assert reports.count >= CHECKPOINTS * STAGES


def _print(progress: Progress) -> None:
    """Where the time of the job's thread goes, for whoever runs this."""
    thread = progress.thread
    print(
        f"{progress.completed} checkpoints; busy {thread.busy:.3f}, {thread.waiting} wait, "
        f"{thread.most_waiting} at most"
    )
    for kind, times in sorted(thread.events.items()):
        mean = times.total_ms / times.count
        print(f"  {kind}: {times.count}, {mean:.2f} ms each, {times.longest_ms:.0f} ms the longest")
