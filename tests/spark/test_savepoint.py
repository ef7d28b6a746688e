"""Savepoints of a running job: asked for by Python, by a row from outside, by a signal, to stop."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from chain import chain, expected, started, wait, wait_for_rows
from deltalake import write_deltalake
from diamond import source_files
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, facts, files_read, stage_of, state_at
from session import builder, settings, with_delta

import absflow
from absflow.cli.reader import Reader
from absflow.facts.columns import REQUESTS
from absflow.protocol.checkpoints import Kind, Status
from absflow.spark.control.run import Run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

STAGES = (("left", "k"), ("tally", "g"))


@contextmanager
def running(spark: SparkSession, root: Path, **conf: str) -> Iterator[tuple[Run, Iterator[None]]]:
    """A chain job without an end, and what writes its next file."""
    given = {"checkpoint.interval": "1h", "edges": "channel", "key-groups": "4"}
    given["storage.path"] = str(root / "job")
    given |= {name.replace("__", ".").replace("_", "-"): value for name, value in conf.items()}
    files = source_files(root / "a", rows=100, seed=5)
    for _ in itertools.islice(files, 3):
        pass
    with settings(spark, given):
        run = chain(spark, root, bounded=False).start()
    try:
        wait(lambda: run.progress().stages["tally"].batch_id >= 1, run)
        yield run, files
    finally:
        if run.is_active:
            run.stop()


def check_cut(spark: SparkSession, root: Path, row: dict[str, Any]) -> int:
    """The state at a checkpoint is that of the files before it; how many these are."""
    read = files_read(row, "left", "a")
    for stage, key in STAGES:
        due = expected(root, read)[stage]
        assert_same_rows(state_at(spark, root / "job", row, stage, key), due, [key])
    return read


def test_a_savepoint_stands_alone_and_the_job_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """It is full, of its own type, and the base of what comes next."""
    with running(spark, tmp_path, checkpoint__interval="2s") as (run, files):
        wait(lambda: run.progress().completed >= 1, run)
        next(files)
        taken = run.savepoint(timeout=120)
        next(files)
        wait(lambda: run.progress().checkpoint_id > taken, run)
    rows = {row["checkpoint_id"]: row for row in completed(spark, tmp_path / "job")}
    assert (rows[taken]["type"], rows[taken]["base_id"]) == ("SAVEPOINT", 0)
    assert rows[taken]["request"]
    assert all(stage["lineage"] == [taken] for stage in rows[taken]["stages"])
    check_cut(spark, tmp_path, rows[taken])
    later = next(row for n, row in sorted(rows.items()) if n > taken)
    assert (later["type"], later["base_id"]) == ("CHECKPOINT", taken)
    check_cut(spark, tmp_path, later)


def test_the_command_line_stops_the_job_with_a_drained_savepoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its row is the answer; channels and sink hold nothing behind it; a restore is exact."""
    with running(spark, tmp_path) as (run, files):
        ask(tmp_path, incarnation=7, request="for another driver")
        command = [str(Path(sys.executable).with_name("absflow")), "stop", "--drain"]
        asked = subprocess.Popen(
            [*command, "--storage", str(tmp_path / "job")], stdout=subprocess.PIPE, text=True
        )
        for _ in itertools.islice(files, 8):  # the source goes on while the savepoint is taken
            run.await_termination(timeout=0.5)
        assert asked.wait(timeout=200) == 0
        assert run.await_termination(timeout=60)
        assert run.unflushed == {"left": 0}
    row = facts(spark, tmp_path / "job")[-1]
    assert (row["kind"], row["type"]) == ("COMPLETED", "SAVEPOINT")
    said = asked.communicate()[0]
    assert said.startswith(f"savepoint {row['checkpoint_id']} of the job under ")
    read = check_cut(spark, tmp_path, row)
    sink = spark.read.format("delta").load(str(tmp_path / "sink"))
    assert_same_rows(sink.toPandas(), expected(tmp_path, read)["sink"], ["id"])
    assert sink.count() == stage_of(row, "left")["rows_out"] > 0
    given = {"storage.path": str(tmp_path / "job"), "restore.from": "latest", "key-groups": "3"}
    with settings(spark, given):
        again = chain(spark, tmp_path).start()
    assert again.await_termination(timeout=200)
    every = len(list((tmp_path / "a").glob("*.parquet")))
    sink = spark.read.format("delta").load(str(tmp_path / "sink"))
    assert_same_rows(sink.toPandas(), expected(tmp_path, every)["sink"], ["id"])


def ask(root: Path, incarnation: int, request: str, **more: bool) -> None:
    """A row of ``requests``, by another program's means."""
    row = {
        "request": request,
        "incarnation": incarnation,
        "requested_at": datetime.now(timezone.utc),
        **more,
    }
    table = pa.Table.from_pylist([row], schema=REQUESTS)
    write_deltalake(str(root / "job" / "requests"), table, mode="append")


def test_a_savepoint_that_fails_leaves_the_job_running(spark: SparkSession, tmp_path: Path) -> None:
    """Whoever asked learns why; checkpoints go on, though it was to stop the job."""
    with running(spark, tmp_path, savepoint__timeout="1ms", checkpoint__interval="2s") as (
        run,
        files,
    ):
        with pytest.raises(absflow.SavepointFailedError, match="EXPIRED"):
            run.stop(savepoint=True, drain=True)
        before = run.progress().checkpoint_id
        next(files)
        wait(lambda: run.progress().checkpoint_id > before, run)
    with pytest.raises(absflow.SavepointFailedError, match="the job has ended"):
        run.savepoint()


def submitted() -> list[str]:
    """What starts a program by spark-submit: the JVM is the process that is known."""
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    conf = with_delta(builder())._options
    return [str(submit), *(word for pair in conf.items() for word in ("--conf", "=".join(pair)))]


@pytest.mark.parametrize("first", [pytest.param("python", marks=pytest.mark.soak), "spark-submit"])
def test_sigterm(tmp_path: Path, first: str) -> None:
    """With the setting, SIGTERM ends the driver in order, with a savepoint.

    Whichever process is the first of it, which is the one that a supervisor knows.
    """
    files = source_files(tmp_path / "a", rows=100, seed=5)
    for _ in itertools.islice(files, 3):
        pass
    driver = started(
        tmp_path, *([sys.executable] if first == "python" else submitted()), endless=True
    )
    wait_for_rows(tmp_path, driver)
    driver.send_signal(signal.SIGTERM)
    code = driver.wait(timeout=120)
    log_text = (tmp_path / "log").read_text()
    # A JVM that ends by a signal says so, whatever its hooks have done.
    assert code == (0 if first == "python" else 128 + signal.SIGTERM), log_text[-3000:]
    assert "with a savepoint" in log_text
    assert "Traceback" not in log_text
    (newest,) = Reader(str(tmp_path / "job")).history(1).shown
    assert (newest.kind, newest.status) == (Kind.SAVEPOINT, Status.COMPLETED)
