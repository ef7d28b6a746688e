"""Rows that a stage emits behind its own watermark, on Spark: counted, and put right by a delay."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from reading import completed, files_read, stage_of
from session import settings
from windows import (
    DELAY_S,
    EVENTS,
    SETTINGS,
    WINDOW,
    add,
    count,
    expected,
    let_day_go,
    let_go,
    reached,
    write_events,
)

import absflow

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FILES = 6


def late_windows(events: pd.DataFrame) -> int:
    """How many windows begin no later than what was said before the micro-batch that ends them."""
    windows, _ = expected(events, DELAY_S)
    times = [reached(events, files) for files in range(FILES + 1)]
    count = 0
    for begin in windows["w"]:
        ends = begin + pd.Timedelta(seconds=WINDOW)
        over = next((n for n, at in enumerate(times) if at is not None and at >= ends), FILES + 1)
        said = times[over - 1]
        count += said is not None and begin <= said
    return count


def job_of(spark: SparkSession, root: Path) -> absflow.Job:
    """Windows are emitted with their begin as their time, with and without a word of that.

    Each of the stages reads the files itself: one is a micro-batch then, whatever the other does.
    """
    job = absflow.Job("late", spark)
    declared = absflow.Watermark(delay="1h", by="p")
    for name, delay in (("plain", "0s"), ("older", f"{WINDOW}s")):
        frame = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
        events = frame.parquet(str(root / "events"))
        source = job.source(
            f"events-{name}",
            events.withColumn("w", F.window("ts", f"{WINDOW} seconds")["start"]),
            bounded=True,
            event_time="ts",
            watermark=declared,
        )
        made = job.stage(
            name,
            source,
            key=["k", "w"],
            state="n long, total long",
            output="k int, w timestamp, n long, total long, d timestamp",
            process=count,
            on_timer=let_go,
            output_time="w",
            watermark_delay=delay,
        )
        days = job.stage(
            f"days-{name}",
            made,
            key=["k", "d"],
            state="n long, total long",
            output="k int, d timestamp, n long, total long",
            process=add,
            on_timer=let_day_go,
        )
        job.sink(f"out-{name}", days, absflow.DeltaSink(str(root / name)))
    return job


def test_what_a_stage_emits_late_is_counted_unless_it_says_how_old_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    """And the stage behind it is so much behind, at every checkpoint."""
    events = write_events(tmp_path / "events", FILES, 200, seed=11)
    given = {"storage.path": str(tmp_path / "job"), **SETTINGS, "checkpoint.interval": "300ms"}
    with settings(spark, given):
        run = job_of(spark, tmp_path).start()
        assert run.await_termination(timeout=200)
    due = late_windows(events)
    assert due > 20
    rows = completed(spark, tmp_path / "job")
    counts = {
        name: sum(stage_of(row, name)["late_emitted"] for row in rows)
        for name in ("plain", "older")
    }
    assert counts == {"plain": due, "older": 0}
    assert run.progress().stages["plain"].late_emitted == due
    delay = pd.Timedelta(seconds=WINDOW)
    for row in rows:
        for name, behind in (("plain", 0 * delay), ("older", delay)):
            at = reached(events, files_read(row, name, f"events-{name}"))
            assert _watermark(row, name) == at
            assert _watermark(row, f"days-{name}") == (None if at is None else at - behind)


def _watermark(row: dict, stage: str) -> pd.Timestamp | None:
    found = stage_of(row, stage)["watermark"]
    return None if found is None else pd.Timestamp(found)
