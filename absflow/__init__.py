"""absflow: consistent, named, queryable checkpoints of whole Spark streaming jobs.

What needs pyspark or pandas is imported when it is first asked for, so that the command line, which
needs neither, starts fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from absflow.errors import (
    AbsflowError,
    DamagedError,
    DeletionError,
    FencedError,
    GraphError,
    JobFailedError,
    NotFoundError,
    PageCorruptError,
    PageSizeError,
    ProcessError,
    ProtocolViolation,
    ReplayMismatchError,
    RestoreError,
    ResultError,
    SavepointFailedError,
    SettingsError,
    StateError,
    StorageError,
    VersionError,
)

# Not lazy: an import of the module absflow.history would take the place of the function.
from absflow.history import History, history

if TYPE_CHECKING:
    from absflow.columnar.process import Context, Result
    from absflow.columnar.publishing import Lane
    from absflow.columnar.row_timers import KeyTimers, Timer
    from absflow.destinations.files import FileSink
    from absflow.destinations.kafka import KafkaSink
    from absflow.destinations.sql import SqlSink
    from absflow.job import Job
    from absflow.sinks import DeltaSink, ForeachBatchSink, Sink, SinkWrite
    from absflow.spark.control.progress import Progress
    from absflow.spark.control.run import Run
    from absflow.transactional import TransactionalSink
    from absflow.ttl import Ttl
    from absflow.view import SinkVersion, View
    from absflow.watermark import Watermark

__all__ = [
    "AbsflowError",
    "Context",
    "DamagedError",
    "DeletionError",
    "DeltaSink",
    "FencedError",
    "FileSink",
    "ForeachBatchSink",
    "GraphError",
    "History",
    "Job",
    "JobFailedError",
    "KafkaSink",
    "KeyTimers",
    "Lane",
    "NotFoundError",
    "PageCorruptError",
    "PageSizeError",
    "ProcessError",
    "Progress",
    "ProtocolViolation",
    "ReplayMismatchError",
    "RestoreError",
    "Result",
    "ResultError",
    "Run",
    "SavepointFailedError",
    "SettingsError",
    "Sink",
    "SinkVersion",
    "SinkWrite",
    "SqlSink",
    "StateError",
    "StorageError",
    "Timer",
    "TransactionalSink",
    "Ttl",
    "VersionError",
    "View",
    "Watermark",
    "history",
]

if not TYPE_CHECKING:  # a checker that saw this would take any name for one of absflow's
    _LAZY = {
        "Context": "absflow.columnar.process",
        "DeltaSink": "absflow.sinks",
        "FileSink": "absflow.destinations.files",
        "ForeachBatchSink": "absflow.sinks",
        "Job": "absflow.job",
        "KafkaSink": "absflow.destinations.kafka",
        "KeyTimers": "absflow.columnar.row_timers",
        "Lane": "absflow.columnar.publishing",
        "Progress": "absflow.spark.control.progress",
        "Result": "absflow.columnar.process",
        "Run": "absflow.spark.control.run",
        "Sink": "absflow.sinks",
        "SinkVersion": "absflow.view",
        "SinkWrite": "absflow.sinks",
        "SqlSink": "absflow.destinations.sql",
        "Timer": "absflow.columnar.row_timers",
        "TransactionalSink": "absflow.transactional",
        "Ttl": "absflow.ttl",
        "View": "absflow.view",
        "Watermark": "absflow.watermark",
    }

    def __getattr__(name):
        """Import a public name on first use (PEP 562)."""
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if not _LAZY[name].startswith("absflow.columnar."):
            # An error of our own before one of the insides of another pyspark.
            importlib.import_module("absflow.spark.versions").check_packages()
        try:
            value = getattr(importlib.import_module(_LAZY[name]), name)
        except ModuleNotFoundError as error:
            extra = _LAZY[name].rpartition("absflow.destinations.")[2]
            if extra == _LAZY[name]:
                raise
            raise VersionError(
                f"absflow.{name} needs {error.name}, which is not installed: "
                f"pip install 'absflow[{extra}]' on the driver and on every executor"
            ) from error
        globals()[name] = value
        return value

    def __dir__():
        """The public names, imported or not."""
        return sorted({*globals(), *__all__})
