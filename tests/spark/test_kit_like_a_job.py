"""What the testing kit says of a stage is what a job makes of it."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import absflow
from absflow.testing import BATCH, END, Input, LocalJobs, Stage, assert_same_rows

pytestmark = pytest.mark.spark

COLUMNS = "k string, at timestamp, w timestamp"
DECLARED = {
    "key": ["k", "w"],
    "state": "n long",
    "output": "k string, w timestamp, n long",
    "form": "per-row",
}


def row(key: str, minute: int, second: int = 0) -> tuple[str, datetime, datetime]:
    start = datetime(2026, 1, 1, tzinfo=timezone.utc)
    begin = start + timedelta(minutes=minute)
    return key, begin + timedelta(seconds=second), begin


def count(state, given, context):
    context.timers.set(given[2] + timedelta(minutes=1))
    return ((state[0] if state else 0) + 1,), None


def close(timer, state):
    return None, [(*timer.key, state[0])]


FILES = [
    [row("a", 0, 10), row("b", 0, 20), row("a", 0, 50)],
    [row("a", 2), row("b", 2, 30), row("b", 1, 59), row("a", 0, 5)],
    [row("a", 0), row("c", 4), row("b", 2, 10)],  # the first comes late, as one before
    [row("d", 9), row("c", 4, 1)],
]


def windows(folder: Path):
    def declare(spark: SparkSession) -> absflow.Job:
        read = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        job = absflow.Job("windows", spark)
        source = job.source(
            "rows", read.parquet(f"{folder}/rows"), bounded=True, event_time="at",
            watermark=absflow.Watermark("30s"),
        )  # fmt: skip
        stage = job.stage("count", source, process=count, on_timer=close, **DECLARED)
        job.sink("out", stage, absflow.DeltaSink(f"{folder}/out"))
        return job

    return declare


def test_a_stage_under_test_emits_what_a_job_emits(spark: SparkSession, tmp_path: Path) -> None:
    """Windows in event time with late rows, from the first row to the end of the source."""
    local = LocalJobs(spark, tmp_path)
    for number, rows in enumerate(FILES, 1):
        file = local.write(f"rows/{number}.parquet", rows, COLUMNS)
        os.utime(file, (number, number))  # Spark reads files in the order of these
    local.run(windows(tmp_path))
    given = Input(COLUMNS, event_time="at", watermark=absflow.Watermark("30s"))
    stage = Stage(count, inputs=given, on_timer=close, **DECLARED)
    stage.run([fed for rows in FILES for fed in (*rows, BATCH)])
    stage.run([END])
    assert_same_rows(stage.output, local.read("out"), key=["k", "w"])
    late = local.history().late("rows").select("k", "at", "w")
    assert_same_rows(stage.late["rows"], late, key=["k", "w"])
    assert len(stage.late["rows"]) == 2
    assert local.state("count") == stage.state == []
