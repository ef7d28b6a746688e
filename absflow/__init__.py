"""absflow: consistent, named, queryable checkpoints of whole Spark streaming jobs."""

from absflow.columnar.process import Context, Result
from absflow.errors import (
    AbsflowError,
    GraphError,
    JobFailedError,
    NotFoundError,
    PageCorruptError,
    ProcessError,
    ProtocolViolation,
    ReplayMismatchError,
    SettingsError,
    StorageError,
)
from absflow.job import Job
from absflow.sinks import DeltaSink, ForeachBatchSink, Sink, SinkWrite

__all__ = [
    "AbsflowError",
    "Context",
    "DeltaSink",
    "ForeachBatchSink",
    "GraphError",
    "Job",
    "JobFailedError",
    "NotFoundError",
    "PageCorruptError",
    "ProcessError",
    "ProtocolViolation",
    "ReplayMismatchError",
    "Result",
    "SettingsError",
    "Sink",
    "SinkWrite",
    "StorageError",
]
