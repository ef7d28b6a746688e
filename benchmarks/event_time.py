"""What event time and timers add to a micro-batch: a job without, with a watermark, with timers.

``python benchmarks/event_time.py [--keys N] [--batches N] [--runs N]``. A stage adds up 100,000
rows of each micro-batch by key; first every key comes once, then random ones. With timers each key
has one that is due in every hundredth micro-batch, and sets its next; so one in a hundred keys is
due. The variants run in turns in one session; the figures are of micro-batches behind the first
round of keys, and are compared within a run only.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _quick import usual
from _running_sum import add, configure, session
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

import absflow

ROWS = 100_000
STEP_US = 60_000_000  # event time from one micro-batch to the next
DUE_EVERY = 100
VARIANTS = ("without", "watermark", "timers")


def write_files(folder: Path, keys: int, batches: int) -> int:
    """A file for each micro-batch; how many of them have keys that are new."""
    folder.mkdir()
    dice, first = np.random.default_rng(5), -(-keys // ROWS)
    for number in range(first + batches):
        k = np.arange(number * ROWS, (number + 1) * ROWS) % keys
        if number >= first:
            k = dice.integers(0, keys, ROWS)
        at = np.full(ROWS, 1_700_000_000_000_000 + number * STEP_US)
        ts = pa.array(at).cast(pa.timestamp("us", tz="UTC"))
        rows = pa.table({"k": k, "v": dice.integers(0, 9, ROWS), "ts": ts})
        pq.write_table(rows, folder / f"{number}.parquet")
        os.utime(folder / f"{number}.parquet", (number + 1, number + 1))
    return first


def with_timers(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """The running sum; a key that is new sets its first timer."""
    result = add(rows, state, context)
    new = pa.array(context.is_new)
    keys = state["k"].filter(new)
    now = rows["ts"].cast(pa.int64())[0].as_py()
    at = now + (keys.to_numpy() % DUE_EVERY + 1) * STEP_US
    timers = pa.table({"k": keys, "time": pa.array(at).cast(pa.timestamp("us", tz="UTC"))})
    return absflow.Result(result.output, result.state, timers=timers)


def next_timer(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Set the next one."""
    at = rows["time"].cast(pa.int64()).to_numpy() + DUE_EVERY * STEP_US
    time = pa.array(at).cast(pa.timestamp("us", tz="UTC"))
    return absflow.Result(timers=pa.table({"k": rows["k"], "time": time}))


def run(spark: SparkSession, source: Path, variant: str) -> None:
    """One variant to the end of its files."""
    with tempfile.TemporaryDirectory() as root:
        configure(spark, {"storage.path": f"{root}/job", "key-groups": "16"})
        frame = spark.readStream.schema("k long, v long, ts timestamp")
        rows = frame.option("maxFilesPerTrigger", 1).parquet(str(source))
        timed: dict[str, Any] = {"event_time": "ts"} if variant != "without" else {}
        timers: dict[str, Any] = {"on_timer": next_timer} if variant == "timers" else {}
        job = absflow.Job(f"time-{variant}", spark)
        stage = job.stage(
            "sums",
            job.source("rows", rows, bounded=True, **timed),
            key="k",
            state="total long",
            output="k long, total long",
            process=with_timers if timers else add,
            **timers,
        )
        job.sink("out", stage, absflow.DeltaSink(f"{root}/out"))
        job.start().await_termination()


class Durations(StreamingQueryListener):
    """How long each micro-batch with rows took, ms, by variant."""

    def __init__(self, first: int) -> None:
        """Of those behind the first so many."""
        self._first = first
        self.of: dict[str, list[int]] = defaultdict(list)

    def onQueryStarted(self, event: Any) -> None:
        """Nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """One micro-batch."""
        progress = event.progress
        if progress.numInputRows >= ROWS and progress.batchId > self._first + 2:
            variant = progress.name.partition("/")[0].removeprefix("time-")
            self.of[variant].append(progress.durationMs["triggerExecution"])

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing."""


def main() -> None:
    """Run the variants in turns, and print their medians."""
    parser = argparse.ArgumentParser(description="What event time and timers add to a batch.")
    parser.add_argument("--keys", type=int, default=usual(1_000_000, 100_000))
    parser.add_argument("--batches", type=int, default=usual(30, 10))
    parser.add_argument("--runs", type=int, default=usual(3, 1))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "rows"
        first = write_files(source, asked.keys, asked.batches)
        spark = session("event-time", "6g")
        durations = Durations(first)
        spark.streams.addListener(durations)
        run(spark, source, "without")  # a JVM compiles what it runs often
        durations.of.clear()
        for _ in range(asked.runs):
            for variant in VARIANTS:
                run(spark, source, variant)
        base = median(durations.of["without"])
        for variant in VARIANTS:
            took = durations.of[variant]
            print(
                f"{variant:<10} {median(took):7.0f} ms a micro-batch of {ROWS:,} rows, "
                f"{median(took) / base:.2f} x; {len(took)} of them"
            )
        spark.stop()


if __name__ == "__main__":
    main()
