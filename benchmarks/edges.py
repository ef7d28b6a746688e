"""What an edge costs: one stage, and two stages with a channel or a direct edge between them.

``python benchmarks/edges.py [--runs N] [--seconds S] [--write]``. A running sum by one key, then by
another, 16 key groups, a checkpoint every 10 s, on the cores of this machine. Two things are
measured, each shape in turn, so many times:

- throughput: rows per second of a job that always has more to read than a batch of 50,000 rows
  takes;
- latency: a file every quarter of a second, at half of the throughput that two stages with a
  channel have. A row's latency is from the moment at which its file is there to that at which the
  commit of the sink that holds it is: the modification times of the file and of the entry in
  Delta's log. p50 and p99 are over the rows of a run.

Prints medians over the runs; with ``--write`` the figures go to ``docs/figures``. They are for this
machine and this run only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _results import Results
from _running_sum import configure, session
from pyspark.sql import SparkSession

import absflow

KEYS, GROUPS, ROWS, FILES, WARM_S = 100_000, 1_000, 50_000, 400, 15
EVERY_S = 0.25


class Shape(NamedTuple):
    """How many stages, and what is between them."""

    stages: int
    edges: str


ONE, CHANNEL, DIRECT = "one stage", "two stages, channel", "two stages, direct edge"
SHAPES = {ONE: Shape(1, "channel"), CHANNEL: Shape(2, "channel"), DIRECT: Shape(2, "direct")}


def add(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Add up by the stage's key, and hand every row on."""
    total = state["total"].fill_null(0).to_numpy().copy()
    np.add.at(total, context.key_of_row, rows["v"].to_numpy())
    key = state.column_names[0]
    return absflow.Result(output=rows, state=pa.table({key: state[key], "total": total}))


def job(spark: SparkSession, source: Path, root: str, stages: int, files: int) -> absflow.Job:
    """``v`` by ``k``, and if there are two stages by ``g``; so many files a micro-batch."""
    made, columns = absflow.Job("edges", spark), "k long, g long, v long"
    reader = spark.readStream.schema(columns).option("maxFilesPerTrigger", files)
    last = made.source("rows", reader.parquet(str(source)))
    for name, key in [("first", "k"), ("second", "g")][:stages]:
        last = made.stage(name, last, key=key, state="total long", output=columns, process=add)
    made.sink("out", last, absflow.DeltaSink(f"{root}/out"))
    return made


@contextmanager
def running(
    spark: SparkSession, source: Path, shape: Shape, files: int
) -> Iterator[tuple[absflow.Run, Path]]:
    """The job, and where its sink is."""
    with tempfile.TemporaryDirectory() as root:
        settings = {"storage.path": f"{root}/job", "key-groups": "16", "edges": shape.edges}
        configure(spark, {**settings, "checkpoint.interval": "10s"})
        run = job(spark, source, root, shape.stages, files).start()
        try:
            yield run, Path(root) / "out"
        finally:
            run.stop()


def write(path: Path, random: np.random.Generator, rows: int) -> None:
    """A file that is there whole or not at all."""
    columns = {"k": KEYS, "g": GROUPS, "v": 9}
    table = pa.table({name: random.integers(0, upto, rows) for name, upto in columns.items()})
    aside = path.with_name(f".{path.name}")
    pq.write_table(table, aside)
    aside.rename(path)


def throughput(spark: SparkSession, source: Path, shape: Shape, seconds: float) -> float:
    """Rows that came to the sink in a second."""
    with running(spark, source, shape, files=1) as (run, sink):
        run.await_termination(timeout=WARM_S)
        before, since = len(commits(sink)), time.monotonic()
        run.await_termination(timeout=seconds)
        took = time.monotonic() - since
        written = commits(sink)[before:]
    return sum(rows for _, rows in written) / took


