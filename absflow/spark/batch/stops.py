"""How a micro-batch ends that a stop or an error cuts short: what Spark is given of it.

Spark knows a stop by a regular expression over what Python prints, from the words of a call that
failed to the name of an interruption. It overflows the stack of the query's thread on a text as
long as a Java stack trace, and the query then ends without saying why.
"""

from __future__ import annotations

import traceback

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

__all__ = ["FailedBatchError", "StoppedError", "is_stop", "overflows"]

# The words of the regular expression.
_CALL = "py4j.protocol.Py4JJavaError: An error occurred while calling"

# What a call says that a stop has cut short: the thread is interrupted, its jobs are cancelled.
_SIGNS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
    "[SPARK_JOB_CANCELLED]",
)


class StoppedError(Exception):
    """The query was stopped inside a batch."""

    def __str__(self) -> str:
        return f"{_CALL} a batch: java.lang.InterruptedException"


class FailedBatchError(Exception):
    """A batch failed; the text is what Python prints of it, in words that Spark does not seek."""

    def __init__(self, error: BaseException) -> None:
        """Take the place of ``error``."""
        super().__init__(_printed(error).replace(_CALL, _CALL.replace(": An", ", an")))


def overflows(error: BaseException) -> bool:
    """Whether Spark could fail on what Python prints of an error."""
    return _CALL in _printed(error)


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


def _printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _java_trace(error: BaseException) -> str:
    if isinstance(error, CapturedException):
        return error._stackTrace or ""
    return str(error) if isinstance(error, Py4JJavaError) else ""
