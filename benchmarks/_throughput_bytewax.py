"""The keyed count, sum and last value of throughput.py on Bytewax: one JSON line with rows/s.

``python _throughput_bytewax.py FOLDER WORKERS SNAPSHOTS``, by a python that has bytewax. Reads the
Parquet files in ``FOLDER``, shared out among so many workers (threads of one process would share
one interpreter lock, so each worker is a process), with recovery into SQLite every ``SNAPSHOTS``
seconds, as Bytewax's guide sets it up; 0 is without. As its guide advises, a step handles rows in
batches of the source's size, and the source gives thousands at a time.
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

BATCH = 5_000


def flow(folder: Path, workers: int) -> Any:
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

        def next_batch(self) -> list[tuple[str, int]]:
            if self.place == len(self.batches):
                raise StopIteration
            batch = self.batches[self.place]
            self.place += 1
            keys, values = (column.to_numpy().tolist() for column in batch.columns)
            return list(zip(map(str, keys), values, strict=True))

        def snapshot(self) -> int:
            return self.place

    class Files(FixedPartitionedSource):
        def list_parts(self) -> list[str]:
            return [str(number) for number in range(workers)]

        def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Part:
            files = sorted(folder.glob("*.parquet"))
            return Part(files[int(for_part) :: workers], resume_state)

    class Nowhere(StatelessSinkPartition):
        def write_batch(self, items: list[Any]) -> None:
            pass

    class Sink(DynamicSink):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Nowhere:
            return Nowhere()

    def fold(
        state: tuple[int, int, int] | None, value: int
    ) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        n, total, _ = state or (0, 0, 0)
        new = n + 1, total + value, value
        return new, new

    made = Dataflow("throughput")
    rows = op.input("rows", made, Files())
    op.output("out", op.stateful_map("fold", rows, fold), Sink())
    return made


def work(folder: Path, workers: int, number: int, snapshots: int, recovery: str) -> None:
    """One worker's process; the first prints how long it took."""
    from bytewax._bytewax import cluster_main
    from bytewax.recovery import RecoveryConfig

    addresses = [f"127.0.0.1:{29_500 + n}" for n in range(workers)] if workers > 1 else []
    began = time.monotonic()
    cluster_main(
        flow(folder, workers),
        addresses,
        number,
        epoch_interval=timedelta(seconds=snapshots or 10),
        recovery_config=RecoveryConfig(recovery) if snapshots else None,
        worker_count_per_proc=1,
    )
    if number == 0:
        rows = sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
        print(json.dumps({"rows/s": rows / (time.monotonic() - began)}))


def main(folder: Path, workers: int, snapshots: int) -> None:
    """Run all workers."""
    from bytewax.recovery import init_db_dir

    with tempfile.TemporaryDirectory() as recovery:
        init_db_dir(Path(recovery), workers)
        me = [sys.executable, __file__, str(folder), str(workers), str(snapshots)]
        others = [
            subprocess.Popen(me, env={**os.environ, "WORKER": f"{number} {recovery}"})
            for number in range(1, workers)
        ]
        work(folder, workers, 0, snapshots, recovery)
        assert all(other.wait() == 0 for other in others)


if __name__ == "__main__":
    given = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if worker := os.environ.get("WORKER"):
        number, _, recovery = worker.partition(" ")
        work(given[0], given[1], int(number), given[2], recovery)
    else:
        main(*given)
