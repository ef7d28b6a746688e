"""SIGTERM ends a job with a savepoint, whichever process of the driver gets it.

A driver is two processes: Python started the JVM, or the JVM is ``spark-submit`` and started
Python. Who stops a driver knows the first of them only. In Python a handler takes the signal. A JVM
that gets it ends, but runs its shutdown hooks before; Hadoop runs those it is given one behind the
other, and Spark stops itself in one of these. A hook in front of that one still has all of Spark.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pyspark import SparkContext

from absflow.errors import AbsflowError, SettingsError

__all__ = ["SavepointOnSigterm", "check_main_thread"]

_LOG = logging.getLogger(__name__)

# Spark's own hook has 40, Hadoop's file systems 10; the highest is run first.
_BEFORE_SPARK = 100
# For what a program does behind its job, before the JVM goes.
_GRACE_S = 5


def check_main_thread() -> None:
    """Refuse to handle signals elsewhere.

    Raises:
        SettingsError: this is not Python's main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise SettingsError(
            "spark.absflow.savepoint.on-sigterm is true, but the job was not started by the main "
            "thread, and only that can handle signals in Python; start it there"
        )


class SavepointOnSigterm:
    """SIGTERM asks a job for a savepoint, and to stop with it.

    The JVM keeps its hook for good; of a job that has ended, it does nothing.
    """

    def __init__(
        self, job: str, ask: Callable[[], Future[int]], done: threading.Event, timeout_ms: int
    ) -> None:
        """Begin; in the main thread, as :func:`check_main_thread` says.

        Args:
            job: its name.
            ask: asks for the savepoint; it must not block.
            done: set when the job has ended.
            timeout_ms: how long the JVM waits for that at most.
        """
        self._job = job
        self._ask = ask
        self._done = done
        signal.signal(signal.SIGTERM, self._handle)
        jvm: Any = SparkContext._jvm
        # The JVM calls Python as it does for a listener, of which each job has one. If Python has
        # gone by then, the task swallows the error, which Hadoop would log.
        hook = jvm.java.util.concurrent.FutureTask(_Hook(self._from_jvm), None)
        unit = jvm.java.util.concurrent.TimeUnit.MILLISECONDS
        hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
        hooks.addShutdownHook(hook, _BEFORE_SPARK, timeout_ms, unit)

    def _handle(self, signum: int, frame: object) -> None:
        # It only puts into a queue that allows that in a handler; the job's thread does it.
        _LOG.warning("SIGTERM: stopping job %s with a savepoint", self._job)
        self._ask()

    def _from_jvm(self) -> None:
        if self._done.is_set():
            return
        _LOG.warning("the JVM ends: stopping job %s with a savepoint", self._job)
        try:
            self._ask().result()
        except AbsflowError as error:
            _LOG.error("job %s ends without a savepoint: %s", self._job, error)
            return
        self._done.wait()
        threading.main_thread().join(_GRACE_S)


class _Hook:
    """A ``Runnable`` in Python."""

    class Java:
        """What Py4J needs to know."""

        implements = ("java.lang.Runnable",)

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run
