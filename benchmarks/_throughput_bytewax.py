"""A workload of ``throughput.py`` on Bytewax: one JSON line with the rows/s of each run.

``python _throughput_bytewax.py FOLDER WORKLOAD WORKERS RUNS``, by a python that has bytewax. It
reads the Parquet files in ``FOLDER``, shared out among so many workers (threads of one process
would share one interpreter lock, so each worker is a process), with recovery into SQLite every 10
seconds, as Bytewax's guide sets it up. As its guide advises, a step handles rows in batches of the
source's size, and the source gives thousands at a time. A run is 10 s of a flow that goes on, the
first of them when as many rows are through as the files that load have: what comes to the sinks of
all workers.
"""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _workloads import WORKLOADS, Row, Workload

BATCH, SNAPSHOT_S, RUN_S = 5_000, 10, 10
Seen = list[tuple[float, int]]


def flow(files: list[Path], workload: Workload, workers: int, seconds: float, seen: Seen) -> Any:
    """Files to a running state per key to nowhere, until so long behind the loads.

    ``seen`` is called when rows came to the sink, and how many.
    """
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    class Part(StatefulSourcePartition):
        def __init__(self, numbers: list[int], place: int | None) -> None:
            self.place = place or 0
            self.batches = islice(self.read(numbers), self.place, None)
            self.end: float | None = None

        def read(self, numbers: list[int]) -> Iterator[pa.RecordBatch]:
            for number in numbers:
                if self.end is None and number >= workload.loads:
                    self.end = time.monotonic() + seconds
                yield from pq.read_table(files[number]).to_batches(max_chunksize=BATCH)

        def next_batch(self) -> list[tuple[str, Row]]:
            if self.end is not None and time.monotonic() > self.end:
                raise StopIteration
            batch = next(self.batches)
            self.place += 1
            columns = [column.to_numpy().tolist() for column in batch.columns]
            if workload.keys == 1:
                names = map(str, columns[0])
            else:
                names = map(str, zip(*columns[: workload.keys], strict=True))
            return list(zip(names, zip(*columns, strict=True), strict=True))

        def snapshot(self) -> int:
            return self.place

    class Files(FixedPartitionedSource):
        def list_parts(self) -> list[str]:
            return [str(number) for number in range(workers)]

        def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Part:
            return Part([*range(len(files))][int(for_part) :: workers], resume_state)

    class Nowhere(StatelessSinkPartition):
        def write_batch(self, items: list[Any]) -> None:
            seen.append((time.monotonic(), len(items)))

    class Sink(DynamicSink):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Nowhere:
            return Nowhere()

    def fold(state: Row | None, row: Row) -> tuple[Row, Row]:
        new = workload.update(state, row)
        return new, new

    made = Dataflow("throughput")
    rows = op.input("rows", made, Files())
    op.output("out", op.stateful_map("fold", rows, fold), Sink())
    return made


def work(given: list[str], number: int, recovery: str) -> None:
    """One worker's process; it prints when rows came to its sink, and how many."""
    from bytewax._bytewax import cluster_main
    from bytewax.recovery import RecoveryConfig

    files = sorted(Path(given[0]).glob("*.parquet"))
    workers, runs = int(given[2]), int(given[3])
    addresses = [f"127.0.0.1:{29_500 + n}" for n in range(workers)] if workers > 1 else []
    seen: Seen = []
    cluster_main(
        # So much longer, as workers are not done with the loads at the same time.
        flow(files, WORKLOADS[given[1]], workers, (runs + 2) * RUN_S, seen),
        addresses,
        number,
        epoch_interval=timedelta(seconds=SNAPSHOT_S),
        recovery_config=RecoveryConfig(recovery),
        worker_count_per_proc=1,
    )
    print(json.dumps(seen))


def run(given: list[str]) -> list[float]:
    """The rows/s of all workers together, in each run."""
    from bytewax.recovery import init_db_dir

    workers, runs = int(given[2]), int(given[3])
    files = sorted(Path(given[0]).glob("*.parquet"))[: WORKLOADS[given[1]].loads]
    loaded = sum(pq.read_metadata(file).num_rows for file in files)
    with tempfile.TemporaryDirectory() as recovery:
        init_db_dir(Path(recovery), workers)
        me = [sys.executable, __file__, *given]
        processes = [
            subprocess.Popen(
                me, env={**os.environ, "WORKER": f"{n} {recovery}"}, stdout=subprocess.PIPE
            )
            for n in range(workers)
        ]
        with ThreadPoolExecutor() as reading:  # one that is not read from would wait for it
            outputs = list(reading.map(lambda process: process.communicate()[0], processes))
        assert all(process.returncode == 0 for process in processes)
    # Before it, Bytewax may say that another was not there yet.
    seen = [json.loads(text.splitlines()[-1]) for text in outputs]
    at, rows = zip(*sorted(chain.from_iterable(seen)), strict=True)
    since = at[np.searchsorted(np.cumsum(rows), loaded)]
    if at[-1] < since + runs * RUN_S:
        sys.exit(f"the rows were through after {at[-1] - since:.0f} s; write more files")
    run_of = (np.array(at) - since) // RUN_S
    return [float(np.sum(rows, where=run_of == number) / RUN_S) for number in range(runs)]


if __name__ == "__main__":
    if worker := os.environ.get("WORKER"):
        number, _, recovery = worker.partition(" ")
        work(sys.argv[1:], int(number), recovery)
    else:
        print(json.dumps({"rows/s": run(sys.argv[1:])}))
