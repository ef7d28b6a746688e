"""Equal sources and sinks: rows that each engine makes itself, keyed state, a sink that forgets.

``python benchmarks/engines.py [--keys N ...] [--only PEER ...] [--rows N] [--runs N] [--write]``.
Count, sum and last value by a uniform key, as in ``throughput.py``, but no file is read and none is
written beside checkpoints. Rows come from Spark's ``rate-micro-batch`` source for absflow and
Spark, so many a micro-batch; from ``datagen`` for Flink SQL, which runs in the JVM alone; from
numpy for Bytewax; from a table in memory for Pathway. What is emitted goes to Spark's ``noop``,
Flink's ``blackhole``, Pathway's ``null``, or is dropped.

A run is 20 s of a job that goes on, two whole checkpoint periods, behind half a minute and five
rows for each key. Peers take turns: a run of each that is on Spark, then the next of each. Spark's
built-in aggregation has its state in memory and in RocksDB with changelog checkpointing; Flink SQL
on the heap and in RocksDB, with mini-batches and without. Beside the speed stands the longest time
without a row, which says what checkpoints hold up.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from _engines import RUN_S, WARM_S, WARM_TIMES
from _results import Peer, Results, arguments
from _running_sum import configure, session
from _workloads import WORKLOADS
from pyspark.sql import DataFrame, SparkSession
from throughput import ROCKS, aggregates, sums

import absflow

WORKLOAD = WORKLOADS["100 k uniform keys"]
HERE = Path(__file__).parent
Start = Callable[[DataFrame, str], Any]  # gives what can be stopped


def ours(rows: DataFrame, root: str) -> absflow.Run:
    """A job of one stage."""
    conf = {"storage.path": f"{root}/job", "checkpoint.interval": "10s", "key-groups": "16"}
    configure(rows.sparkSession, conf)
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
ON_SPARK: dict[str, tuple[Start, dict[str, str], Peer]] = {
    "absflow, columnar": (ours, {}, Peer(_EXACT, "10 s")),
    "Spark built-in, memory": (built_in, {}, Peer(_EXACT, "each micro-batch")),
    "Spark built-in, RocksDB": (built_in, ROCKS, Peer(_EXACT, "each micro-batch")),
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


def generated(spark: SparkSession, keys: int, rows: int) -> DataFrame:
    """Rows that Spark makes."""
    source = spark.readStream.format("rate-micro-batch")
    made = source.option("rowsPerBatch", rows).option("numPartitions", 2).load()
    return made.selectExpr(f"pmod(xxhash64(value), {keys}) AS k", "value % 9 AS v")


def measure(
    spark: SparkSession, peer: str, keys: int, rows: int, runs: int
) -> tuple[list[float], list[float]]:
    """Rows per second of each run, and the longest time in it from micro-batch to micro-batch."""
    start, conf, _ = ON_SPARK[peer]
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
            running = start(generated(spark, keys, rows), root)
            try:
                return _runs(spark, keys, runs)
            finally:
                running.stop()
    finally:
        for name in conf:
            spark.conf.unset(name)


def _runs(spark: SparkSession, keys: int, runs: int) -> tuple[list[float], list[float]]:
    (query,) = spark.streams.active
    begun = time.monotonic()
    while not (
        time.monotonic() > begun + WARM_S
        and sum(progress.numInputRows for progress in query.recentProgress) >= WARM_TIMES * keys
    ):
        _check(query)
        time.sleep(1)
    first = len(query.recentProgress)
    until = time.monotonic() + runs * RUN_S
    while time.monotonic() < until:
        _check(query)
        time.sleep(0.2)
    while len(done := query.recentProgress[first:]) < runs + 1 or _at(done[-1]) < (
        _at(done[0]) + runs * RUN_S
    ):
        _check(query)
        time.sleep(1)
    speeds, pauses = [], []
    for number in range(runs):
        since = _at(done[0]) + number * RUN_S
        inside = [p for p in done if since <= _at(p) < since + RUN_S]
        behind = next(p for p in done if _at(p) >= since + RUN_S)
        times = [_at(p) for p in [*inside, behind]]
        speeds.append(sum(p.numInputRows for p in inside) / (times[-1] - times[0]))
        pauses.append(max(later - earlier for earlier, later in itertools.pairwise(times)))
    return speeds, pauses


def _check(query: Any) -> None:
    if not query.isActive:
        raise SystemExit(f"the query ended by itself: {query.exception()}")


def _at(progress: Any) -> float:
    return datetime.fromisoformat(progress.timestamp).timestamp()


def measure_other(peer: str, keys: int, runs: int) -> tuple[list[float], list[float]]:
    """As :func:`measure`; nothing if it does not run here, and why."""
    name, given, _ = OTHERS[peer]
    python = HERE.parent / f".venv-{name}" / "bin" / "python"
    if not python.exists():
        print(f"{peer} is not measured: there is no {python}; make bench makes it")
        return [], []
    command = [str(python), str(HERE / f"_engines_{name}.py"), str(keys), *given, str(runs)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        print(f"{peer} is not measured, for it failed: {done.stderr.splitlines()[-1:]}")
        return [], []
    found = json.loads(done.stdout.splitlines()[-1])
    return found["rows/s"], found.get("longest pause", [])


def main(cases: list[int], peers: list[str], rows: int, runs: int, write: bool) -> None:
    """Each number of keys, each peer in turn."""
    spark = session("engines", "6g")
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    every = {name: peer for name, (*_, peer) in (ON_SPARK | OTHERS).items()}
    speeds = Results("engines", "rows/s", ("absflow, columnar",), peers=every)
    pauses = Results("engines_pause", "s, longest without a row")
    for peer in (peer for peer in peers if peer in ON_SPARK):
        measure(spark, peer, cases[0], rows, 1)  # a JVM compiles for long
    for keys in cases:
        case = f"{keys:,} uniform keys, generated and forgotten"
        for peer in peers:
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
    parser = arguments("Engines with equal sources and sinks.", "of 20 s")
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--only", nargs="+", default=[*ON_SPARK, *OTHERS])
    parser.add_argument("--rows", type=int, default=200_000, help="in a micro-batch of Spark")
    given = parser.parse_args()
    main(given.keys, given.only, given.rows, given.runs, given.write)
