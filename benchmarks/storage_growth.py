"""What a job stores as it grows older: files and bytes below its storage root, table by table.

A tiny job of two stages and a channel takes a checkpoint every 2 s, keeps the newest 10, and
compacts lineages of more than 5 sets. Retention, which else looks once a minute and rests nine
times as long as it worked, hurries as the checkpoints do. Files that it has taken out of a table
stay for a while (so that readers can end), so a run of minutes shows what is *live* beside what
lies there. ``python benchmarks/storage_growth.py [CHECKPOINTS [EVERY]]``; figures are for this
machine and this run only.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from _quick import usual
from _running_sum import configure, session
from pyspark.sql import SparkSession

import absflow
from absflow.spark.control import retention

SETTINGS = {
    "checkpoint.interval": "2s",
    "checkpoint.max-concurrent": "4",  # a micro-batch settles several of them
    "checkpoint.retained": "10",
    "lineage.max-sets": "5",
    "edges": "channel",
    "key-groups": "2",
}


def keep(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """The last value of each key."""
    last = dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
    values = [last.get(k, v) for k, v in zip(*(state[c].to_pylist() for c in "kv"), strict=True)]
    table = pa.table({"k": state["k"], "v": pa.array(values, pa.int64())})
    return absflow.Result(output=table, state=table)


def start(spark: SparkSession, root: str) -> absflow.Run:
    """The job, under way."""
    configure(spark, {**SETTINGS, "storage.path": f"{root}/job"})
    job = absflow.Job("growth", spark)
    reader = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    rows = job.source("rows", reader.selectExpr("value % 100 AS k", "value AS v"))
    shape = "k long, v long"
    first = job.stage("first", rows, key="k", state="v long", output=shape, process=keep)
    second = job.stage("second", first, key="k", state="v long", output=shape, process=keep)
    job.sink("out", second, absflow.DeltaSink(f"{root}/out"))
    return job.start()


def measured(root: Path) -> Iterator[tuple[str, int, int, int]]:
    """(table, live files, data files, bytes) of each table and directory below the root."""
    from deltalake import DeltaTable

    logs = sorted(root.rglob("_delta_log"))
    for log in logs:
        table = log.parent
        files = [p for p in table.rglob("*") if p.is_file()]
        data = [p for p in files if p.suffix == ".parquet" and log not in p.parents]
        size = sum(map(_size, files))
        live = len(DeltaTable(str(table)).file_uris())
        yield str(table.relative_to(root)), live, len(data), size
    for name in ("work", "positions"):
        files = [p for p in (root / name).rglob("*") if p.is_file()]
        yield name, len(files), len(files), sum(map(_size, files))


def _size(file: Path) -> int:
    """In bytes; 0 if the job has deleted it in the meantime."""
    with suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


def main(checkpoints: int, every: int) -> None:
    """Run the job, and print what there is after every so many checkpoints."""
    retention.EVERY, retention.REST = 5.0, 1.0
    spark = session("storage_growth")
    with tempfile.TemporaryDirectory() as root:
        run = start(spark, root)
        print(f"{'checkpoints':>11} {'table':<30} {'live':>6} {'files':>6} {'kB':>8}")
        try:
            for due in range(every, checkpoints + 1, every):
                while run.progress().completed < due and run.is_active:
                    time.sleep(0.2)
                for table, live, files, size in measured(Path(root) / "job"):
                    print(f"{due:>11} {table:<30} {live:>6} {files:>6} {size / 1000:>8,.0f}")
        finally:
            run.stop()
    spark.stop()


if __name__ == "__main__":
    main(
        *(
            int(text)
            for text in (*sys.argv[1:], *usual(("500", "50"), ("12", "6"))[len(sys.argv) - 1 :])
        )
    )