def latency(
    spark: SparkSession, shape: Shape, rate: float, seconds: float
) -> tuple[float, float, int]:
    """p50 and p99 in ms, and how many rows were measured."""
    rows = int(rate * EVERY_S)
    with tempfile.TemporaryDirectory() as folder:
        source, stop = Path(folder), threading.Event()
        random = np.random.default_rng(2)
        written_at: list[float] = []

        def feed() -> None:
            begin = time.monotonic()
            while not stop.wait(max(0, begin + len(written_at) * EVERY_S - time.monotonic())):
                write(source / f"{len(written_at):06d}.parquet", random, rows)
                written_at.append(time.time())

        write(source / "0-first.parquet", random, rows)
        with running(spark, source, shape, files=1000) as (run, sink):
            run.await_termination(timeout=WARM_S)
            first = sum(count for _, count in commits(sink))
            feeder = threading.Thread(target=feed)
            feeder.start()
            run.await_termination(timeout=seconds)
            stop.set()
            feeder.join()
            deadline = time.monotonic() + 60
            due = first + rows * len(written_at)
            while (done := sum(count for _, count in commits(sink))) < due:
                if time.monotonic() > deadline:
                    raise SystemExit(f"{shape}: {due - done:,} of {due:,} rows have not come")
                run.await_termination(timeout=0.2)
            arrived = commits(sink)
    # Files are read in order, so the n-th row out is of the file that holds the n-th row in.
    edges = np.cumsum([count for _, count in arrived])
    numbers = np.arange(first, due)
    out = np.array([at for at, _ in arrived])[np.searchsorted(edges, numbers, side="right")]
    into = np.array(written_at)[(numbers - first) // rows]
    took = (out - into) * 1000
    settled = took[rows * 4 :]  # the first second
    return float(np.percentile(settled, 50)), float(np.percentile(settled, 99)), len(settled)


def commits(table: Path) -> list[tuple[float, int]]:
    """When each commit that added rows was there, s since 1970, and how many rows it added."""
    found = []
    for entry in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        stats = [json.loads(a["add"]["stats"]) for a in actions if "add" in a]
        if stats:
            found.append((entry.stat().st_mtime, sum(s["numRecords"] for s in stats)))
    return found


def main(runs: int, seconds: float, keep: bool) -> None:
    """Throughput of each shape in turn, then latency of each in turn."""
    case = f"saturated, {ROWS:,} rows a micro-batch, {KEYS:,} keys"
    speeds = Results("edges", "rows/s", (CHANNEL,), {case: {name: [] for name in SHAPES}})
    spark = session("edges")
    with tempfile.TemporaryDirectory() as folder:
        random = np.random.default_rng(1)
        for number in range(FILES):
            write(Path(folder) / f"{number:06d}.parquet", random, ROWS)
        throughput(spark, Path(folder), SHAPES[CHANNEL], 5)  # the first run of a JVM is slow
        for _ in range(runs):
            for name, shape in SHAPES.items():
                speed = throughput(spark, Path(folder), shape, seconds)
                speeds.runs[case][name].append(speed)
                print(f"{name:<24} {speed:>9,.0f} rows/s", flush=True)
    speeds.show(case)
    middle = speeds.median(case, CHANNEL)
    assert middle is not None
    rate = middle / 2
    cases = [f"{p}, {rate:,.0f} rows/s" for p in ("p50", "p99")]
    delays = Results("latency", "ms", (CHANNEL,), {c: {name: [] for name in SHAPES} for c in cases})
    for _ in range(runs):
        for name, shape in SHAPES.items():
            p50, p99, count = latency(spark, shape, rate, seconds)
            for measured, value in zip(cases, (p50, p99), strict=True):
                delays.runs[measured][name].append(value)
            print(
                f"{name:<24} {p50:>7,.0f} ms p50, {p99:>7,.0f} ms p99, {count:,} rows", flush=True
            )
    spark.stop()
    for measured in cases:
        delays.show(measured)
    if keep:
        speeds.write()
        delays.write()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What a channel costs, and a direct edge.")
    parser.add_argument("--runs", type=int, default=5, help="of each shape")
    parser.add_argument("--seconds", type=float, default=30, help="of a run")
    parser.add_argument("--write", action="store_true", help="the figures into docs/figures")
    given = parser.parse_args()
    main(given.runs, given.seconds, given.write)
