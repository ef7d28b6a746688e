"""A workload of ``throughput.py`` on Bytewax: one JSON line with the rows/s of each run.

``python _throughput_bytewax.py FOLDER WORKLOAD WORKERS RUNS``, by a python that has bytewax. A run
reads the first six Parquet files in ``FOLDER``, shared out among so many workers (threads of one
process would share one interpreter lock, so each worker is a process), with recovery into SQLite
every 10 seconds, as Bytewax's guide sets it up. As its guide advises, a step handles rows in
batches of the source's size, and the source gives thousands at a time. The start of the processes
is not counted.
"""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from _workloads import WORKLOADS, Row, Workload

BATCH, FILES, SNAPSHOT_S = 5_000, 6, 10


def files_in(folder: Path) -> list[Path]:
    """Those that are read, in order."""
    return sorted(folder.glob("*.parquet"))[:FILES]


def flow(folder: Path, workload: Workload, workers: int) -> Any:
    """Files to a running state per key to nowhere."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    class Part(StatefulSourcePartition):
        def __init__(self, files: list[Path], place: int | None) -> None:
            self.batches = [
                batch
                for file in files
                for batch in pq.read_table(file).to_batches(max_chunksize=BATCH)
            ]
            self.place = place or 0

        def next_batch(self) -> list[tuple[str, Row]]:
            if self.place == len(self.batches):
                raise StopIteration
            batch = self.batches[self.place]
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
            files = files_in(folder)
            return Part(files[int(for_part) :: workers], resume_state)

    class Nowhere(StatelessSinkPartition):
        def write_batch(self, items: list[Any]) -> None:
            pass

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
    """One worker's process; the first prints how long it took."""
    from bytewax._bytewax import cluster_main
    from bytewax.recovery import RecoveryConfig

    folder, workers = Path(given[0]), int(given[2])
    addresses = [f"127.0.0.1:{29_500 + n}" for n in range(workers)] if workers > 1 else []
    began = time.monotonic()
    cluster_main(
        flow(folder, WORKLOADS[given[1]], workers),
        addresses,
        number,
        epoch_interval=timedelta(seconds=SNAPSHOT_S),
        recovery_config=RecoveryConfig(recovery),
        worker_count_per_proc=1,
    )
    if number == 0:
        rows = sum(pq.read_metadata(file).num_rows for file in files_in(folder))
        print(rows / (time.monotonic() - began))


def run(given: list[str]) -> float:
    """The rows/s of all workers together."""
    from bytewax.recovery import init_db_dir

    workers = int(given[2])
    with tempfile.TemporaryDirectory() as recovery:
        init_db_dir(Path(recovery), workers)
        me = [sys.executable, __file__, *given]
        first, *others = (
            subprocess.Popen(
                me, env={**os.environ, "WORKER": f"{n} {recovery}"}, stdout=subprocess.PIPE
            )
            for n in range(workers)
        )
        speed = float(first.communicate()[0])
        assert all(other.wait() == 0 for other in others)
    return speed


if __name__ == "__main__":
    if worker := os.environ.get("WORKER"):
        number, _, recovery = worker.partition(" ")
        work(sys.argv[1:], int(number), recovery)
    else:
        print(json.dumps({"rows/s": [run(sys.argv[1:]) for _ in range(int(sys.argv[4]))]}))
