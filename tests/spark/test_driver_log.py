"""What a driver says at INFO, one line each, and how it counts rows."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from chain import chain, conf, wait
from diamond import OUTPUT, ROWS, STATE, read_source, write_source
from failing import FailsOnce, slow
from pyspark.sql import SparkSession
from session import settings

import absflow

pytestmark = pytest.mark.spark


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Everything at INFO and above; of several lines, it fails."""
    said = [r.getMessage() for r in caplog.records if r.name.startswith("absflow")]
    assert [line for line in said if "\n" in line] == []
    return said


def one(said: list[str], pattern: str) -> str:
    """The one line that is so."""
    (line,) = (line for line in said if re.fullmatch(pattern, line))
    return line


def test_a_driver_says_what_it_does_and_counts_rows_only(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Barriers are no rows; a job that has read all reads no rows a second."""
    write_source(tmp_path / "a", files=3, rows=60, seed=5)
    rows = len(read_source(tmp_path / "a", 3))
    caplog.set_level(logging.INFO, logger="absflow")
    with settings(spark, conf(tmp_path)):
        run = chain(spark, tmp_path, bounded=False, mode="on-checkpoint").start()
        wait(lambda: all(s.total_rows >= rows for s in run.progress().stages.values()), run)
        seen = run.progress().completed
        wait(lambda: run.progress().completed > seen + 2, run)
        stages = run.progress().stages
        last = run.stop(savepoint=True)
    assert {name: s.total_rows for name, s in stages.items()} == {"left": rows, "tally": rows}
    assert [s.rows_per_second for s in stages.values()] == [0.0, 0.0]
    said = lines(caplog)
    root = re.escape(str(tmp_path / "job"))
    one(said, rf"job 'chain' started on file:{root}: attempt 1, driver 1, no checkpoint yet")
    one(said, r"checkpoint 1 completed in [\d,]+ ms: [\d,]+ keys changed, [\d,]+ bytes")
    one(said, rf"savepoint {last} completed in [\d,]+ ms: [\d,]+ keys changed, [\d,]+ bytes")
    one(said, rf"checkpoint {last} published to sink out")
    one(said, r"job 'chain' ended")
    assert not any("WriteBarrier" in line or "discarded" in line for line in said)


def job_of(spark: SparkSession, root: Path, process: Any) -> absflow.Job:
    """Source ``a`` and stage ``left`` with ``process``."""
    job = absflow.Job("said", spark)
    frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    a = job.source("a", frame.parquet(str(root / "a")), bounded=True)
    job.stage("left", a, key="k", state=STATE, output=OUTPUT, process=process)
    return job


def test_a_driver_says_which_stage_is_restarted(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And of what it had died: stage, input and line first."""
    write_source(tmp_path / "a", files=1, rows=60, seed=5)
    caplog.set_level(logging.INFO, logger="absflow")
    with settings(spark, conf(tmp_path, restart__initial_delay="0s")):
        job_of(spark, tmp_path, FailsOnce(tmp_path / "flag")).start().await_termination()
    said = lines(caplog)
    died = r"stage 'left' died, restart in 0 ms: stage 'left', input 'a', .*failing\.py:\d+ \(.*"
    assert said.index(one(said, died)) < said.index(one(said, "stage 'left' restarted"))


def test_a_driver_says_why_a_checkpoint_was_aborted(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And why the job gave up for it."""
    write_source(tmp_path / "a", files=2, rows=60, seed=5)
    caplog.set_level(logging.INFO, logger="absflow")
    with (
        settings(
            spark, conf(tmp_path, checkpoint__timeout="100ms", checkpoint__tolerable_failed="0")
        ),
        pytest.raises(absflow.JobFailedError, match="1 checkpoint failed in a row"),
    ):
        job_of(spark, tmp_path, slow).start().await_termination()
    said = lines(caplog)
    one(said, r"checkpoint 1 aborted: EXPIRED: not every stage reported within its timeout \(.*")
    one(said, r"job 'said' ended: 1 checkpoint failed in a row, .*")
