"""A workload of ``throughput.py`` on Bytewax: one JSON line with what each run gave.

``python _throughput_bytewax.py FOLDER WORKLOAD WORKERS RUNS``, by a python that has bytewax. It
reads the Parquet files in ``FOLDER``, shared out among so many workers (threads of one process
would share one interpreter lock, so each worker is a process), with recovery into SQLite every 10
seconds, as Bytewax's guide sets it up. As its guide advises, a step handles rows in batches of the
source's size, and the source gives thousands at a time. What counts is what comes to the sinks of
all workers, once as many rows are through as the files that load have; ``_bytewax.py`` says what a
run is.
"""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from _bytewax import BATCH, Batches, run
from _periods import Runs, runs_of
from _workloads import WORKLOADS, Row, Workload


def read(files: list[Path], numbers: list[int], workload: Workload) -> Batches:
    """The rows of some of the files."""
    for number in numbers:
        for batch in pq.read_table(files[number]).to_batches(max_chunksize=BATCH):
            columns = [column.to_numpy().tolist() for column in batch.columns]
            if workload.keys == 1:
                names = map(str, columns[0])
            else:
                names = map(str, zip(*columns[: workload.keys], strict=True))
            rows = zip(*columns, strict=True)
            yield list(zip(names, rows, strict=True)), number >= workload.loads


def work(given: list[str], number: int, recovery: str) -> None:
    """One worker's process; it prints when rows came to its sink, and when epochs ended."""
    files, workload = sorted(Path(given[0]).glob("*.parquet")), WORKLOADS[given[1]]
    workers, runs = int(given[2]), int(given[3])
    addresses = [f"127.0.0.1:{29_500 + n}" for n in range(workers)] if workers > 1 else []

    def fold(state: Row | None, row: Row) -> tuple[Row, Row]:
        new = workload.update(state, row)
        return new, new

    def part(first: int) -> Batches:
        return read(files, [*range(len(files))][first::workers], workload)

    parts = {str(n): lambda n=n: part(n) for n in range(workers)}
    print(json.dumps(asdict(run(parts, fold, runs, recovery, addresses, number))))


def main(given: list[str]) -> Runs:
    """The rows/s of all workers together in each run, and the longest time without a row."""
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
    came = sorted(chain.from_iterable(one["rows"] for one in seen))
    since = came[int(np.searchsorted(np.cumsum([rows for _, rows in came]), loaded))][0]
    found = runs_of(came, [at for at in seen[0]["epochs"] if at >= since], runs)
    if len(found[0]) < runs:
        sys.exit(f"{len(found[0])} runs only before all rows were through; write more files")
    return found


if __name__ == "__main__":
    if worker := os.environ.get("WORKER"):
        number, _, recovery = worker.partition(" ")
        work(sys.argv[1:], int(number), recovery)
    else:
        speeds, pauses = main(sys.argv[1:])
        print(json.dumps({"rows/s": speeds, "longest pause": pauses}))
