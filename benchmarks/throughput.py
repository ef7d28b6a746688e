"""Rows per second of keyed state: absflow's forms beside what Spark, Bytewax and PyFlink have.

``python benchmarks/throughput.py [--case NAME ...] [--only PEER ...] [--rows N] [--runs N]
[--write]``. Every peer does the work of ``_workloads.py`` on the same Parquet files. Those on Spark
read one a micro-batch and append what they emit to a Delta table: a row per touched key (per row: a
row per row). A JVM compiles what it runs often for a minute and longer, at the cost of what it
runs; so a round of the quick ones is not counted, half a minute of each, nor are the first
micro-batches of any, in which keys are new. A run is 10 s of a job that goes on, in whole
micro-batches, or one that takes longer: rows by the time from its first trigger to the next run's.
absflow, Bytewax and PyFlink take a checkpoint every 10 s, so each run has one. Bytewax and PyFlink
forget what they emit; ``_throughput_bytewax.py`` and ``_throughput_flink.py`` say how they are
measured. Both have environments of their own, which ``make bench`` makes.
How the peers are tuned: all on Spark have two shuffle partitions for two cores, whole-stage code
generation and FAIR scheduling as absflow has them; the built-in aggregation and
``transformWithStateInPandas`` have RocksDB with changelog checkpointing, as Spark's guide advises
for much state, and do not count their rows, which costs a lookup for each write; plain
``applyInPandasWithState`` has the default store in memory, which is the faster one here. absflow
has 16 key groups (128 is the default, which hardly differs). Beside the speeds stands the most
memory that a Python worker of absflow or Spark had, loads included. With ``--write`` the figures go
to ``docs/figures``; they are for this machine and this run only.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from _memory import Memory
from _results import Results, arguments
from _running_sum import configure, session
from _workloads import WORKLOADS, Workload
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import absflow

_STORES = "org.apache.spark.sql.execution.streaming.state"
ROCKS = {
    "spark.sql.streaming.stateStore.providerClass": f"{_STORES}.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}
HERE = Path(__file__).parent

# -- the workloads, as columns and in SQL ----------------------------------------------------------


def sums(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Count, sum and last value."""
    code, values = context.key_of_row, rows["v"].to_numpy()
    n, total, last = (state[name].fill_null(0).to_numpy().copy() for name in state.column_names[1:])
    n += np.bincount(code, minlength=len(n))
    np.add.at(total, code, values)
    last[code] = values
    table = pa.table({"k": state["k"], "n": n, "total": total, "last": last})
    return absflow.Result(output=table, state=table)


