"""What a job asks of a bucket: requests per micro-batch, per checkpoint and per idle hour.

``python benchmarks/bucket_requests.py [--files N] [--seconds N]``. A job of two stages, with a
channel between them, has its storage root and sink in a bucket of the tests' S3 server, which
counts. First it reads files (of a local disk), without a checkpoint; then it has nothing to read;
then it takes a checkpoint every few seconds. Prints the requests of each phase by what they are
for, and what they would cost at S3's list prices: a count is the same on any machine, so nothing is
measured twice.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from _running_sum import add, configure, session
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import absflow

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "spark"))
from on_store import class_path
from s3_server import S3Server, s3_server

# Dollars for a request (S3 Standard, us-east-1).
DEAR, CHEAP = 0.005 / 1000, 0.0004 / 1000
PRICES = {"PUT": DEAR, "POST": DEAR, "LIST": DEAR, "GET": CHEAP, "HEAD": CHEAP, "DELETE": 0.0}
ROWS = 1000
CHECKPOINT_S = 5
# ``spark.sql.streaming.stateStore.maintenanceInterval``, and time for what it does.
UPKEEP_S = 65


def declare(spark: SparkSession, folder: Path, bucket: str) -> absflow.Job:
    """Two running sums, one behind the other."""
    job = absflow.Job("requests", spark)
    frame = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
    rows = job.source("rows", frame.parquet(str(folder / "rows")))
    given: dict[str, Any] = {"key": "k", "state": "total long", "process": add}
    first = job.stage("first", rows, output="k long, total long", **given)
    again = job.stage("second", first, output="k long, total long", **given | {"process": added})
    job.sink("out", again, absflow.DeltaSink(f"{bucket}/out"))
    return job


def added(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Of the sums that the first stage emits."""
    return add(rows.rename_columns({"total": "v"}), state, context)


def purpose(path: str) -> str:
    """What an object is, by its path without numbers."""
    parts = [*path.strip("/").split("/")[1:], "", ""]
    if parts[0] != "job":
        return "the sink" if parts[0] else "the bucket"
    if parts[1] != "work":
        return f"table {parts[1]}" if parts[1] else "the root"
    rest = parts[2:]
    found = re.search(r"/(spark/\w+|\w+)(/|$)", "/".join(["", *rest[2:]]))
    return f"work: {found[1]}" if found else "work"


def shown(console: Console, title: str, counts: Counter[tuple[str, str]], units: float) -> float:
    """Print the requests of a phase for each of its units; the dollars for one."""
    methods = [method for method in PRICES if any(method == m for m, _ in counts)]
    table = Table(title=title, title_justify="left")
    for name in ("", *methods, "all"):
        table.add_column(name, justify="right" if name else "left")
    by_purpose: dict[str, Counter[str]] = {}
    for (method, path), count in counts.items():
        by_purpose.setdefault(purpose(path), Counter())[method] += count
    for name, found in sorted(by_purpose.items(), key=lambda each: -each[1].total()):
        table.add_row(
            name, *(f"{found[m] / units:.1f}" for m in methods), f"{found.total() / units:.1f}"
        )
    sums = Counter[str]()
    for found in by_purpose.values():
        sums += found
    table.add_row(
        "all", *(f"{sums[m] / units:.1f}" for m in methods), f"{sums.total() / units:.1f}"
    )
    console.print(table)
    return sum(PRICES[method] * count for method, count in sums.items()) / units


def waited(run: absflow.Run, until: Callable[[], bool]) -> None:
    """Until something is so, while the job runs."""
    while not until():
        assert not run.await_termination(timeout=0.5)


def measure(console: Console, spark: SparkSession, server: S3Server, asked: Any) -> None:
    """All phases, and their price."""
    bucket = server.bucket("requests")
    folder = Path(tempfile.mkdtemp(prefix="absflow-requests-"))
    (folder / "rows").mkdir()
    settings = {"storage.path": f"{bucket}/job", "edges": "channel", "key-groups": "16"}
    configure(spark, {**settings, "checkpoint.interval": "1h"})
    server.counts()
    run = declare(spark, folder, bucket).start()
    time.sleep(10)
    shown(console, "a start", server.counts(), 1)
    for number in range(asked.files):
        table = pa.table({"k": pa.array(range(ROWS)), "v": pa.array([1] * ROWS)})
        pq.write_table(table, folder / f"{number}.parquet")
        (folder / f"{number}.parquet").rename(folder / "rows" / f"{number}.parquet")
    due = asked.files * ROWS
    waited(run, lambda: run.progress().stages["second"].total_rows >= due)
    time.sleep(3)
    stages = run.progress().stages.values()
    batch = shown(
        console,
        "a micro-batch",
        server.counts(),
        sum(stage.batch_id + 1 for stage in stages),
    )
    # Once more Spark's state store puts its snapshots behind the last micro-batch.
    time.sleep(UPKEEP_S)
    server.counts()
    time.sleep(asked.seconds)
    counts = server.counts()
    hours = asked.seconds / 3600
    shown(console, "an idle minute", counts, asked.seconds / 60)
    idle = sum(PRICES[m] * n for (m, _), n in counts.items()) / hours
    console.print(f"an idle hour: {counts.total() / hours:,.0f} requests")
    run.stop()
    configure(spark, {**settings, "checkpoint.interval": f"{CHECKPOINT_S}s"})
    run = declare(spark, folder, bucket).start()
    waited(run, lambda: run.progress().completed >= 2)
    server.counts()
    before = run.progress().completed
    time.sleep(asked.seconds)
    taken = run.progress().completed - before
    counts = server.counts()
    run.stop()
    checkpoint = shown(console, "a checkpoint, with a micro-batch of each stage", counts, taken)
    day = 24 * idle + 8640 * checkpoint
    console.print(
        f"$ {batch * 1e6:.0f} for a million micro-batches, {checkpoint * 1e6:.0f} for a million "
        f"checkpoints, {24 * idle:.3f} for an idle day without any, {day:.2f} for one with a "
        "checkpoint every 10 s"
    )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=20, help="files that are read")
    parser.add_argument("--seconds", type=int, default=120, help="how long each other phase takes")
    asked = parser.parse_args()
    console = Console(width=100)
    folder = Path(tempfile.mkdtemp(prefix="absflow-requests-"))
    with s3_server(folder) as server:
        conf = {**server.conf(), "spark.driver.extraClassPath": class_path(folder)}
        spark = session("requests", more=conf)
        measure(console, spark, server, asked)
        spark.stop()


if __name__ == "__main__":
    main()
