"""A job whose output depends on the order of its rows, as a driver that may die.

``python row_order.py ROOT CORES [die]``: two stages number the rows of each key, one of the Parquet
files in ``ROOT/files``, one of the Delta table ``ROOT/table``, each all of it in one batch. With
``die`` the driver kills itself with SIGKILL once both batches have written their rows and Spark has
committed neither.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import absflow
from absflow.spark.batch.micro_batch import ChainBatches

ROWS = "id long, k long"
OUTPUT = "id long, k long, place long"
STAGES = ("of_files", "of_table")


def numbered(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """The rows, each with how many of its key came before it."""
    code, groups = context.key_of_row, state.num_rows
    before = np.where(context.is_new, 0, state["n"].fill_null(0).to_numpy())
    counts = np.bincount(code, minlength=groups)
    by_key = np.argsort(code, kind="stable")
    starts = np.cumsum(counts) - counts
    place = np.empty(len(code), dtype=np.int64)
    place[by_key] = np.arange(len(code)) - np.repeat(starts, counts)
    output = pa.table({"id": rows["id"], "k": rows["k"], "place": before[code] + place})
    return absflow.Result(output=output, state=pa.table({"k": state["k"], "n": before + counts}))


def main(root: Path, cores: int, *, die: bool) -> None:
    """Run the job in this process."""
    from session import builder, with_delta

    start = builder().master(f"local[{cores}]").config("spark.sql.files.openCostInBytes", "1024")
    spark = with_delta(start).getOrCreate()
    settings = {
        "storage.path": str(root / "job"),
        "checkpoint.interval": "1s",
        "key-groups": "2",
        "restart.attempts": "0",
    }
    for name, value in settings.items():
        spark.conf.set(f"spark.absflow.{name}", value)
    job = absflow.Job("numbers", spark)
    frames = {
        "of_files": spark.readStream.schema(ROWS).parquet(str(root / "files")),
        "of_table": spark.readStream.format("delta").load(str(root / "table")),
    }
    for name, frame in frames.items():
        source = job.source(name, frame, bounded=True)
        stage = job.stage(
            f"s_{name}", source, key="k", state="n long", output=OUTPUT, process=numbered
        )
        job.sink(f"sink_{name}", stage, absflow.DeltaSink(str(root / name)))
    if die:
        _die_behind_the_writes()
    job.start().await_termination()
    spark.stop()


def _die_behind_the_writes() -> None:
    both = threading.Barrier(len(STAGES), action=lambda: os.killpg(os.getpgrp(), signal.SIGKILL))
    write = ChainBatches._write

    def written(self: ChainBatches, *args: Any) -> None:
        write(self, *args)
        both.wait()

    ChainBatches._write = written  # type: ignore[method-assign]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), die="die" in sys.argv[3:])
