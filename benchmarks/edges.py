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

import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _pipeline import commits, running, throughput, write
from _quick import QUICK, usual
from _results import Results, arguments
from _running_sum import session
from pyspark.sql import SparkSession

KEYS, ROWS, FILES = 100_000, 50_000, 400
EVERY_S = 0.25


class Shape(NamedTuple):
    """How many stages, and what is between them."""

    stages: int
    edges: str

    def settings(self) -> dict[str, str]:
        """Of a job of this shape."""
        return {"key-groups": "16", "edges": self.edges}


ONE, CHANNEL, DIRECT = "one stage", "two stages, channel", "two stages, direct edge"
SHAPES = {ONE: Shape(1, "channel"), CHANNEL: Shape(2, "channel"), DIRECT: Shape(2, "direct")}


def latency(
    spark: SparkSession, shape: Shape, rate: float, seconds: float
) -> tuple[float, float, int]:
    """p50 and p99 in ms, and of how many rows."""
    rows = int(rate * EVERY_S)
    with tempfile.TemporaryDirectory() as folder:
        source, stop = Path(folder), threading.Event()
        random = np.random.default_rng(2)
        written_at: list[float] = []

        def feed() -> None:
            begin = time.monotonic()
            while not stop.wait(max(0, begin + len(written_at) * EVERY_S - time.monotonic())):
                write(source / f"{len(written_at):06d}.parquet", random, rows, KEYS)
                written_at.append(time.time())

        write(source / "0-first.parquet", random, rows, KEYS)
        settings = shape.settings()
        with running(spark, source, settings, stages=shape.stages, files=1000) as (run, sink):
            while (first := sum(count for _, count in commits(sink))) < rows:
                run.await_termination(timeout=0.2)
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
    settled = took[rows * 4 :]  # without the first second
    return float(np.percentile(settled, 50)), float(np.percentile(settled, 99)), len(settled)


def main(runs: int, seconds: float, keep: bool) -> None:
    """Throughput of each shape in turn, then latency of each in turn."""
    case = f"saturated, {ROWS:,} rows a micro-batch, {KEYS:,} keys"
    speeds = Results("edges", "rows/s", (CHANNEL,), {case: {name: [] for name in SHAPES}})
    spark = session("edges")
    with tempfile.TemporaryDirectory() as folder:
        random = np.random.default_rng(1)
        for number in range(FILES):
            write(Path(folder) / f"{number:06d}.parquet", random, ROWS, KEYS)
        for turn in range(runs + 1):
            for name, shape in SHAPES.items():
                if turn == 0 and QUICK and name != CHANNEL:
                    continue
                settings, stages = shape.settings(), shape.stages
                with running(spark, Path(folder), settings, stages=stages, files=1) as at:
                    speed = throughput(*at, seconds)
                if turn == 0:
                    continue  # in a JVM's first jobs much is compiled
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
    parser = arguments("What a channel costs, and a direct edge.", "of each shape")
    parser.add_argument("--seconds", type=float, default=usual(30, 5), help="of a run")
    given = parser.parse_args()
    main(given.runs, given.seconds, given.write)
