"""A stop is no failure: the JVM says so, whoever raised it."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException, convert_exception
from pyspark.sql import SparkSession

from absflow.errors import StorageError
from absflow.spark.batch.stops import is_stop

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


def failed(jvm: Any) -> Exception:
    """Nothing of a stop."""
    with pytest.raises((Py4JJavaError, CapturedException)) as caught:
        jvm.java.lang.Integer.parseInt("x")
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
