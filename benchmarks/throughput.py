"""Rows per second of a keyed count, sum and last value: absflow's forms beside what Spark has.

``python benchmarks/throughput.py [--keys N ...] [--rows N] [--runs N] [--only NAME ...]``. Every
peer reads the same Parquet files, one a micro-batch, keys uniform, and appends a row per touched
key to a Delta table. The first micro-batches of each peer, in which every key is new, are
not counted; a figure is the median over the others of rows by the batch's whole time, as Spark
reports it (``triggerExecution``). Prints a table with the ratio to plain ``applyInPandasWithState``
and to Spark's built-in aggregation; figures are for this machine and this run only.

Bytewax runs in an environment of its own that ``make bench`` makes (``.venv-bytewax``), as many
times as batches are counted, over all of the files, into a sink that forgets the rows.

How the peers are tuned: all have two shuffle partitions for two cores, whole-stage code generation
and FAIR scheduling as absflow has them; the built-in aggregation and ``transformWithStateInPandas``
have RocksDB with changelog checkpointing, as Spark's guide advises for much state, and plain
``applyInPandasWithState`` has the default store in memory, which is the faster one here. Bytewax
snapshots every 10 s, and its source hands over 5,000 rows at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from _running_sum import configure, session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import absflow

STATE = "n long, total long, last long"
OUTPUT = f"k long, {STATE}"
WARM = 2
_STORES = "org.apache.spark.sql.execution.streaming.state"
ROCKS = {
    "spark.sql.streaming.stateStore.providerClass": f"{_STORES}.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}

# -- the same function in every form ---------------------------------------------------------------


def columnar(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """All keys at once."""
    code, values = context.key_of_row, rows["v"].to_numpy()
    total = state["total"].fill_null(0).to_numpy().copy()
    np.add.at(total, code, values)
    last = state["last"].fill_null(0).to_numpy().copy()
    last[code] = values
    n = state["n"].fill_null(0).to_numpy() + np.bincount(code, minlength=state.num_rows)
    table = pa.table({"k": state["k"], "n": n, "total": total, "last": last})
    return absflow.Result(output=table, state=table)


def per_row(
    state: tuple[int, int, int] | None, row: tuple[int, int]
) -> tuple[tuple[int, int, int], list[tuple[int, ...]]]:
    """One row; emits the key's new state each time."""
    k, v = row
    n, total, _ = state or (0, 0, 0)
    new = n + 1, total + v, v
    return new, [(k, *new)]


