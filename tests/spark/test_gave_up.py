"""How a program ends whose job has given up: the last that is printed says why, in a few lines."""

from __future__ import annotations

import inspect
import logging
import re
import traceback
from pathlib import Path
from typing import Any

import pytest
from diamond import OUTPUT, ROWS, STATE, to_group, write_source
from failing import wrong_type
from pyspark.sql import SparkSession
from session import settings

import absflow

pytestmark = pytest.mark.spark

FAST = {"key-groups": "4", "trigger.interval": "0s"}


def refuses(rows: Any, made: absflow.SinkWrite) -> None:
    """The function of a sink that is away."""
    raise ConnectionError("the warehouse is away")


def failure(spark: SparkSession, root: Path, process: Any, **conf: str) -> absflow.JobFailedError:
    """How a job of one source, one stage and a sink fails."""
    write_source(root / "a", files=1, rows=20, seed=5)
    job = absflow.Job("failing", spark)
    a = job.source("a", spark.readStream.schema(ROWS).parquet(str(root / "a")), bounded=True)
    left = job.stage("left", a, key="k", state=STATE, output=OUTPUT, process=process)
    job.sink("out", left, absflow.ForeachBatchSink(refuses))
    with (
        settings(spark, {**FAST, "storage.path": str(root / "job"), **conf}),
        pytest.raises(absflow.JobFailedError) as failed,
    ):
        job.start().await_termination()
    return failed.value


def last_lines(error: BaseException) -> list[str]:
    """What Python prints last of a program that ends with this error."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    assert not [line for line in lines if line.startswith("\tat ") or "py4j" in line]
    assert "loop.py" not in "".join(lines)
    return lines


def test_a_wrong_result_ends_the_job_at_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the function and the line in one last line; with restarts left, none is made."""
    caplog.set_level(logging.INFO, logger="absflow")
    error = failure(spark, tmp_path, wrong_type, **{"restart.attempts": "3"})
    line = inspect.getsourcelines(wrong_type)[1]
    assert re.fullmatch(
        r"absflow\.errors\.JobFailedError: job 'failing' gave up: stage 'left', input 'a', "
        rf"function wrong_type at .*/failing\.py:{line} \(key group \d\): output column 'g' .*",
        last_lines(error)[-1],
    )
    assert not [record for record in caplog.records if "restart" in record.getMessage()]


def test_what_a_sink_raised_is_in_the_last_line(spark: SparkSession, tmp_path: Path) -> None:
    """Its file and line, too; the cause has the frames of the sink's function alone."""
    error = failure(spark, tmp_path, to_group, **{"restart.attempts": "0"})
    last = last_lines(error)[-1]
    line = inspect.getsourcelines(refuses)[1] + 2
    assert last.startswith("absflow.errors.JobFailedError: job 'failing' gave up: the query of")
    assert last.endswith(f"{__file__}:{line}: ConnectionError: the warehouse is away")
    assert isinstance(error.__cause__, absflow.AbsflowError)
    assert str(error.__cause__).count("  File ") == 1
    assert len(last_lines(error)) < 30
