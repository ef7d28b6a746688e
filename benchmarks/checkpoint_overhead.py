"""What checkpoints cost a saturated stage: the same job with none, and with one every so often.

``python benchmarks/checkpoint_overhead.py [--runs N] [--seconds S] [--write]``. A running sum over
100,000 uniform keys, 50,000 rows a micro-batch, on the cores of this machine. A run is so many
seconds of a job that has warmed up. The jobs take turns, each turn in another order, so that a
machine that becomes slower or faster favours none. In each run of those that take checkpoints
retention compacts, deletes and vacuums, with its largest share of a job's time, and the run goes on
until that is over and measured (``_housekeeping.py``); not so with ``QUICK=1``. Three things are
measured:

- rows per second of the whole run;
- its ratio to the job without checkpoints of the same turn: all that checkpoints cost. The interval
  is that of the mean (of logarithms, by Student's t), in which its true value lies with 95 %, as
  runs differ by more than checkpoints cost;
- within a run, what micro-batches took longer while a checkpoint was on its way, from its trigger
  to its completion, than the others of that run: as a share of the run's time.

Prints medians; with ``--write`` the figures go to ``docs/figures``. They are for this machine and
this run only.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _housekeeping import ALL, SETTINGS, housekeeping
from _pipeline import commits, speed
from _quick import QUICK, usual
from _results import Results, arguments
from _running_sum import configure, session, sums
from pyspark.sql import SparkSession

import absflow

KEYS, ROWS, FILES, WARM_S = 100_000, 50_000, 400, usual(10, 5)
NONE = "no checkpoint"
# Of a job's life: by then it has two checkpoints of 10 s, so there is something to compact.
RETENTION_S = 25
INTERVALS = {NONE: "1h", "every 10 s": "10s", **usual({"every 3 s": "3s"}, {})}


def measure(
    spark: SparkSession, source: Path, interval: str, seconds: float
) -> tuple[float, float | None, int]:
    """Rows per second; the share of the time that checkpoints took, in %; how many there were.

    No share if there was no time without a checkpoint on its way.
    """
    with tempfile.TemporaryDirectory() as root, housekeeping(RETENTION_S) as seen:
        own = {"storage.path": f"{root}/job", "checkpoint.interval": interval, "key-groups": "16"}
        configure(spark, {**SETTINGS, **own})
        reader = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
        run = sums("overhead", spark, reader.parquet(str(source)), f"{root}/out").start()
        run.await_termination(timeout=WARM_S)
        sink, since = Path(root) / "out", time.time()
        before = len(commits(sink))
        run.await_termination(timeout=seconds)
        pace: list[float] = []
        while interval != INTERVALS[NONE] and not (pace or QUICK):
            run.await_termination(timeout=2)
            pace, _ = seen.runs(commits(sink), since, 1)
        run.stop()
        made = commits(sink)[max(0, before - 1) :]
        found = absflow.history(spark, f"{root}/job").checkpoints().where("status = 'COMPLETED'")
        times = "double(triggered_at) AS since", "double(ended_at) AS until"
        pending = [tuple(row) for row in found.selectExpr(*times).collect()]
    took = made[-1][0] - made[0][0]
    pending = [(since, until) for since, until in pending if made[0][0] < since < made[-1][0]]
    if pending and not QUICK:
        print(seen)
        if missing := seen.missing(ALL):
            raise SystemExit(f"{missing} in a run of {interval}")
    lost = _lost(made, pending)
    share = None if lost is None else 100 * lost / took
    return (pace[0] if pace else speed(made)), share, len(pending)


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


def interval_of(ratios: list[float]) -> tuple[float, float]:
    """In which the true ratio lies with 95 %: Student's t over logarithms."""
    logs = np.log(ratios)
    if len(logs) < 2:
        return 0.0, float("inf")
    drawn = np.random.default_rng(1).standard_t(len(logs) - 1, 1_000_000)
    half = np.quantile(drawn, 0.975) * logs.std(ddof=1) / np.sqrt(len(logs))
    return float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half))


def turn(number: int) -> list[str]:
    """The jobs in the order of this turn: each has each place as often, and each neighbour."""
    names = [*INTERVALS]
    at = number // 2 % len(names)
    order = [*names[at:], *names[:at]]
    return order if number % 2 == 0 else order[::-1]


def main(runs: int, seconds: float, write: bool) -> None:
    """The jobs in turn, in one session."""
    random = np.random.default_rng(1)
    case = f"{KEYS:,} keys, {seconds:g} s a run"
    results = Results("overhead", "rows/s", runs={case: {name: [] for name in INTERVALS}})
    ratios = Results("overhead_ratio", "of the rows/s without", runs={case: {}})
    shares = Results("overhead_share", "% of the time", runs={case: {}})
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            table = {"k": random.integers(0, KEYS, ROWS), "v": random.integers(0, 9, ROWS)}
            pq.write_table(pa.table(table), Path(folder) / f"{number:04d}.parquet")
        spark = session("checkpoint_overhead")
        measure(spark, Path(folder), INTERVALS[NONE], usual(60, 10))  # a JVM compiles for long
        for number in range(runs):
            for name in turn(number):
                pace, share, completed = measure(spark, Path(folder), INTERVALS[name], seconds)
                results.runs[case][name].append(pace)
                shown = f"{pace:>9,.0f} rows/s, {completed} completed"
                if name != NONE and share is not None:
                    shares.runs[case].setdefault(name, []).append(share)
                    shown += f", {share:.1f} %"
                print(f"{name:<14} {shown}", flush=True)
        spark.stop()
    without = results.runs[case][NONE]
    for name in (name for name in INTERVALS if name != NONE):
        pairs = zip(results.runs[case][name], without, strict=True)
        ratios.runs[case][name] = [pace / base for pace, base in pairs]
        ratios.intervals.setdefault(case, {})[name] = interval_of(ratios.runs[case][name])
    for measured in (results, ratios, shares):
        measured.show(case)
        if write:
            measured.write()


if __name__ == "__main__":
    parser = arguments("What checkpoints cost a saturated stage.", "of each job", 12, 2)
    parser.add_argument("--seconds", type=float, default=usual(30, 10), help="of a run")
    given = parser.parse_args()
    main(given.runs, given.seconds, given.write)
