"""What checkpoints cost a saturated stage: the same job with none, one every 10 s, one every 3 s.

A running sum over 100,000 uniform keys, 50,000 rows a micro-batch, on the cores of this machine.
Prints rows per second over the same time of each run, and the ratio to the run without checkpoints;
figures are for this machine and this run only.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

import absflow

KEYS, ROWS, WARM_S, MEASURED_S = 100_000, 50_000, 15, 60
INTERVALS = ("1h", "10s", "3s")


def add(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """A running sum per key."""
    total = np.zeros(state.num_rows, dtype=np.int64)
    np.add.at(total, context.key_of_row, rows["v"].to_numpy())
    total += state["total"].fill_null(0).to_numpy()
    table = pa.table({"k": state["k"], "total": total})
    return absflow.Result(output=table, state=table)


def session() -> SparkSession:
    """A session on two cores, as conf/flights.conf has it."""
    conf = {
        "spark.master": "local[2]",
        "spark.driver.memory": "3g",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    builder = SparkSession.builder.appName("checkpoint_overhead")
    for key, value in conf.items():
        builder = builder.config(key, value)
    return configure_spark_with_delta_pip(builder).getOrCreate()


def measure(spark: SparkSession, source: Path, interval: str) -> tuple[float, int]:
    """Rows per second, and checkpoints completed, in the time that is measured."""
    with tempfile.TemporaryDirectory() as root:
        spark.conf.set("spark.absflow.storage.path", f"{root}/job")
        spark.conf.set("spark.absflow.checkpoint.interval", interval)
        spark.conf.set("spark.absflow.key-groups", "16")
        job = absflow.Job("overhead", spark)
        reader = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
        rows = job.source("rows", reader.parquet(str(source)))
        output = "k long, total long"
        sums = job.stage("sums", rows, key="k", state="total long", output=output, process=add)
        job.sink("out", sums, absflow.DeltaSink(f"{root}/out"))
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
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(200):
            table = pa.table(
                {"k": random.integers(0, KEYS, ROWS), "v": random.integers(0, 9, ROWS)}
            )
            pq.write_table(table, Path(folder) / f"{number:04d}.parquet")
        spark = session()
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
