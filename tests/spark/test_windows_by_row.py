"""Timers of functions of one row, on Spark; and that a job may change its form at a restore."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from reading import assert_same_rows, completed, files_read, rows_of
from session import settings
from windows import DELAY_S, EVENTS, SETTINGS, WINDOW, count, expected, let_go, write_events

import absflow

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FILES = 6
STATE, OUTPUT = "n long, total long", "k int, w timestamp, n long, total long, d timestamp"


def count_one(state: Any, row: Any, context: absflow.Context) -> Any:
    """A row into its window."""
    _p, _k, _ts, value, window = row
    n, total = state or (0, 0)
    context.timers.set(window + timedelta(seconds=WINDOW))
    return (n + 1, total + value), None


def let_one_go(timer: absflow.Timer, state: Any) -> Any:
    """A window that is over."""
    k, window = timer.key
    assert timer.time == window + timedelta(seconds=WINDOW)
    day = window.replace(hour=0, minute=0, second=0)
    return None, [(k, window, *state, day)]


def run(spark: SparkSession, root: Path, form: str, **more: str) -> None:
    """The job in one of the two forms, to its end."""
    functions = {"per-row": (count_one, let_one_go), "arrow": (count, let_go)}
    process, on_timer = functions[form]
    given = {"storage.path": str(root / "job"), **SETTINGS, "checkpoint.interval": "300ms"}
    with settings(spark, {**given, **more}):
        frame = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
        events = frame.parquet(str(root / "events"))
        events = events.withColumn("w", F.window("ts", f"{WINDOW} seconds")["start"])
        declared = absflow.Watermark(delay="1h", by="p")
        job = absflow.Job("by-row", spark)
        made = job.stage(
            "windows",
            job.source("events", events, bounded=True, event_time="ts", watermark=declared),
            key=["k", "w"],
            state=STATE,
            output=OUTPUT,
            process=process,
            form=form,
            on_timer=on_timer,
        )
        job.sink("out", made, absflow.DeltaSink(str(root / "windows")))
        assert job.start().await_termination(timeout=200)


def test_windows_by_row_are_those_of_tables_and_a_restore_may_change_the_form(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The state has the same timers in both."""
    events = write_events(tmp_path / "events", FILES, 200, seed=3)
    due, _ = expected(events, DELAY_S)
    run(spark, tmp_path, "per-row")
    found = rows_of(tmp_path / "windows").to_pandas()
    assert_same_rows(found[["k", "w", "n", "total"]], due, ["k", "w"])
    rows = completed(spark, tmp_path / "job")
    middle = next(r for r in rows if files_read(r, "windows", "events") >= FILES // 2)
    timers = absflow.history(spark, str(tmp_path / "job")).timers(
        "windows", middle["checkpoint_id"]
    )
    assert not timers.isEmpty()
    run(spark, tmp_path, "arrow", **{"restore.from": str(middle["checkpoint_id"])})
    found = rows_of(tmp_path / "windows").to_pandas()
    assert_same_rows(found[["k", "w", "n", "total"]], due, ["k", "w"])
