"""Windows beside Spark's own ``groupBy(window())``: the same files, the same delay, and pandas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from reading import assert_same_rows, completed, rows_of, stage_of
from session import settings
from windows import DELAY_S, EVENTS, SETTINGS, WINDOW, windows, write_frames

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FILES, ROWS = 6, 200
LAST = pd.Timestamp("2026-12-31", tz="UTC")


def events(lag_s: int) -> list[pd.DataFrame]:
    """Files in the order of time, half of each from a partition that is so far behind.

    The last has one row of each partition, behind everything: it ends the windows before.
    """
    dice = np.random.default_rng(3)
    made = []
    for number in range(FILES):
        partition = np.arange(ROWS) % 2
        at = 1_700_000_000 + number * 1_800 + np.sort(dice.integers(0, 1_800, ROWS))
        made.append(
            pd.DataFrame({
                "p": partition,
                "k": dice.integers(0, 4, ROWS),
                "ts": pd.to_datetime(at - lag_s * partition, unit="s", utc=True),
                "v": dice.integers(0, 100, ROWS),
            })
        )  # fmt: skip
    return [*made, pd.DataFrame({"p": [0, 1], "k": 9, "ts": LAST, "v": 0})]


def truth(files: list[pd.DataFrame]) -> pd.DataFrame:
    """What pandas makes of all rows; without the window of the last file."""
    rows = pd.concat(files[:-1])
    rows["w"] = rows["ts"].dt.floor(f"{WINDOW}s")
    return rows.groupby(["k", "w"])["v"].agg(n="count", total="sum").reset_index()


def of_absflow(spark: SparkSession, root: Path) -> tuple[pd.DataFrame, int]:
    """The windows of a job over the files, and how many rows were late."""
    with settings(spark, {"storage.path": str(root / "job"), **SETTINGS}):
        assert windows(spark, root).start().await_termination(timeout=300)
    found = rows_of(root / "windows").to_pandas()
    counts = [stage_of(row, "windows")["late_rows"] for row in completed(spark, root / "job")]
    return found[found["k"] != 9], sum(counts)


def of_spark(spark: SparkSession, root: Path) -> tuple[pd.DataFrame, int]:
    """The windows of Spark's own query, and how many rows it has dropped."""
    files = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
    rows = files.parquet(str(root / "events")).withWatermark("ts", f"{DELAY_S} seconds")
    groups = rows.groupBy("k", F.window("ts", f"{WINDOW} seconds"))
    counts = groups.agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    out = counts.select("k", F.col("window.start").alias("w"), "n", "total")
    writer = out.writeStream.format("delta").outputMode("append").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(root / "work")).start(str(root / "spark"))
    query.awaitTermination()
    dropped = sum(
        operator["numRowsDroppedByWatermark"]
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    )
    return rows_of(root / "spark").to_pandas(), dropped


def test_in_order_both_count_what_pandas_counts(spark: SparkSession, tmp_path: Path) -> None:
    files = events(lag_s=0)
    write_frames(tmp_path / "events", files)
    due = truth(files)
    for found, gone in (of_absflow(spark, tmp_path), of_spark(spark, tmp_path)):
        assert_same_rows(found, due, ["k", "w"])
        assert gone == 0


@pytest.mark.soak
def test_trap_1_a_partition_that_lags_is_counted_here_and_dropped_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It is three hours behind, with a delay of one: Spark goes by the newest row of all.

    It drops the partition's rows from the third file on, for its filter goes by the watermark of
    the micro-batch before, and gives no row for most of their windows. Only a figure of the query
    says so.
    """
    files = events(lag_s=3 * DELAY_S)
    write_frames(tmp_path / "events", files)
    due = truth(files)
    found, late = of_absflow(spark, tmp_path)
    assert_same_rows(found, due, ["k", "w"])
    assert late == 0
    few, dropped = of_spark(spark, tmp_path)
    behind = sum(int((rows["p"] == 1).sum()) for rows in files[2:-1])
    assert dropped > 0
    assert due["n"].sum() - few["n"].sum() == behind
    assert len(few) < len(due)
