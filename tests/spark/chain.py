"""A job of two stages and a channel with a known answer.

``python chain.py ROOT [NAME=VALUE ...]`` runs it to its end over the files in ``ROOT/a``, with this
Spark conf; with ``ABSFLOW_SIGTERM`` true, until SIGTERM.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from diamond import OUTPUT, ROWS, STATE, expected_state, read_source, to_group
from pyspark.sql import SparkSession
from reading import assert_same_rows
from session import builder, settings, with_delta

import absflow

SETTINGS = {
    "checkpoint.interval": "1s",
    "edges": "channel",
    "key-groups": "4",
    "state.max-inline": "0B",
}


def chain(
    spark: SparkSession,
    root: Path,
    sink: Path | str | None = None,
    *,
    bounded: bool = True,
    mode: str = "immediate",
    process: Callable[..., absflow.Result] = to_group,
) -> absflow.Job:
    """Source ``a`` to ``left`` to ``tally`` to a Delta sink."""
    job = absflow.Job("chain", spark)
    frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    a = job.source("a", frame.parquet((root / "a").as_uri()), bounded=bounded)
    left = job.stage("left", a, key="k", state=STATE, output=OUTPUT, process=process)
    tally = job.stage("tally", left, key="g", state=STATE, output=OUTPUT, process=process)
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


def conf(root: Path, **more: str) -> dict[str, str]:
    """Settings for a run under ``root``; ``more`` has ``__`` for a dot and ``_`` for a dash."""
    given = {name.replace("__", ".").replace("_", "-"): value for name, value in more.items()}
    return {"storage.path": str(root / "job"), **SETTINGS, **given}


def run(spark: SparkSession, root: Path, **more: str) -> int:
    """Run the job to its end; its last checkpoint."""
    with settings(spark, conf(root, **more)):
        started = chain(spark, root).start()
        assert started.await_termination(timeout=300)
    assert started.finished_checkpoint is not None
    return started.finished_checkpoint


def wait(condition: Callable[[], bool], run: absflow.Run, patience_s: float = math.inf) -> None:
    """Look until it holds, while the job runs."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, run.progress()
        assert not run.await_termination(timeout=0.2), "the job ended by itself"


def check(spark: SparkSession, root: Path, checkpoint: int, files: int) -> None:
    """The sink and the state at ``checkpoint`` are those of ``files`` files."""
    due = expected(root, files)
    sink = spark.read.format("delta").load(str(root / "sink")).toPandas()
    assert_same_rows(sink, due["sink"], ["id"])
    history = absflow.history(spark, str(root / "job"))
    for stage, key in (("left", "k"), ("tally", "g")):
        state = history.state(stage, checkpoint).toPandas()
        assert_same_rows(state, due[stage], [key])


def started(root: Path, *program: str, endless: bool) -> subprocess.Popen[bytes]:
    """The job in a process of its own, which prints into ``root/log``.

    Args:
        root: where its files are.
        program: what runs this file.
        endless: until SIGTERM; else to the end of its files.
    """
    here = Path(__file__)
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(here.parent)}
    environment |= {"PYSPARK_PYTHON": sys.executable, "ABSFLOW_SIGTERM": str(endless).lower()}
    with (root / "log").open("w") as log:
        return subprocess.Popen(
            [*program, str(here), str(root)],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def wait_for_rows(root: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the job of a process has committed rows to the sink, or has ended."""
    log = root / "sink" / "_delta_log"
    while process.poll() is None and len(list(log.glob("*.json"))) < 2:
        time.sleep(0.2)


def main(root: Path, more: dict[str, str]) -> None:
    """Run the job in this process."""
    start = builder()
    given = {f"spark.absflow.{name}": value for name, value in conf(root).items()}
    for name, value in (given | more).items():
        start = start.config(name, value)
    spark = with_delta(start).getOrCreate()
    sigterm = os.environ.get("ABSFLOW_SIGTERM", "false")
    spark.conf.set("spark.absflow.savepoint.on-sigterm", sigterm)
    chain(spark, root, bounded=sigterm == "false").start().await_termination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), dict(word.split("=", 1) for word in sys.argv[2:]))
