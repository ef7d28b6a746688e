"""A job of two stages and a channel with a known answer, also as a program that dies on cue.

``python chain.py ROOT [POINT]`` runs it to its end over the files in ``ROOT/a``, or kills its own
process group with SIGKILL (Python driver and JVM at once) when it comes to ``POINT``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from delta import configure_spark_with_delta_pip
from diamond import OUTPUT, ROWS, STATE, expected_state, read_source, to_group
from pyspark.sql import SparkSession

import absflow
from absflow.spark.batch import StageBatches
from absflow.storage import tables

SETTINGS = {"checkpoint.interval": "1s", "key-groups": "4"}


def chain(
    spark: SparkSession,
    root: Path,
    sink: Path | None = None,
    *,
    bounded: bool = True,
    mode: str = "immediate",
) -> absflow.Job:
    """Source ``a`` to ``left`` to ``tally`` to a Delta sink."""
    job = absflow.Job("chain", spark)
    frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    a = job.source("a", frame.parquet(str(root / "a")), bounded=bounded)
    left = job.stage("left", a, key="k", state=STATE, output=OUTPUT, process=to_group)
    tally = job.stage("tally", left, key="g", state=STATE, output=OUTPUT, process=to_group)
    job.sink("out", tally, absflow.DeltaSink(str(sink or root / "sink")), mode=mode)
    return job


def expected(root: Path, files: int) -> dict[str, pd.DataFrame]:
    """State of both stages, and the sink, after the first ``files`` files."""
    rows = read_source(root / "a", files)
    grouped = rows.assign(g=rows["id"] % 7)
    return {
        "left": expected_state(rows, "k"),
        "tally": expected_state(grouped, "g"),
        "sink": grouped[["id", "g", "v"]],
    }


def _is_rows(path: str, version: int) -> bool:
    return "/channels/" in path and version % 2 == 0


def _is_barriers(path: str, version: int) -> bool:
    return "/channels/" in path and version % 2 == 1


# Where the program can die: which commit, the how-manieth of it in this process, before or after.
POINTS: dict[str, tuple[Callable[[str, int], bool], int, str]] = {
    "in the middle of a batch": (_is_rows, 2, "after"),
    "before a barrier reaches the channel": (_is_barriers, 1, "before"),
    "after rows reached the sink": (lambda path, _: path.endswith("/sink"), 3, "after"),
    "before a snapshot is appended": (lambda path, _: "/state/" in path, 2, "before"),
    "after a snapshot was appended": (lambda path, _: "/state/" in path, 1, "after"),
    "before a checkpoint is completed": (
        lambda path, _: path.endswith("/checkpoints"),
        2,
        "before",
    ),
    "after a checkpoint was completed": (lambda path, _: path.endswith("/checkpoints"), 2, "after"),
}
# Not a commit of absflow's: the batch is done, Spark has not written it into its commit log.
BEFORE_SPARK_COMMIT = "before Spark's commit of a batch with a snapshot"


def _die() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _die_at(point: str) -> None:
    if point == BEFORE_SPARK_COMMIT:
        report = StageBatches._report

        def reported(*args: Any) -> None:
            report(*args)
            _die()

        StageBatches._report = reported  # type: ignore[method-assign]
        return
    matches, number, when = POINTS[point]
    seen = 0
    append = tables.append

    def dying(frame: Any, path: str, app_id: str, version: int, note: Any) -> None:
        nonlocal seen
        mine = matches(path, version)
        seen += mine
        if mine and seen == number and when == "before":
            _die()
        append(frame, path, app_id, version, note)
        if mine and seen == number and when == "after":
            _die()

    tables.append = dying  # type: ignore[assignment]


def main(root: Path, point: str | None) -> None:
    """Run the job in this process."""
    from conftest import builder

    start = builder().config("spark.absflow.storage.path", str(root / "job"))
    for name, value in SETTINGS.items():
        start = start.config(f"spark.absflow.{name}", value)
    spark = configure_spark_with_delta_pip(start).getOrCreate()
    if point is not None:
        _die_at(point)
    sigterm = os.environ.get("ABSFLOW_SIGTERM", "false")
    spark.conf.set("spark.absflow.savepoint.on-sigterm", sigterm)
    chain(spark, root, bounded=sigterm == "false").start().await_termination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
