"""What checkpoints cost a saturated stage: the same job with none, one every 10 s, one every 3 s.

A running sum over 100,000 uniform keys, 50,000 rows a micro-batch, on the cores of this machine.
Prints rows per second over the same time of each run, and the ratio to the run without checkpoints;
figures are for this machine and this run only.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _running_sum import configure, session, sums
from pyspark.sql import SparkSession

KEYS, ROWS, WARM_S, MEASURED_S = 100_000, 50_000, 15, 60
INTERVALS = ("1h", "10s", "3s")


def measure(spark: SparkSession, source: Path, interval: str) -> tuple[float, int]:
    """Rows per second, and checkpoints completed, in the time that is measured."""
    with tempfile.TemporaryDirectory() as root:
        configure(
            spark,
            {"storage.path": f"{root}/job", "checkpoint.interval": interval, "key-groups": "16"},
        )
        reader = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
        job = sums("overhead", spark, reader.parquet(str(source)), f"{root}/out")
        run = job.start()
        run.await_termination(timeout=WARM_S)
        before, since = run.progress(), time.monotonic()
        run.await_termination(timeout=MEASURED_S)
        after, took = run.progress(), time.monotonic() - since
        run.stop()
    rows_read = after.stages["sums"].total_rows - before.stages["sums"].total_rows
    return rows_read / took, after.completed - before.completed


def main() -> None:
    """Run each interval once, in one session."""
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(200):
            table = pa.table(
                {"k": random.integers(0, KEYS, ROWS), "v": random.integers(0, 9, ROWS)}
            )
            pq.write_table(table, Path(folder) / f"{number:04d}.parquet")
        spark = session("checkpoint_overhead")
        measure(spark, Path(folder), INTERVALS[0])  # the first run of a JVM is slow
        plain: float | None = None
        print(f"{'interval':>9} {'rows/s':>9} {'completed':>10} {'ratio':>6}")
        for interval in INTERVALS:
            speed, completed = measure(spark, Path(folder), interval)
            plain = plain or speed
            print(f"{interval:>9} {speed:>9,.0f} {completed:>10} {speed / plain:>6.2f}")
        spark.stop()


if __name__ == "__main__":
    main()