def per_key(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """One key."""
    new = folded(state.getOption, frames)
    state.update(new)
    yield emitted(key, new)


def folded(
    state: tuple[int, int, int] | None, frames: Iterator[pd.DataFrame]
) -> tuple[int, int, int]:
    """A key's new state."""
    n, total, last = state or (0, 0, 0)
    for frame in frames:
        values = frame["v"].to_numpy()
        n, total, last = n + len(values), total + int(values.sum()), int(values[-1])
    return n, total, last


def emitted(key: tuple[Any, ...], state: tuple[int, int, int]) -> pd.DataFrame:
    """The row of a key."""
    n, total, last = state
    return pd.DataFrame({"k": [key[0]], "n": [n], "total": [total], "last": [last]})


class Processor(StatefulProcessor):
    """One key, for transformWithStateInPandas."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._value = handle.getValueState("value", STATE)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Count, sum, last."""
        new = folded(self._value.get(), rows)
        self._value.update(new)
        yield emitted(key, new)

    def close(self) -> None:
        """Nothing to let go."""


# -- peers -----------------------------------------------------------------------------------------

Start = Callable[[SparkSession, DataFrame, str], "absflow.Run | StreamingQuery"]


def ours(function: Any, form: str) -> Start:
    """A job of one stage."""

    def start(spark: SparkSession, rows: DataFrame, root: str) -> absflow.Run:
        configure(
            spark, {"storage.path": f"{root}/job", "checkpoint.interval": "1h", "key-groups": "16"}
        )
        job = absflow.Job("throughput", spark)
        source = job.source("rows", rows)
        stage = job.stage(
            "stage", source, key="k", state=STATE, output=OUTPUT, process=function, form=form
        )
        job.sink("out", stage, absflow.DeltaSink(f"{root}/out"))
        return job.start()

    return start


def _append(frame: DataFrame, root: str, mode: str = "append") -> StreamingQuery:
    def write(batch: DataFrame, _number: int) -> None:
        batch.write.format("delta").mode("append").save(f"{root}/out")

    writer = frame.writeStream.outputMode(mode).foreachBatch(write)
    return writer.option("checkpointLocation", f"{root}/checkpoint").start()


def plain(_spark: SparkSession, rows: DataFrame, root: str) -> StreamingQuery:
    """The function per key, as Spark runs it."""
    made = rows.groupBy("k").applyInPandasWithState(
        per_key, OUTPUT, STATE, "append", GroupStateTimeout.NoTimeout
    )
    return _append(made, root)


def processor(_spark: SparkSession, rows: DataFrame, root: str) -> StreamingQuery:
    """The function per key, as Spark's newer interface has it."""
    grouped = rows.groupBy("k")
    return _append(grouped.transformWithStateInPandas(Processor(), OUTPUT, "Append", "None"), root)


def built_in(_spark: SparkSession, rows: DataFrame, root: str) -> StreamingQuery:
    """Spark's own aggregation in the JVM."""
    grouped = rows.groupBy("k").agg(F.count("v").alias("n"), F.sum("v").alias("total"), F.last("v"))
    return _append(grouped.withColumnRenamed("last(v)", "last"), root, "update")


PEERS: dict[str, tuple[Start, dict[str, str]]] = {
    "absflow, columnar": (ours(columnar, "arrow"), {}),
    "absflow, per row": (ours(per_row, "per-row"), {}),
    "absflow, per key": (ours(per_key, "per-key"), {}),
    "built-in aggregation": (built_in, ROCKS),
    "applyInPandasWithState": (plain, {}),
    "transformWithStateInPandas": (processor, ROCKS),
}


HERE = Path(__file__).parent
BYTEWAX = HERE.parent / ".venv-bytewax" / "bin" / "python"
# Workers, and seconds between snapshots (0: no recovery).
OTHERS = {
    "Bytewax, 1 worker": ("1", "10"),
    "Bytewax, 2 workers": ("2", "10"),
    "Bytewax, 1, no recovery": ("1", "0"),
}


def measure_other(peer: str, source: Path, runs: int) -> list[float]:
    """Rows per second of each run; none if it is not installed."""
    if not BYTEWAX.exists():
        print(f"{peer} is not measured: there is no {BYTEWAX}; make bench makes it")
        return []
    command = [str(BYTEWAX), str(HERE / "_throughput_bytewax.py"), str(source), *OTHERS[peer]]
    speeds = []
    for _ in range(runs):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        speeds.append(json.loads(done.stdout)["rows/s"])
    return speeds


def measure(spark: SparkSession, peer: str, source: Path, runs: int) -> list[float]:
    """Rows per second of each counted micro-batch."""
    start, conf = PEERS[peer]
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        with tempfile.TemporaryDirectory() as root:
            reader = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
            running = start(spark, reader.parquet(str(source)), root)
            try:
                return _batches(spark, runs)
            finally:
                running.stop()
    finally:
        for name in conf:
            spark.conf.unset(name)


def _batches(spark: SparkSession, runs: int) -> list[float]:
    while True:
        (query,) = spark.streams.active
        done = [p for p in query.recentProgress if p.numInputRows >= 1000]
        if len(done) >= WARM + runs:
            return [
                p.numInputRows / p.durationMs["triggerExecution"] * 1000
                for p in done[WARM : WARM + runs]
            ]
        time.sleep(0.2)


def main(every: list[int], rows: int, runs: int, only: list[str]) -> None:
    """Each number of keys, each peer in turn."""
    spark = session("throughput", "4g")
    for keys in every:
        random = np.random.default_rng(1)
        medians: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as folder:
            for number in range(WARM + runs + 2):
                table = {"k": random.integers(0, keys, rows), "v": random.integers(0, 9, rows)}
                pq.write_table(pa.table(table), Path(folder) / f"{number:04d}.parquet")
            for peer in only or [*PEERS, *OTHERS]:
                if peer in PEERS:
                    speeds = measure(spark, peer, Path(folder), runs)
                else:
                    speeds = measure_other(peer, Path(folder), runs)
                if speeds:
                    medians[peer] = statistics.median(speeds)
        print(f"{keys:,} uniform keys, {rows:,} rows a micro-batch, medians of {runs}")
        print(f"{'':<28} {'rows/s':>9} {'x plain':>8} {'x built-in':>10}")
        for peer, speed in medians.items():
            ratios = [
                f"{speed / medians[base]:.2f}" if base in medians else "-"
                for base in ("applyInPandasWithState", "built-in aggregation")
            ]
            print(f"{peer:<28} {speed:>9,.0f} {ratios[0]:>8} {ratios[1]:>10}")
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Throughput of a keyed count, sum and last value.")
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000])
    parser.add_argument("--rows", type=int, default=200_000, help="in a micro-batch")
    parser.add_argument("--runs", type=int, default=5, help="micro-batches that are counted")
    parser.add_argument("--only", nargs="+", default=[], choices=[*PEERS, *OTHERS])
    given = parser.parse_args()
    main(given.keys, given.rows, given.runs, given.only)
