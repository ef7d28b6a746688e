"""How a stop ends a micro-batch: what Spark says to it, and what it says to Spark."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

__all__ = ["StoppedError", "is_stop"]

# What a call says that a stop has cut short: the thread is interrupted, its jobs are cancelled.
_SIGNS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
    "[SPARK_JOB_CANCELLED]",
)


class StoppedError(Exception):
    """The query was stopped inside a batch.

    Spark knows a stop by a regular expression over what Python prints, which
    overflows the stack of the query's thread on a text as long as a Java stack trace.
    """

    def __str__(self) -> str:
        return (
            "py4j.protocol.Py4JJavaError: An error occurred while calling a batch: "
            "java.lang.InterruptedException"
        )


def is_stop(error: BaseException) -> bool:
    """Whether a call failed because its query is being stopped, whoever raised it.

    The error of the call may be the cause of another, as one of storage, and may have been followed
    by another while it was handled.
    """
    cause: BaseException | None = error
    while cause is not None:
        trace = _java_trace(cause)
        if any(sign in trace for sign in _SIGNS):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _java_trace(error: BaseException) -> str:
    if isinstance(error, CapturedException):
        return error._stackTrace or ""
    return str(error) if isinstance(error, Py4JJavaError) else ""
