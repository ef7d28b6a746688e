"""How a stop ends a micro-batch: what Spark says to it, and what it says to Spark."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError

__all__ = ["StoppedError", "is_stop"]

# What a call says that a stop has cut short: the thread is interrupted, its jobs are cancelled.
_SIGNS = ("java.lang.InterruptedException", "[SPARK_JOB_CANCELLED]")


class StoppedError(Exception):
    """The query was stopped inside a batch.

    Spark tells a stop from a failure by a regular expression over what Python prints, which
    overflows the stack of the query's thread on a text as long as a Java stack trace.
    """

    def __str__(self) -> str:
        return (
            "py4j.protocol.Py4JJavaError: An error occurred while calling a batch: "
            "java.lang.InterruptedException"
        )


def is_stop(error: Exception) -> bool:
    """Whether a call failed because its query is being stopped."""
    if not isinstance(error, Py4JJavaError):
        return False
    text = str(error)  # which the JVM is asked for
    return any(sign in text for sign in _SIGNS)
