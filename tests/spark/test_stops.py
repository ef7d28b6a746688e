"""A stop is no failure, and no failure is a stop: the JVM says so, whoever raised it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chain import chain, check, conf
from diamond import write_source
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException, convert_exception
from pyspark.sql import SparkSession
from session import settings

from absflow.errors import StorageError
from absflow.spark.batch.stops import FailedBatchError, is_stop, overflows
from absflow.storage.delta import transactions

pytestmark = pytest.mark.spark


def interrupted(jvm: Any) -> Py4JJavaError:
    """What a call says whose thread is interrupted, as Spark does it to a query that it stops."""
    jvm.java.lang.Thread.currentThread().interrupt()
    with pytest.raises(Py4JJavaError) as caught:
        jvm.java.lang.Thread.sleep(1)
    return caught.value


def captured(jvm: Any) -> CapturedException:
    """The same as the cause of something that PySpark has an exception of its own for."""
    java = jvm.java.lang.IllegalArgumentException("why", interrupted(jvm).java_exception)
    error = convert_exception(java)
    assert isinstance(error, CapturedException)
    return error


def failed(jvm: Any, call: str = "java.lang.Integer.parseInt", size: int = 1) -> Exception:
    """Nothing of a stop."""
    for name in call.split("."):
        jvm = getattr(jvm, name)
    with pytest.raises((Py4JJavaError, CapturedException)) as caught:
        jvm("x" * size)
    return caught.value


def from_storage(error: Exception) -> StorageError:
    with pytest.raises(StorageError) as caught:
        raise StorageError("could not write") from error
    return caught.value


def followed(error: Exception) -> ValueError:
    with pytest.raises(ValueError, match="then this") as caught:
        try:
            raise error
        finally:
            raise ValueError("then this")
    return caught.value


@pytest.mark.parametrize("raised", [lambda error: error, from_storage, followed])
def test_a_stop_is_a_stop_whoever_raised_it(spark: SparkSession, raised: Any) -> None:
    assert is_stop(raised(interrupted(spark._jvm)))
    assert is_stop(raised(captured(spark._jvm)))
    assert not is_stop(raised(failed(spark._jvm)))
    assert not is_stop(raised(ValueError("java.lang.InterruptedException")))


def test_a_failure_is_given_to_spark_in_other_words(spark: SparkSession) -> None:
    """All of it is there, with the causes; without a call of the JVM, it is left as it is."""
    error = from_storage(failed(spark._jvm, "java.lang.Class.forName"))
    assert overflows(error)
    said = FailedBatchError(error)
    assert not overflows(said)
    assert "java.lang.ClassNotFoundException: x" in str(said)
    assert "\nabsflow.errors.StorageError: could not write\n" in str(said)
    assert not overflows(ValueError("py4j"))


def test_a_failure_with_a_long_text_does_not_end_the_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Spark would overflow the stack of the query's thread on it; the stage is started again."""
    write_source(tmp_path / "a", files=2, rows=50, seed=1)
    append, left = transactions.append_once, [1]

    def failing(rows: Any, path: str, *rest: Any, **named: Any) -> Any:
        if path.endswith("/sink") and left:
            left.clear()
            raise StorageError("away") from failed(spark._jvm, "java.lang.Class.forName", 50_000)
        return append(rows, path, *rest, **named)

    monkeypatch.setattr(transactions, "append_once", failing)
    with settings(spark, conf(tmp_path)):
        run = chain(spark, tmp_path).start()
        assert run.await_termination(timeout=120)
    assert not left
    assert "stage 'tally' died, restart in" in caplog.text
    assert run.finished_checkpoint is not None
    check(spark, tmp_path, run.finished_checkpoint, 2)
