"""Equal sources and sinks: rows that each engine makes itself, keyed state, a sink that forgets.

``python benchmarks/engines.py [--keys N ...] [--only PEER ...] [--rows N] [--runs N] [--write]``.
Count, sum and last value by a uniform key, as in ``throughput.py``, but no file is read and none is
written beside checkpoints. Rows come from Spark's ``rate-micro-batch`` source for absflow and
Spark, so many a micro-batch; from ``datagen`` for Flink SQL, which runs in the JVM alone; from
numpy for Bytewax; from a table in memory for Pathway. What is emitted goes to Spark's ``noop``,
Flink's ``blackhole``, Pathway's ``null``, or is dropped.

A run is 20 s of a job that goes on, two whole checkpoint periods, behind half a minute and five
rows for each key; of what is on Spark, in whole micro-batches. In each of absflow's runs retention
compacts, deletes and vacuums, with its largest share of a job's time (``_housekeeping.py``).
Bytewax's go from the end of an epoch to that of another. Spark's built-in aggregation has its state
in memory and in RocksDB with changelog checkpointing; Flink SQL on the heap and in RocksDB, with
mini-batches and without. Much of absflow's time is that of a micro-batch, however many rows it has;
so it, and Spark's store in memory, are also measured with a million rows in each. Beside the speed
stands the longest time without a row, which says what checkpoints hold up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _forms import aggregates, sums
from _housekeeping import ALL, SETTINGS
from _on_spark import ROCKS, FailedError, measured
from _periods import RUN_S, WARM_S, WARM_TIMES, Runs
from _quick import usual
from _results import Peer, Results, arguments
from _running_sum import configure, session
from _workloads import WORKLOADS
from pyspark.sql import DataFrame, SparkSession
from throughput import run_program

import absflow

WORKLOAD = WORKLOADS["100 k uniform keys"]
Start = Callable[[DataFrame, str], Any]  # gives what can be stopped


def ours(rows: DataFrame, root: str) -> absflow.Run:
    """A job of one stage."""
    own = {"storage.path": f"{root}/job", "key-groups": "16"}
    configure(rows.sparkSession, {**SETTINGS, **own})
    job = absflow.Job("engines", rows.sparkSession)
    stage = job.stage(
        "stage",
        job.source("rows", rows),
        key=WORKLOAD.key,
        state=WORKLOAD.state,
        output=WORKLOAD.output,
        process=sums,
    )
    job.sink("forgotten", stage, absflow.ForeachBatchSink(forget))
    return job.start()


def forget(rows: DataFrame, _made: object) -> None:
    """Have the rows made, and drop them."""
    rows.write.format("noop").mode("append").save()


def built_in(rows: DataFrame, root: str) -> Any:
    """Spark's own aggregation in the JVM."""
    made = rows.groupBy(*WORKLOAD.key).agg(*aggregates(WORKLOAD))
    writer = made.writeStream.outputMode("update").format("noop")
    return writer.option("checkpointLocation", f"{root}/checkpoint").start()


_EXACT = "exactly once"
_MORE_ROWS = 1_000_000
OURS = "absflow, columnar"
LARGE = tuple(
    f"{name}, {_MORE_ROWS:,} rows a micro-batch" for name in ("absflow", "Spark built-in, memory")
)
ON_SPARK: dict[str, tuple[Start, dict[str, str], Peer]] = {
    OURS: (ours, {}, Peer(_EXACT, "10 s")),
    LARGE[0]: (ours, {}, Peer(_EXACT, "10 s")),
    "Spark built-in, memory": (built_in, {}, Peer(_EXACT, "each micro-batch")),
    "Spark built-in, RocksDB": (built_in, ROCKS, Peer(_EXACT, "each micro-batch")),
    LARGE[1]: (built_in, {}, Peer(_EXACT, "each micro-batch")),
}
# Name -> program and environment, its arguments between keys and runs.
OTHERS: dict[str, tuple[str, tuple[str, ...], Peer]] = {
    "Flink SQL, heap": ("flink", ("hashmap", "off"), Peer(_EXACT, "10 s")),
    "Flink SQL, heap, mini-batch": ("flink", ("hashmap", "on"), Peer(_EXACT, "10 s")),
    "Flink SQL, RocksDB": ("flink", ("rocksdb", "off"), Peer(_EXACT, "10 s")),
    "Flink SQL, RocksDB, mini-batch": ("flink", ("rocksdb", "on"), Peer(_EXACT, "10 s")),
    "Bytewax, 1 worker": ("bytewax", (), Peer("at least once", "10 s")),
    "Pathway": ("pathway", (), Peer("none", "none")),
}


