"""How the query of a chain is started, and how its tasks get the alignment before a batch."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyarrow import types
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from absflow.columnar.spec import StageSpec
from absflow.errors import StorageError
from absflow.protocol import alignment_state, event_time
from absflow.protocol.alignment_state import Alignment
from absflow.protocol.event_time import EventTime
from absflow.spark.worker.stage_call import (
    ARROW_ROWS,
    alignment_property,
    snapshot_property,
    time_property,
)
from absflow.storage.files import Files
from absflow.storage.session import conf_set

__all__ = [
    "arrow_rows",
    "forget_unbegun",
    "set_alignments",
    "set_snapshots",
    "set_times",
    "start_query",
]

_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = {"spark.sql.execution.arrow.maxBytesPerBatch": "64MB"}
# With a limit of bytes, Spark asks behind each row how large the batch is, and for that goes over
# all null lists since the last list that is none: 10,000 such rows cost 50 million steps.
_ROWS_WITH_LISTS = 1_000
_STARTING = threading.Lock()


def set_alignments(spark: SparkSession, before: Mapping[str, Alignment]) -> None:
    """Let the tasks of a batch know the alignment of each stage before it.

    Called on the thread that runs the batch: Spark hands the properties of a thread to every task
    of every job of it.
    """
    for stage, value in before.items():
        spark.sparkContext.setLocalProperty(
            alignment_property(stage), alignment_state.to_json(value)
        )


def set_times(spark: SparkSession, before: Mapping[str, EventTime | None]) -> None:
    """As :func:`set_alignments`, the event time of each stage; None for those without."""
    for stage, time in before.items():
        if time is not None:
            text = event_time.to_json(time)
            spark.sparkContext.setLocalProperty(time_property(stage), text)


def set_snapshots(spark: SparkSession, by_workers: Mapping[str, bool]) -> None:
    """As :func:`set_alignments`, whether a stage's workers write the files of its snapshots."""
    for stage, written in by_workers.items():
        value = "true" if written else None
        # Its type has no None, by which Spark takes a property away.
        spark.sparkContext.setLocalProperty(snapshot_property(stage), cast("str", value))


def arrow_rows(schemas: Iterable[pa.Schema]) -> dict[str, str]:
    """The conf that says how many rows of these columns may be in an Arrow batch of Spark's."""
    lists = any(_has_list(field.type) for schema in schemas for field in schema)
    return {_ROWS: str(_ROWS_WITH_LISTS if lists else ARROW_ROWS)}


def _has_list(of: pa.DataType) -> bool:
    if types.is_struct(of):
        return any(_has_list(field.type) for field in of)
    return bool(types.is_list(of) or types.is_large_list(of) or types.is_map(of))


def forget_unbegun(files: Files, checkpoint: str) -> None:
    """Delete what is left of the first offsets of a query, if it has no others.

    A driver was killed, or a call to the storage failed, before that file was in its place. Spark
    begins only where not even such a file is, so the query would never begin.

    Args:
        files: reach the storage.
        checkpoint: Spark's, of the query.
    """
    folder = f"{checkpoint}/offsets"
    store, qualified = files.for_workers(folder)
    names = store.names(qualified)
    if all(name.startswith(".") for name in names):
        for name in names:
            files.delete(f"{folder}/{name}")


def start_query(
    writer: DataStreamWriter, spark: SparkSession, chain: Sequence[StageSpec]
) -> StreamingQuery:
    """Start the query of a chain.

    How large an Arrow batch is between Spark and a Python worker is known by both ends, so it is
    not left to the session. By the number of rows alone a batch could have 10,000 pages.

    Spark refuses two such operators in one query, because it could not pass a watermark through
    both; there is none here.

    The settings belong to the session, of which the query makes itself a copy, so they are changed
    for this one start only, and one start at a time.

    Raises:
        StorageError: Java has failed; what is wrong with the query itself PySpark says by errors of
            its own.
    """
    conf = _BYTES | arrow_rows(given.schema for spec in chain for given in spec.inputs)
    if len(chain) > 1:
        conf[_CHECK] = "false"
    with _STARTING, conf_set(spark, conf):
        try:
            return writer.start()
        except Py4JJavaError as error:
            raise StorageError(
                f"Spark did not start the query of {', '.join(repr(spec.name) for spec in chain)}: "
                f"{error.java_exception.toString()}; if the storage can be reached, start the job "
                "again: it goes on where it was"
            ) from error
