"""A stop may let every timer fire that is set, and the job can go on from it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, rows_of, stage_of
from session import settings
from windows import EVENTS, SETTINGS, WINDOW, windows

import absflow

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def write(root: Path, number: int) -> pd.DataFrame:
    """A file of half an hour's events, all of them on time; it begins where the one before ends."""
    dice = np.random.default_rng(number)
    at = 1_700_000_400 + number * 1_800 + dice.integers(0, 1_800, 200)
    rows = pd.DataFrame({
        "p": np.zeros(200, dtype=np.int32),
        "k": dice.integers(0, 5, 200).astype(np.int32),
        "ts": pd.to_datetime(at, unit="s", utc=True),
        "v": dice.integers(0, 100, 200),
    })  # fmt: skip
    fields = [("p", pa.int32()), ("k", pa.int32()), ("ts", pa.timestamp("us", "UTC"))]
    schema = pa.schema([*fields, ("v", pa.int64())])
    file = root / "events" / f"{number}.parquet"
    file.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pandas(rows, schema, preserve_index=False), file)
    os.utime(file, (1_000_000 + number,) * 2)
    return rows


def run_and_stop(spark: SparkSession, root: Path, rows: int, *, fire: bool) -> None:
    """The job until it has read so many rows, and its stop with drain."""
    with settings(spark, {"storage.path": str(root / "job"), **SETTINGS}):
        frame = spark.readStream.schema(EVENTS).parquet(str(root / "events"))
        run = windows(spark, root, frame).start()
        while run.progress().stages["windows"].total_rows < rows:
            assert not run.await_termination(timeout=0.2)
        with pytest.raises(ValueError, match="nothing may come behind the savepoint; drain, too"):
            run.stop(savepoint=True, fire_timers=True)
        run.stop(savepoint=True, drain=True, fire_timers=fire)


def test_a_stop_that_fires_all_timers_and_the_job_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Windows and the days of them, though the watermark is an hour behind; W stays where it is."""
    parts = []
    for number in (0, 1):
        parts.append(write(tmp_path, number))
        if number == 0:  # a drain alone fires nothing
            run_and_stop(spark, tmp_path, 200, fire=False)
            assert rows_of(tmp_path / "windows").num_rows == 0
        run_and_stop(spark, tmp_path, 200 * number, fire=True)
        events = pd.concat(parts)
        begin = events["ts"].dt.floor(f"{WINDOW}s")
        due = events.assign(w=begin).groupby(["k", "w"])["v"].agg(n="count", total="sum")
        found = rows_of(tmp_path / "windows").to_pandas()
        assert_same_rows(found, due.reset_index(), ["k", "w"])
        last = completed(spark, tmp_path / "job")[-1]
        assert absflow.history(spark, str(tmp_path / "job")).state("days").isEmpty()
        said = pd.Timestamp(stage_of(last, "days")["watermark"])
        assert said == events["ts"].max() - pd.Timedelta("1h") - pd.Timedelta("1us")
    days = rows_of(tmp_path / "days").to_pandas()
    assert days["n"].sum() == 400
