"""What a person does wrong in the first hour, and what absflow says to it.

Mistakes in settings, versions, graphs and functions have tests where these are checked.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from chain import chain, check, conf, run, started, wait_for_rows
from diamond import OUTPUT, ROWS, STATE, source_files, to_group, write_source
from processes import bury
from pyspark.sql import SparkSession
from reading import commits, completed, durable_files
from session import settings

import absflow
from absflow.cli.reader import Reader

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

# Root may do more than a file's rights say; without this it may not, as anybody.
ORDINARY = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]


def last_line(root: Path) -> str:
    """Of what a driver has printed."""
    return (root / "log").read_text().splitlines()[-1]


def test_a_storage_path_without_rights_is_named(tmp_path: Path) -> None:
    """The line says which path, and what the system said."""
    write_source(tmp_path / "a", files=1, rows=20, seed=1)
    (tmp_path / "job").mkdir()
    (tmp_path / "job").chmod(0o555)
    before = ORDINARY if os.geteuid() == 0 else []
    process = started(tmp_path, *before, sys.executable, endless=False)
    try:
        assert process.wait(timeout=120) == 1
    finally:
        bury(process)
    line = last_line(tmp_path)
    assert line.startswith("absflow.errors.StorageError: could not ")
    assert f"{tmp_path}/job" in line
    assert "ermission denied" in line
    assert list((tmp_path / "job").iterdir()) == []


def test_control_c_ends_a_job_that_goes_on_later(spark: SparkSession, tmp_path: Path) -> None:
    """The driver ends in order, while the JVM has a Python to call; nothing is lost or twice."""
    files = source_files(tmp_path / "a", rows=100, seed=5)
    for _ in itertools.islice(files, 3):
        pass
    process = started(tmp_path, sys.executable, endless=True)
    try:
        wait_for_rows(tmp_path, process)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
        process.wait(timeout=60)
    finally:
        bury(process)
    text = (tmp_path / "log").read_text()
    assert "\nKeyboardInterrupt\n" in text
    assert "Connection refused" not in text
    assert Reader(str(tmp_path / "job")).driver()[1] == "ended"
    next(files)
    check(spark, tmp_path, run(spark, tmp_path), 4)


def nothing(state: object, row: object) -> tuple[object, object]:
    """A row of state where the rows to emit are expected."""
    return None, 3


def test_a_root_of_another_job_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Every difference of the graphs is named, and nothing is changed."""
    write_source(tmp_path / "a", files=2, rows=50, seed=2)
    run(spark, tmp_path)
    before = durable_files(tmp_path / "job")
    job = absflow.Job("other", spark)
    frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    rows = job.source("b", frame.parquet(str(tmp_path / "a")), bounded=True)
    job.stage("sums", rows, key="k", state=STATE, output=OUTPUT, process=to_group)
    with settings(spark, conf(tmp_path)):
        words = "  stage 'left' is gone\n  stage 'tally' is gone\n  stage 'sums' is new\n"
        with pytest.raises(absflow.GraphError, match=words):
            job.start()
    assert durable_files(tmp_path / "job") == before


def test_another_graph_where_no_checkpoint_was_completed_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nobody is sent to a checkpoint that is not there; what to delete is said."""
    write_source(tmp_path / "a", files=2, rows=50, seed=2)

    def job(state: str) -> absflow.Job:
        job = absflow.Job("sums", spark)
        frame = spark.readStream.schema(ROWS).parquet(str(tmp_path / "a"))
        rows = job.source("a", frame, bounded=True)
        job.stage(
            "sums", rows, key="k", state=state, output="k string", process=nothing, form="per-row"
        )
        return job

    with settings(spark, conf(tmp_path)), pytest.raises(absflow.JobFailedError, match="outputs"):
        job("n long").start().await_termination(timeout=120)
    before = durable_files(tmp_path / "job")
    for more in ({}, {"restore__from": "latest"}):
        words = "(?s)state column 'm' .* is added.*There is no checkpoint.*delete the storage root"
        with settings(spark, conf(tmp_path, **more)):
            with pytest.raises(absflow.GraphError, match=words):
                job("m long").start()
    assert durable_files(tmp_path / "job") == before


@pytest.mark.parametrize("mode", ["immediate", "on-checkpoint"])
def test_a_sink_that_outlived_its_storage_root_is_refused(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """The new job's rows would be taken for those that are there, and be left out."""
    write_source(tmp_path / "a", files=2, rows=50, seed=2)
    with settings(spark, conf(tmp_path)):
        assert chain(spark, tmp_path, mode=mode).start().await_termination(timeout=300)
        shutil.rmtree(tmp_path / "job")
        before = durable_files(tmp_path / "sink")
        words = "sink 'out': table '.*sink' has rows of attempt 1 of job 'chain', but under storage"
        with pytest.raises(absflow.GraphError, match=words):
            chain(spark, tmp_path, mode=mode).start()
    assert durable_files(tmp_path / "sink") == before


def test_a_sink_table_with_other_columns_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Both are said, before anything runs."""
    write_source(tmp_path / "a", files=1, rows=50, seed=2)
    spark.sql(f"CREATE TABLE delta.`{tmp_path / 'sink'}` (id LONG, name STRING) USING delta")
    words = r"sink table '.*sink' has columns struct<id:bigint,name:string>, but .* output is "
    with settings(spark, conf(tmp_path)), pytest.raises(absflow.GraphError, match=words):
        chain(spark, tmp_path).start()
    job = tmp_path / "job"
    assert not commits(job / "checkpoints") or not completed(spark, job)
