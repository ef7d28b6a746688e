"""What checkpoints cost a saturated stage: the same job with none, and with one every so often.

``python benchmarks/checkpoint_overhead.py [--runs N] [--seconds S] [--write]``. A running sum over
100,000 uniform keys, 50,000 rows a micro-batch, on the cores of this machine. A run is rows per
second over so many seconds of a job that has warmed up; the intervals take turns. Prints medians,
and the ratio to the job without checkpoints; with ``--write`` the figures go to ``docs/figures``.
They are for this machine and this run only.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _results import Results, arguments
from _running_sum import configure, session, sums
from pyspark.sql import SparkSession

KEYS, ROWS, FILES, WARM_S = 100_000, 50_000, 400, 15
NONE = "no checkpoint"
INTERVALS = {NONE: "1h", "every 60 s": "60s", "every 10 s": "10s", "every 3 s": "3s"}


def measure(spark: SparkSession, source: Path, interval: str, seconds: float) -> tuple[float, int]:
    """Rows per second, and checkpoints completed, in the time that is measured."""
    with tempfile.TemporaryDirectory() as root:
        configure(
            spark,
            {"storage.path": f"{root}/job", "checkpoint.interval": interval, "key-groups": "16"},
        )
        reader = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
        run = sums("overhead", spark, reader.parquet(str(source)), f"{root}/out").start()
        run.await_termination(timeout=WARM_S)
        before, since = run.progress(), time.monotonic()
        run.await_termination(timeout=seconds)
        after, took = run.progress(), time.monotonic() - since
        run.stop()
    rows_read = after.stages["sums"].total_rows - before.stages["sums"].total_rows
    return rows_read / took, after.completed - before.completed


def main(runs: int, seconds: float, write: bool) -> None:
    """The intervals in turn, in one session."""
    random = np.random.default_rng(1)
    case = f"{KEYS:,} keys, {seconds:g} s a run"
    results = Results("overhead", "rows/s", (NONE,), {case: {name: [] for name in INTERVALS}})
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            table = {"k": random.integers(0, KEYS, ROWS), "v": random.integers(0, 9, ROWS)}
            pq.write_table(pa.table(table), Path(folder) / f"{number:04d}.parquet")
        spark = session("checkpoint_overhead")
        measure(spark, Path(folder), INTERVALS[NONE], 60)  # a JVM compiles for long
        for _ in range(runs):
            for name, interval in INTERVALS.items():
                speed, completed = measure(spark, Path(folder), interval, seconds)
                results.runs[case][name].append(speed)
                print(f"{name:<14} {speed:>9,.0f} rows/s, {completed} completed", flush=True)
        spark.stop()
    results.show(case)
    if write:
        results.write()


if __name__ == "__main__":
    parser = arguments("What checkpoints cost a saturated stage.", "of each interval")
    parser.add_argument("--seconds", type=float, default=60, help="of a run")
    given = parser.parse_args()
    main(given.runs, given.seconds, given.write)