def query_17(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Counts by price, least, greatest and total price."""
    code, price = context.key_of_row, rows["price"].to_numpy()
    names = state.column_names[2:]
    old = {name: state[name].fill_null(0).to_numpy().copy() for name in names}
    old["least"][context.is_new] = np.iinfo(np.int64).max
    np.minimum.at(old["least"], code, price)
    np.maximum.at(old["most"], code, price)
    np.add.at(old["total"], code, price)
    rank = np.searchsorted([10_000, 1_000_000], price, side="right")
    for place, name in enumerate(("low", "middle", "high")):
        old[name] += np.bincount(code[rank == place], minlength=state.num_rows)
    old["n"] += np.bincount(code, minlength=state.num_rows)
    table = pa.table({"auction": state["auction"], "day": state["day"], **old})
    return absflow.Result(output=table, state=table)


def query_18(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """The last bid."""
    code, price, at = context.key_of_row, rows["price"].to_numpy(), rows["at"].to_numpy()
    order = np.argsort(at, kind="stable")
    newest = np.empty(state.num_rows, dtype=np.int64)
    newest[code[order]] = order
    keep = pc.greater(state["at"], at[newest]).fill_null(False)
    table = pa.table(
        {
            "bidder": state["bidder"],
            "auction": state["auction"],
            "price": pc.if_else(keep, state["price"], price[newest]),
            "at": pc.if_else(keep, state["at"], at[newest]),
        }
    )
    return absflow.Result(output=table, state=table)


Columnar = Callable[[pa.Table, pa.Table, absflow.Context], absflow.Result]


def columnar(workload: Workload) -> Columnar:
    """The workload, all keys at once."""
    if workload.keys == 1:
        return sums
    return query_17 if "day" in workload.key else query_18


def aggregates(workload: Workload) -> list[Column]:
    """The workload in SQL."""
    v, price, at = F.col("v"), F.col("price"), F.col("at")
    if workload.keys == 1:
        return [F.count(v).alias("n"), F.sum(v).alias("total"), F.last(v).alias("last")]
    if "day" not in workload.key:
        return [F.max_by(price, at).alias("price"), F.max(at).alias("at")]
    low, high = price < 10_000, price >= 1_000_000
    return [
        F.count(price).alias("n"),
        F.count_if(low).alias("low"),
        F.count_if(~low & ~high).alias("middle"),
        F.count_if(high).alias("high"),
        F.min(price).alias("least"),
        F.max(price).alias("most"),
        F.sum(price).alias("total"),
    ]


class OneKey:
    """The workload, one key at a time."""

    def __init__(self, workload: Workload) -> None:
        """Of this workload."""
        self.update = workload.update
        self.given = [column.split()[0] for column in workload.rows.split(", ")]
        self.made = [column.split()[0] for column in workload.output.split(", ")]

    def folded(
        self, key: tuple[Any, ...], state: Any, frames: Iterator[pd.DataFrame]
    ) -> tuple[Any, pd.DataFrame]:
        """A key's new state, and the row of it."""
        for frame in frames:
            for row in zip(*(frame[name].tolist() for name in self.given), strict=True):
                state = self.update(state, row)
        return state, pd.DataFrame([(*key, *state)], columns=self.made)

    def __call__(
        self, key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """For ``applyInPandasWithState``."""
        new, made = self.folded(key, state.getOption, frames)
        state.update(new)
        yield made


class Processor(StatefulProcessor):
    """One key, for transformWithStateInPandas."""

    def __init__(self, workload: Workload) -> None:
        """Of this workload."""
        self._one, self._state = OneKey(workload), workload.state

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._value = handle.getValueState("value", self._state)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Fold them."""
        new, made = self._one.folded(key, self._value.get(), rows)
        self._value.update(new)
        yield made

    def close(self) -> None:
        """Nothing to let go."""


# -- peers on Spark --------------------------------------------------------------------------------

Start = Callable[[Workload, DataFrame, str], Any]  # gives what can be stopped


def ours(form: str, function: Callable[[Workload], Any]) -> Start:
    """A job of one stage."""

    def start(workload: Workload, rows: DataFrame, root: str) -> Any:
        spark = rows.sparkSession
        configure(
            spark, {"storage.path": f"{root}/job", "checkpoint.interval": "10s", "key-groups": "16"}
        )
        job = absflow.Job("throughput", spark)
        stage = job.stage(
            "stage",
            job.source("rows", rows),
            key=workload.key,
            state=workload.state,
            output=workload.output,
            process=function(workload),
            form=form,
        )
        job.sink("out", stage, absflow.DeltaSink(f"{root}/out"))
        return job.start()

    return start


def _append(frame: DataFrame, root: str, mode: str = "append") -> StreamingQuery:
    def write(batch: DataFrame, _number: int) -> None:
        batch.write.format("delta").mode("append").save(f"{root}/out")

    writer = frame.writeStream.outputMode(mode).foreachBatch(write)
    return writer.option("checkpointLocation", f"{root}/checkpoint").start()


def plain(workload: Workload, rows: DataFrame, root: str) -> StreamingQuery:
    """The function per key, as Spark runs it."""
    made = rows.groupBy(*workload.key).applyInPandasWithState(
        OneKey(workload).__call__,
        workload.output,
        workload.state,
        "append",
        GroupStateTimeout.NoTimeout,
    )
    return _append(made, root)


def processor(workload: Workload, rows: DataFrame, root: str) -> StreamingQuery:
    """The function per key, as Spark's newer interface has it."""
    grouped = rows.groupBy(*workload.key)
    made = grouped.transformWithStateInPandas(
        Processor(workload), workload.output, "Append", "None"
    )
    return _append(made, root)


def built_in(workload: Workload, rows: DataFrame, root: str) -> StreamingQuery:
    """Spark's own aggregation in the JVM."""
    grouped = rows.groupBy(*workload.key).agg(*aggregates(workload))
    return _append(grouped, root, "update")


BUILT_IN, PLAIN = "built-in aggregation", "applyInPandasWithState"
ON_SPARK: dict[str, tuple[Start, dict[str, str]]] = {
    "absflow, columnar": (ours("arrow", columnar), {}),
    "absflow, per row": (ours("per-row", lambda workload: workload.fold), {}),
    "absflow, per key": (ours("per-key", lambda workload: OneKey(workload).__call__), {}),
    BUILT_IN: (built_in, ROCKS),
    "transformWithStateInPandas": (processor, ROCKS),
    PLAIN: (plain, {}),
}

# Name -> program, its environment, its arguments behind folder and case.
OTHERS = {
    "Bytewax, 1 worker": ("bytewax", ("1",)),
    "Bytewax, 2 workers": ("bytewax", ("2",)),
    "PyFlink, process": ("flink", ("process",)),
    "PyFlink, thread": ("flink", ("thread",)),
}

RUN_S, WARM_RUNS = 10, 3
# A micro-batch of fewer has barriers alone.
LEAST_ROWS = 1_000
# Behind those that load, as many as the quickest may need.
FILES = 200
# Those on Spark that warm its JVM up in no time.
QUICK = ("absflow, columnar", "absflow, per row", BUILT_IN)
# A function per key and micro-batch, and PyFlink, take half an hour of a case: one case has them.
_FAST = (*QUICK, "Bytewax, 1 worker", "Bytewax, 2 workers")
FEW = {case: _FAST for case in WORKLOADS if case != "100 k uniform keys"}
FEW["10 M keys, 1 % a batch"] = ("absflow, columnar", BUILT_IN)


class _FailedError(Exception):
    """A query that was to be measured ended by itself."""


def measure(
    spark: SparkSession, peer: str, case: str, source: Path, runs: int
) -> tuple[list[float], float]:
    """Rows per second of each run; the most MB that a Python worker had."""
    start, conf = ON_SPARK[peer]
    workload = WORKLOADS[case]
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
        # The stop of a peer may leave a task that still writes.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root, Memory(jvm) as seen:
            reader = spark.readStream.schema(workload.rows).option("maxFilesPerTrigger", 1)
            running = start(workload, reader.parquet(str(source)), root)
            try:
                speeds = _runs(spark, workload.loads, runs)
            except _FailedError as error:
                print(f"{peer} is not measured, for it failed: {error}")
                return [], 0.0
            finally:
                running.stop()
        return speeds, seen.worker
    finally:
        for name in conf:
            spark.conf.unset(name)


def _runs(spark: SparkSession, loads: int, runs: int) -> list[float]:
    (query,) = spark.streams.active
    due = time.monotonic() + runs * RUN_S
    while True:
        if not query.isActive:
            raise _FailedError(query.exception())
        # The progress of every micro-batch, asked for again and again, would cost the query time.
        if time.monotonic() > due:
            done = query.recentProgress
            if len(speeds := _speeds(done, loads)) >= runs:
                return speeds[:runs]
            if len(done) >= loads + FILES:
                raise _FailedError("it has read all files")
            due = time.monotonic() + RUN_S
        time.sleep(0.2)


def _speeds(done: list[StreamingQueryProgress], loads: int) -> list[float]:
    """Rows per second of each whole run, behind the micro-batches that load."""
    begun = [datetime.fromisoformat(progress.timestamp).timestamp() for progress in done]
    ends = np.flatnonzero([progress.numInputRows >= LEAST_ROWS for progress in done])
    if len(ends) <= loads:
        return []
    speeds, rows, since = [], 0, ends[loads - 1] + 1
    for place in range(since, len(done) - 1):
        rows += done[place].numInputRows
        if (took := begun[place + 1] - begun[since]) >= RUN_S:
            speeds.append(rows / took)
            rows, since = 0, place + 1
    return speeds


# -- the others ------------------------------------------------------------------------------------


def measure_other(peer: str, case: str, source: Path, runs: int) -> list[float]:
    """Rows per second of each run; none if it does not run here, and why."""
    name, given = OTHERS[peer]
    python = HERE.parent / f".venv-{name}" / "bin" / "python"
    if not python.exists():
        print(f"{peer} is not measured: there is no {python}; make bench makes it")
        return []
    program = str(HERE / f"_throughput_{name}.py")
    command = [str(python), program, str(source), case, *given, str(runs)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        print(f"{peer} is not measured, for it failed: {done.stderr.splitlines()[-1:]}")
        return []
    return list(json.loads(done.stdout.splitlines()[-1])["rows/s"])


def main(cases: list[str], peers: list[str], rows: int, runs: int, write: bool) -> None:
    """Each case, each peer in turn."""
    spark = session("throughput", "6g")
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    results = Results("throughput", "rows/s", (PLAIN, BUILT_IN))
    memory = Results("memory", "MB, most of one Python worker")
    for case in cases:
        workload = WORKLOADS[case]
        with tempfile.TemporaryDirectory() as folder:
            workload.write(Path(folder), workload.loads + FILES, rows)
            if case == cases[0]:
                # The more a JVM has compiled the faster it is: who comes first would lose by it.
                for peer in (peer for peer in peers if peer in QUICK):
                    measure(spark, peer, case, Path(folder), WARM_RUNS)
            for peer in (peer for peer in peers if peer in FEW.get(case, peers)):
                if peer in ON_SPARK:
                    speeds, worker = measure(spark, peer, case, Path(folder), runs)
                    if worker and peer != BUILT_IN:
                        memory.add(case, peer, [worker])
                else:
                    speeds = measure_other(peer, case, Path(folder), runs)
                results.add(case, peer, speeds)
        results.show(case)
        memory.show(case)
        if write:  # now, for all of them take an hour
            results.write()
            memory.write()
    spark.stop()


if __name__ == "__main__":
    parser = arguments("Throughput of keyed state, beside peers.", "of 10 s or a micro-batch")
    parser.add_argument("--case", nargs="+", default=[*WORKLOADS], choices=[*WORKLOADS])
    parser.add_argument("--only", nargs="+", default=[*ON_SPARK, *OTHERS])
    parser.add_argument("--rows", type=int, default=200_000, help="in a micro-batch")
    given = parser.parse_args()
    main(given.case, given.only, given.rows, given.runs, given.write)
