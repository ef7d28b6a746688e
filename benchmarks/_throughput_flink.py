"""A workload of ``throughput.py`` on PyFlink: one JSON line with the rows/s of each run.

``python _throughput_flink.py FOLDER WORKLOAD MODE RUNS``, by a python that has apache-flink, and
with Java. A ``KeyedProcessFunction`` in a Flink cluster within one JVM, two subtasks of each;
Python in processes of its own (``process``) or within the JVM (``thread``). The source is Flink's
own reader of CSV files (a PyFlink from pip has none for Parquet), over many copies of the first
files; what is emitted is forgotten. A run is in the middle of the job, once it has read each key
and as many rows more: it is slow while keys are new. It is 30 s; in process mode two minutes, for
rows are counted by bundles, which take several seconds there.

As Flink's documents advise: RocksDB with incremental checkpoints, every 10 s; a cache of Python's
state large enough for all keys of 100 k (its default is 1,000); bundles of up to 10,000 rows or 5 s
(1,000 and 1 s); memory for RocksDB; objects reused.
"""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.csv as pc
import pyarrow.parquet as pq
from _flink import Watch, configuration
from _workloads import WORKLOADS, Workload
from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment

FILES, COPIES = 17, 200
RUN_S = {"process": 120, "thread": 30}
SETTINGS = {
    "python.state.cache-size": "200000",
    "python.fn-execution.bundle.size": "10000",
    "python.fn-execution.bundle.time": "5000",
}


class Folded(KeyedProcessFunction):
    """The workload's fold, its state one value for each key."""

    def __init__(self, name: str) -> None:
        self._name = name

    def open(self, runtime_context: Any) -> None:
        """Take hold of the state."""
        workload = WORKLOADS[self._name]
        self._update, self._keys = workload.update, workload.keys
        shape = Types.TUPLE([Types.LONG()] * len(workload.state.split(", ")))
        self._value = runtime_context.get_state(ValueStateDescriptor("value", shape))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        """One row."""
        row = tuple(value)
        new = self._update(self._value.value(), row)
        self._value.update(new)
        yield (*row[: self._keys], *new)


def files_in(folder: Path) -> list[Path]:
    """Those that are read."""
    return sorted(folder.glob("*.parquet"))[:FILES]


def copied(folder: Path, workload: Workload, root: Path) -> None:
    """The rows as CSV, under many names."""
    for file in files_in(folder):
        whole = root / f"{file.stem}.whole"
        pc.write_csv(pq.read_table(file), whole, pc.WriteOptions(include_header=False))
        for number in range(COPIES):
            (root / "rows").mkdir(exist_ok=True)
            (root / "rows" / f"{number:04d}-{file.stem}.csv").hardlink_to(whole)


def main(folder: Path, name: str, mode: str, runs: int, root: Path) -> list[float]:
    """Rows per second of each run."""
    workload = WORKLOADS[name]
    copied(folder, workload, root)
    conf, port = configuration(root, {**SETTINGS, "python.execution-mode": mode})
    env = StreamExecutionEnvironment.get_execution_environment(conf)
    tables = StreamTableEnvironment.create(env)
    columns = workload.rows.replace("long", "BIGINT")
    tables.execute_sql(
        f"CREATE TABLE given ({columns}) WITH ('connector' = 'filesystem', "
        f"'path' = '{(root / 'rows').as_uri()}', 'format' = 'csv')"
    )
    rows = tables.to_data_stream(tables.from_path("given"))
    keys = workload.keys
    if keys == 1:
        keyed = rows.key_by(lambda row: row[0], Types.LONG())
    else:
        shape = Types.TUPLE([Types.LONG()] * keys)
        keyed = rows.key_by(lambda row: tuple(row)[:keys], shape)
    out = Types.TUPLE([Types.LONG()] * len(workload.output.split(", ")))
    sinks = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2
    keyed.process(Folded(name), out).sink_to(Sink(sinks.DiscardingSink()))
    run = env.execute_async("throughput")
    watch = Watch(port, run.get_job_id())
    loads = files_in(folder)[: workload.loads]
    # Each key once, and as many rows more.
    warm = 2 * sum(pq.read_metadata(file).num_rows for file in loads)
    while watch.read(1)[1] < warm:
        pass
    seen = [watch.read(1)]
    for _ in range(runs):
        time.sleep(RUN_S[mode])
        seen.append(watch.read(1))
    run.cancel().result()
    return [
        (after[1] - before[1]) / (after[0] - before[0])
        for before, after in itertools.pairwise(seen)
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as there:
        speeds = main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(there))
        print(json.dumps({"rows/s": speeds}))