KEYS = [100_000, 1_000_000]
# With QUICK=1; of the second number of keys the first of these only.
FEW = [
    OURS,
    "Spark built-in, memory",
    "Spark built-in, RocksDB",
    "Flink SQL, heap, mini-batch",
    "Flink SQL, RocksDB, mini-batch",
    "Bytewax, 1 worker",
    "Pathway",
]


def generated(spark: SparkSession, keys: int, rows: int) -> DataFrame:
    """Rows that Spark makes."""
    source = spark.readStream.format("rate-micro-batch")
    made = source.option("rowsPerBatch", rows).option("numPartitions", 2).load()
    return made.selectExpr(f"pmod(xxhash64(value), {keys}) AS k", "value % 9 AS v")


def measure(
    spark: SparkSession, peer: str, keys: int, rows: int, runs: int, *, early: bool = False
) -> Runs:
    """Rows per second of each run, and the longest time in it from micro-batch to micro-batch."""
    start, conf, _ = ON_SPARK[peer]
    if peer in LARGE:
        rows = _MORE_ROWS

    def warm(moments: list[tuple[float, int]]) -> float | None:
        begun, came = moments[0][0] if moments else 0.0, 0
        for at, number in moments:
            if at > begun + WARM_S and came >= WARM_TIMES * keys:
                return at
            came += number
        return None

    does = ALL if start is ours and not early else None
    try:
        return measured(
            spark,
            lambda root: start(generated(spark, keys, rows), root),
            conf,
            warm,
            runs,
            does=does,
        )
    except FailedError as error:
        print(f"{peer} is not measured, for it failed: {error}")
        return [], []


def measure_other(peer: str, keys: int, runs: int) -> Runs:
    """As :func:`measure`; nothing if it does not run here, and why."""
    name, given, _ = OTHERS[peer]
    return run_program(peer, name, f"_engines_{name}.py", [str(keys), *given, str(runs)])


def case_of(keys: int) -> str:
    """The title of a table."""
    return f"{keys:,} uniform keys, generated and forgotten"


def main(cases: list[int], peers: list[str], rows: int, runs: int, write: bool) -> None:
    """Each number of keys, each peer in turn."""
    spark = session("engines", "6g")
    every = {name: peer for name, (*_, peer) in (ON_SPARK | OTHERS).items()}
    known = [case_of(keys) for keys in KEYS]
    speeds = Results("engines", "rows/s", (OURS,), peers=every, keeps=known)
    pauses = Results("engines_pause", "s, longest without a row", keeps=known)
    early = [peer for peer in peers if peer in ON_SPARK and peer not in LARGE]
    for peer in usual(early, early[:1]):
        measure(spark, peer, cases[0], rows, 1, early=True)  # a JVM compiles for long
    for keys in cases:
        case = case_of(keys)
        for peer in peers if keys == cases[0] else usual(peers, peers[:1]):
            if peer in ON_SPARK:
                found = measure(spark, peer, keys, rows, runs)
            else:
                found = measure_other(peer, keys, runs)
            speeds.add(case, peer, found[0])
            pauses.add(case, peer, found[1])
        for results in (speeds, pauses):
            results.show(case)
            if write:  # now, for all of them take long
                results.write()
    spark.stop()


if __name__ == "__main__":
    parser = arguments("Engines with equal sources and sinks.", f"of {RUN_S} s", usually=3)
    parser.add_argument("--keys", type=int, nargs="+", default=KEYS)
    parser.add_argument("--only", nargs="+", default=usual([*ON_SPARK, *OTHERS], FEW))
    parser.add_argument("--rows", type=int, default=200_000, help="in a micro-batch of Spark")
    given = parser.parse_args()
    main(given.keys, given.only, given.rows, given.runs, given.write)
