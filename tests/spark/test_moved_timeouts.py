"""Sessions that a timeout ends, by one function on Spark and on absflow: the same rows.

The function is called with no rows when the watermark has passed a session's end. Spark does so in
the micro-batch behind the one that moved the watermark, absflow in that one; so that makes a
difference only to who looks at batches, the function ends a session by itself, too, if a row comes
behind its end.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from reading import assert_same_rows, rows_of
from session import settings, spark_conf

import absflow

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(300)]

EVENTS = "user string, at timestamp, v bigint"
STATE = "start timestamp, last timestamp, events bigint, total bigint"
OUTPUT = "user string, start timestamp, last timestamp, events bigint, total bigint"
GAP, DELAY = dt.timedelta(minutes=7), dt.timedelta(minutes=5)
START = dt.datetime(2026, 3, 29, 0, 30, tzinfo=dt.timezone.utc)


def write_events(folder: Path) -> int:
    """Five files of an hour each, with rows that are late; at last one that ends everything."""
    folder.mkdir()
    random = np.random.default_rng(11)
    for number in range(5):
        seconds = np.sort(random.integers(3_600 * number, 3_600 * number + 3_600, 120))
        # So late that they are late to Spark, too, from the third file on: it takes the watermark
        # of the batch before the last (SPARK-40925).
        far = (random.random(120) < 0.05) & (number >= 2)
        seconds = seconds - np.where(
            far, random.integers(9_000, 20_000, 120), random.integers(0, 200, 120)
        )
        users = [f"u{n}" for n in random.integers(0, 9, 120)]
        write(folder / f"{number}.parquet", users, seconds, random.integers(0, 50, 120))
    write(folder / "5.parquet", ["end"], np.array([99 * 3_600]), np.array([1]))
    return 6


def write(file: Path, users: list[str], seconds: Any, values: Any) -> None:
    at = [START + dt.timedelta(seconds=int(s), microseconds=137) for s in seconds]
    times = pa.array(at, pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"user": users, "at": times, "v": pa.array(values, pa.int64())}), file)
    os.utime(file, (1_000_000 + int(file.stem),) * 2)  # Spark reads them in the order of these


def sessions(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """What a user did without a gap of seven minutes."""
    done = []
    start, last, events, total = state.get if state.exists else (None, None, 0, 0)
    if state.hasTimedOut:
        assert sum(len(frame) for frame in frames) == 0
        done.append((key[0], start, last, events, total))
        state.remove()
    else:
        rows = pd.concat(list(frames)).sort_values("at")
        for moment, value in zip(rows["at"], rows["v"], strict=True):
            at = moment.to_pydatetime()
            if last is not None and at > last + GAP:
                done.append((key[0], start, last, events, total))
                start, last, events, total = None, None, 0, 0
            start, last = min(start or at, at), max(last or at, at)
            events, total = events + 1, total + int(value)
        state.update((start, last, events, total))
        due = int((last + GAP).replace(tzinfo=dt.timezone.utc).timestamp() * 1_000)
        state.setTimeoutTimestamp(max(due, state.getCurrentWatermarkMs() + 1))
    if done:
        yield pd.DataFrame(done, columns=["user", "start", "last", "events", "total"])


def on_spark(events: DataFrame, root: Path) -> None:
    timed = events.withWatermark("at", "5 minutes")
    emitted = timed.groupBy("user").applyInPandasWithState(
        sessions, OUTPUT, STATE, "append", GroupStateTimeout.EventTimeTimeout
    )
    writer = emitted.writeStream.format("delta").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(root / "work"))
    assert writer.start(str(root / "spark")).awaitTermination(200)


def on_absflow(spark: SparkSession, events: DataFrame, root: Path) -> None:
    with settings(spark, {"storage.path": str(root / "job"), "key-groups": "3"}):
        job = absflow.Job("sessions", spark)
        declared = absflow.Watermark(delay="5min", late="drop")
        source = job.source("events", events, bounded=True, event_time="at", watermark=declared)
        stage = job.stage(
            "sessions",
            source,
            key="user",
            state=STATE,
            output=OUTPUT,
            process=sessions,
            form="per-key",
            timeout=GroupStateTimeout.EventTimeTimeout,
        )
        job.sink("rows", stage, absflow.DeltaSink(str(root / "absflow")))
        assert job.start().await_termination(timeout=200)


def test_sessions_that_time_out_are_the_same_on_both(spark: SparkSession, tmp_path: Path) -> None:
    """But for the user who came last: absflow lets all time out when bounded sources end."""
    write_events(tmp_path / "events")
    read = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
    events = read.parquet(str(tmp_path / "events"))
    conf = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.codegen.factoryMode": "FALLBACK",
    }
    with spark_conf(spark, conf):
        on_spark(events, tmp_path)
        on_absflow(spark, events, tmp_path)
    found, due = (rows_of(tmp_path / name).to_pandas() for name in ("absflow", "spark"))
    assert set(found["user"]) - set(due["user"]) == {"end"}
    found = found[found["user"] != "end"]
    assert len(due) > 60
    assert_same_rows(found, due, ["user", "start"])
