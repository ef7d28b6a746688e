"""What is said of a query that died, from the text of Spark's error; no JVM."""

from __future__ import annotations

import traceback
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from absflow.errors import JobFailedError, StorageError
from absflow.spark.control import failures
from absflow.spark.control.failures import failure_of, shortened, without_stack
from absflow.storage.layout import Layout

ROOT: Any = SimpleNamespace(spark=None, layout=Layout("/job"))
OWN = failures.__file__
LIBRARY = traceback.__file__
PROXY = "py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: "
STACK = "\n\tat py4j.Protocol.getReturnValue(Protocol.java:476)\n\tat org.apache.X.y(X.scala:1)\n"


def python_error(*files: str, said: str) -> str:
    """As Spark has an exception of Python on the driver, with a frame in each file."""
    frames = "".join(
        f'  File "{file}", line {7 + n}, in called\n    called()\n    ^^^^^^\n'
        for n, file in enumerate(files)
    )
    return f"{PROXY}Traceback (most recent call last):\n{frames}{said}\n{STACK}"


def test_an_exception_of_a_users_function_is_said_with_its_line() -> None:
    """Of a sink, say; its cause has the user's frames only."""
    text = python_error(LIBRARY, OWN, "/jobs/shop.py", OWN, said="ValueError: the house\nis away")
    failed = failure_of(ROOT, text)
    assert failed.words == "/jobs/shop.py:9: ValueError: the house is away"
    assert str(failed.cause) == (
        'ValueError: the house is away\n  File "/jobs/shop.py", line 9, in called\n'
        "    called()\n    ^^^^^^"
    )
    assert not failed.is_final


def test_an_exception_of_a_library_is_said_without_its_frames() -> None:
    """Nothing in them is the user's."""
    said = "pyspark.errors.X: [USER_RAISED_EXCEPTION] bad source row SQLSTATE: P0001"
    failed = failure_of(ROOT, python_error(LIBRARY, OWN, said=said))
    assert (failed.words, failed.cause) == (said, None)


def test_an_error_of_absflow_is_said_in_its_own_words() -> None:
    """Whatever is around it."""
    text = python_error(OWN, "/jobs/shop.py", said="absflow.errors.StorageError: no space")
    assert failure_of(ROOT, text).words == "StorageError: no space"


def test_an_error_of_java_is_said_without_its_stack() -> None:
    """Its causes stay."""
    text = (
        f"java.lang.X: no{STACK}\nDriver stacktrace:\n\nCaused by: java.Y: why{STACK}\t... 9 more"
    )
    assert failure_of(ROOT, text).words == "java.lang.X: no\nCaused by: java.Y: why"
    assert without_stack(text) == "java.lang.X: no\nCaused by: java.Y: why"


@pytest.mark.parametrize("java", [Py4JError("an error" + STACK), PySparkException("an" + STACK)])
@pytest.mark.parametrize("explicit", [True, False])
def test_a_failure_is_printed_without_errors_of_java(java: Exception, explicit: bool) -> None:
    """What absflow says of them stays, and so does what was raised because of that."""
    try:
        try:
            raise java
        except type(java) as error:
            raise StorageError("could not write") from (error if explicit else None)
    except StorageError as error:
        if not explicit:
            error.__suppress_context__ = False
        failed = JobFailedError("the job stopped")
        failed.__cause__ = error
    assert "Protocol.java" in "".join(traceback.format_exception(failed))
    printed = "".join(traceback.format_exception(shortened(failed)))
    assert "Protocol.java" not in printed
    assert "could not write" in printed
