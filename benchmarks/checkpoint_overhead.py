"""What checkpoints cost a saturated stage: the same job with none, and with one every so often.

``python benchmarks/checkpoint_overhead.py [--runs N] [--seconds S] [--write]``. A running sum over
100,000 uniform keys, 50,000 rows a micro-batch, on the cores of this machine. A run is so many
seconds of a job that has warmed up; the intervals take turns. Two things are measured:

- rows per second of the whole run, and the ratio to the job without checkpoints. It contains all
  that checkpoints cost, and how the machine differs from one run to the next, which is more;
- within a run, what micro-batches took longer while a checkpoint was on its way, from its trigger
  to its completion, than the others of that run: as a share of the run's time.

Prints medians; with ``--write`` the figures go to ``docs/figures``. They are for this machine and
this run only.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _pipeline import commits, speed
from _results import Results, arguments
from _running_sum import configure, session, sums
from pyspark.sql import SparkSession

import absflow

KEYS, ROWS, FILES, WARM_S = 100_000, 50_000, 400, 15
NONE = "no checkpoint"
INTERVALS = {NONE: "1h", "every 60 s": "60s", "every 10 s": "10s", "every 3 s": "3s"}


def measure(
    spark: SparkSession, source: Path, interval: str, seconds: float
) -> tuple[float, float | None, int]:
    """Rows per second; the share of the time that checkpoints took, in %; how many there were.

    No share if there was no time without a checkpoint on its way.
    """
    with tempfile.TemporaryDirectory() as root:
        configure(
            spark,
            {"storage.path": f"{root}/job", "checkpoint.interval": interval, "key-groups": "16"},
        )
        reader = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
        run = sums("overhead", spark, reader.parquet(str(source)), f"{root}/out").start()
        run.await_termination(timeout=WARM_S)
        before = len(commits(Path(root) / "out"))
        run.await_termination(timeout=seconds)
        run.stop()
        made = commits(Path(root) / "out")[before - 1 :]
        found = absflow.history(spark, f"{root}/job").checkpoints().where("status = 'COMPLETED'")
        times = "double(triggered_at) AS since", "double(ended_at) AS until"
        pending = [tuple(row) for row in found.selectExpr(*times).collect()]
    took = made[-1][0] - made[0][0]
    pending = [(since, until) for since, until in pending if made[0][0] < since < made[-1][0]]
    lost = _lost(made, pending)
    return speed(made), None if lost is None else 100 * lost / took, len(pending)


def _lost(made: list[tuple[float, int]], pending: list[tuple[float, float]]) -> float | None:
    """What commits took longer that came while a checkpoint was pending, s in all."""
    steps = [
        (at - before, rows, any(since < at and until > before for since, until in pending))
        for (before, _), (at, rows) in itertools.pairwise(made)
    ]
    calm = [(took, rows) for took, rows, meets in steps if not meets]
    if not calm:
        return None
    pace = sum(took for took, _ in calm) / sum(rows for _, rows in calm)
    return sum(took - rows * pace for took, rows, meets in steps if meets)


def main(runs: int, seconds: float, write: bool) -> None:
    """The intervals in turn, in one session."""
    random = np.random.default_rng(1)
    case = f"{KEYS:,} keys, {seconds:g} s a run"
    results = Results("overhead", "rows/s", (NONE,), {case: {name: [] for name in INTERVALS}})
    shares = Results("overhead_share", "% of the time", (), {case: {}})
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            table = {"k": random.integers(0, KEYS, ROWS), "v": random.integers(0, 9, ROWS)}
            pq.write_table(pa.table(table), Path(folder) / f"{number:04d}.parquet")
        spark = session("checkpoint_overhead")
        measure(spark, Path(folder), INTERVALS[NONE], 60)  # a JVM compiles for long
        for _ in range(runs):
            for name, interval in INTERVALS.items():
                pace, share, completed = measure(spark, Path(folder), interval, seconds)
                results.runs[case][name].append(pace)
                shown = f"{pace:>9,.0f} rows/s, {completed} completed"
                if name != NONE and share is not None:
                    shares.runs[case].setdefault(name, []).append(share)
                    shown += f", {share:.1f} %"
                print(f"{name:<14} {shown}", flush=True)
        spark.stop()
    for measured in (results, shares):
        measured.show(case)
        if write:
            measured.write()


if __name__ == "__main__":
    parser = arguments("What checkpoints cost a saturated stage.", "of each interval")
    parser.add_argument("--seconds", type=float, default=60, help="of a run")
    given = parser.parse_args()
    main(given.runs, given.seconds, given.write)
