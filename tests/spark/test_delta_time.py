"""Event time over a Delta table, whose first snapshot is in no order of event time."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from reading import assert_same_rows, completed, rows_of, stage_of
from session import settings
from windows import SETTINGS, WINDOW, windows

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(400)]

HOURS, ROWS = 5, 40


def run(spark: SparkSession, table: Path, root: Path, **options: str) -> tuple[pd.DataFrame, int]:
    """The windows of a job over the table, and how many rows were late."""
    frame = spark.readStream.format("delta").options(**options).load(str(table))
    with settings(spark, {"storage.path": str(root / "job"), **SETTINGS}):
        job = windows(spark, root, frame, bounded=True)
        assert job.start().await_termination(timeout=300)
    counts = [stage_of(row, "windows")["late_rows"] for row in completed(spark, root / "job")]
    return rows_of(root / "windows").to_pandas(), sum(counts)


def test_trap_20_of_a_snapshot_in_pieces_rows_are_late_but_not_of_one_in_one_piece(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Written hour by hour, then rewritten with the newest hour in the first file.

    In pieces the older hours are late, and in the table of late rows; as one micro-batch, or by
    commits from the first on, none is.
    """
    table = tmp_path / "events"
    at = F.col("id") * (3_600 // ROWS) + 1_700_000_000
    events = spark.range(HOURS * ROWS).select(
        F.lit(0).alias("p"),
        (F.col("id") % 3).cast("int").alias("k"),
        F.timestamp_seconds(at).alias("ts"),
        F.col("id").alias("v"),
    )
    hours = [events.where(f"v DIV {ROWS} = {n}").coalesce(1) for n in range(HOURS)]
    for hour in hours:
        hour.write.format("delta").mode("append").save(str(table))
    again = tmp_path / "again"
    for hour in reversed(hours):
        hour.write.format("delta").mode("append").save(str(again))
    rows = events.toPandas()
    rows["w"] = pd.to_datetime(rows["ts"]).dt.tz_localize("UTC").dt.floor(f"{WINDOW}s")
    due = rows.groupby(["k", "w"])["v"].agg(n="count", total="sum").reset_index()

    found, late = run(spark, again, tmp_path / "pieces", maxFilesPerTrigger="1")
    behind = rows_of(tmp_path / "pieces" / "job" / "late" / "events").to_pandas()
    assert 0 < late == len(behind) < HOURS * ROWS
    assert found["n"].sum() + late == HOURS * ROWS
    for place, source, options in (
        ("whole", again, {}),
        ("commits", table, {"startingVersion": "0", "maxFilesPerTrigger": "1"}),
    ):
        found, late = run(spark, source, tmp_path / place, **options)
        assert late == 0
        assert_same_rows(found, due, ["k", "w"])
