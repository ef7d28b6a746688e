"""How throughput goes with the size of things: micro-batch, key groups, keys, stages.

``python benchmarks/scaling.py [--only NAME ...] [--runs N] [--seconds S] [--write]``. The job of
``_pipeline.py``, saturated, with a checkpoint every 10 s; one thing is changed at a time, from one
stage, 100,000 keys, micro-batches of 50,000 rows and 16 key groups. Several stages run in a query
each, with channels, and in one, with direct edges. A run is rows per second at the sink over so
many seconds of a job that has warmed up; the values of a thing take turns. Prints medians; with
``--write`` the figures go to ``docs/figures``. They are for this machine and this run only.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from _pipeline import running, throughput, write
from _quick import usual
from _results import Results, arguments
from _running_sum import session
from pyspark.sql import SparkSession

MOST_ROWS = usual(20_000_000, 4_000_000)


@dataclass(frozen=True)
class Point:
    """What a run is of."""

    rows: int = 50_000
    key_groups: int = 16
    keys: int = 100_000
    stages: int = 1
    edges: str = "channel"


BASE = Point()
SERIES = {
    "rows in a micro-batch": {
        f"{n:,}": replace(BASE, rows=n) for n in (5_000, 50_000, 200_000, 800_000)
    },
    "key groups": {f"{n}": replace(BASE, key_groups=n) for n in (2, 16, 64, 256)},
    "keys": {f"{n:,}": replace(BASE, keys=n) for n in (1_000, 100_000, 1_000_000, 5_000_000)},
    "stages": {
        f"{n}, {edges}": replace(BASE, stages=n, edges=edges)
        for n in (1, 2, 4, 8)
        for edges in ("channel", "auto")
        if n > 1 or edges == "channel"
    },
}


def given_rows(folder: Path, point: Point) -> Path:
    """The files that a run reads; they are written once."""
    files = folder / f"{point.rows}-{point.keys}"
    if not files.exists():
        files.mkdir()
        random = np.random.default_rng(1)
        for number in range(min(400, MOST_ROWS // point.rows)):
            write(files / f"{number:06d}.parquet", random, point.rows, point.keys)
    return files


def measure(spark: SparkSession, point: Point, source: Path, seconds: float) -> float:
    """Rows per second."""
    settings = {"key-groups": str(point.key_groups), "edges": point.edges}
    with running(spark, source, settings, stages=point.stages, files=1) as (run, sink):
        return throughput(run, sink, seconds)


def main(names: list[str], runs: int, seconds: float, keep: bool) -> None:
    """Each series, its values in turn, as often as there are runs."""
    spark = session("scaling")
    results = Results("scaling", "rows/s")
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        measure(spark, BASE, given_rows(folder, BASE), usual(60, 5))  # a JVM compiles for long
        for _ in range(runs):
            speeds: dict[Point, float] = {}  # the base is a point of every series
            for name in names:
                series = SERIES[name]
                values = [*series]
                few = [value for value in values if series[value] == BASE or value == values[-1]]
                for value in usual(values, few):
                    point = series[value]
                    if point not in speeds:
                        speeds[point] = measure(spark, point, given_rows(folder, point), seconds)
                    results.runs.setdefault(name, {}).setdefault(value, []).append(speeds[point])
                    print(f"{name} {value:<12} {speeds[point]:>9,.0f} rows/s", flush=True)
            if keep:  # now, for all of them take most of an hour
                results.write()
    spark.stop()
    for name in names:
        results.show(name)


if __name__ == "__main__":
    parser = arguments("Throughput by the size of things.", "of each value")
    parser.add_argument("--only", nargs="+", default=[*SERIES], choices=[*SERIES])
    parser.add_argument("--seconds", type=float, default=usual(10, 4), help="of a run")
    given = parser.parse_args()
    main(given.only, given.runs, given.seconds, given.write)
