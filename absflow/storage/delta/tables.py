"""The Delta tables of a job: their columns, how they are created, appended to and read.

Only plain protocol features are used (no deletion vectors, column mapping or generated columns), so
that anything that reads Delta can read them. The driver's own tables are written by the driver
alone, one commit per fact. Each of those commits carries a transaction id that rises with the
driver's incarnation, and is looked up in the log afterwards: a write that returned without a commit
(Delta skips a transaction id that is not new) is an error, not a success. Where no lock keeps two
drivers apart, a driver's first commit to each holds no fact: behind it no older one can commit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.errors import StorageError
from absflow.storage.delta import log
from absflow.storage.delta.newest import described, files_of, newest
from absflow.storage.files import Files
from absflow.storage.session import conf_set

__all__ = [
    "CHANNEL_PROPERTIES",
    "CHECKPOINTS_PROPERTIES",
    "COMMITTED_OFTEN",
    "JOB_PROPERTIES",
    "create",
    "exists",
    "found_version",
    "newest_version",
    "partition_columns",
    "partition_values",
    "read",
    "reading",
    "restore",
    "rows_by_partition",
    "table_id",
]

# Of a table with a commit for each micro-batch or checkpoint. Delta itself writes a checkpoint of
# its log every 10 commits, and that takes as long as seven commits (docs/internals/decisions, 54).
COMMITTED_OFTEN = {"delta.checkpointInterval": "100"}
# Every table of a job: the log goes back far enough for a query that was stopped over some days to
# go on where it was, and for people to see what happened; what is deleted was no longer needed.
JOB_PROPERTIES = {
    **COMMITTED_OFTEN,
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
# Of the facts of checkpoints: only who reads them anew sees what is removed.
CHECKPOINTS_PROPERTIES = {
    **JOB_PROPERTIES,
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
# A channel is read from end to end, never searched, so its commits need no statistics. Rows are
# deleted when no stage will read them again; and what is removed keeps the log, which every
# micro-batch has to list (absflow.spark.control.old_logs).
CHANNEL_PROPERTIES = {
    **JOB_PROPERTIES,
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
    "delta.dataSkippingNumIndexedCols": "0",
}
# What Delta makes in a log before its first version.
_LOG_FOLDERS = ("_staged_commits", "_commits")


def create(
    spark: SparkSession,
    path: str,
    schema: pa.Schema,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> None:
    """Create an empty table at ``path``, unless there is one, or another driver is faster.

    Args:
        spark: the session.
        path: where.
        schema: its columns.
        partition_by: names of its partition columns.
        properties: its table properties.

    Raises:
        StorageError: if it cannot be created.
    """
    files = Files(spark)
    if exists(files, path):
        return  # asking Delta costs half a second for each table at every start
    builder = DeltaTable.createIfNotExists(spark).location(files.qualified(path))
    builder = builder.addColumns(from_arrow_schema(schema))
    if partition_by:
        builder = builder.partitionedBy(*partition_by)
    for key, value in (properties or {}).items():
        builder = builder.property(key, value)
    try:
        try:
            builder.execute()
        except (PySparkException, Py4JError):
            if not _drop_begun_log(files, path):
                raise
            builder.execute()
    except (PySparkException, Py4JError, StorageError) as error:
        if exists(files, path):
            return  # another driver that starts now was faster
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"could not create table {path!r}: {error}; its directory must be empty or hold this "
            'very table, and neither ` nor " be in its path'
        ) from error


def _drop_begun_log(files: Files, path: str) -> bool:
    """Delete a log that has no version; whether there was one.

    Who began it was killed, or a call to the storage failed. Delta takes such a directory for a
    table when it is to create one, and for none when it reads it: it would never be one.
    Directories are deleted only if they are empty, so a version that another driver commits
    meanwhile stays. Whatever else is in it is of somebody, and then all of it stays.
    """
    folder = f"{path}/_delta_log"
    if exists(files, path) or not files.exists(folder):
        return False
    store, qualified = files.for_workers(folder)
    names = store.names(qualified)
    # A version on its way, and its checksum.
    hidden = [name for name in names if name.startswith(".")]
    if not {*names} <= {*hidden, *_LOG_FOLDERS}:
        return False
    for name in hidden:
        files.delete(f"{folder}/{name}")
    for name in _LOG_FOLDERS:
        files.delete_empty_folder(f"{folder}/{name}")
    files.delete_empty_folder(folder)
    return True


def read(spark: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """The table at ``path`` as it is now, or was at a version.

    Raises:
        StorageError: if it cannot be read.
    """
    with reading(path):
        if version is None:
            return spark.read.format("delta").load(path)
        return spark.read.format("delta").option("versionAsOf", version).load(path)


def partition_values(table: DataFrame, column: str) -> frozenset[int]:
    """The values of a partition column in the version that this is, from the paths of its files."""
    found = (re.findall(rf"/{column}=(-?\d+)/", path) for path in table.inputFiles())
    return frozenset(int(values[-1]) for values in found if values)


def rows_by_partition(spark: SparkSession, path: str, column: str) -> dict[int, int]:
    """The values of a partition column, and how many rows the log says that each has.

    A file of which the log does not say it (``spark.databricks.delta.stats.collect`` is off) counts
    as none. Errors as of :func:`read`.
    """
    with reading(path), newest(spark, path) as version:
        value = F.col("partitionValues")[column].cast("long")
        counted = F.get_json_object("stats", "$.numRecords").cast("long")
        files = files_of(spark, version).groupBy(value.alias("value"))
        rows = files.agg(F.sum(counted).alias("rows"))
        return {row["value"]: row["rows"] or 0 for row in rows.toArrow().to_pylist()}


def table_id(spark: SparkSession, path: str) -> str:
    """The id that Delta has given a table; a stream's position names it. Errors as of `read`."""
    return str(_metadata(spark, path)["id"])


def partition_columns(spark: SparkSession, path: str) -> list[str]:
    """The names of a table's partition columns. Errors as of `read`."""
    return list(_metadata(spark, path)["partitionColumns"])


def _metadata(spark: SparkSession, path: str) -> dict[str, Any]:
    """The ``metaData`` action of the newest version, without a job of Spark."""
    with reading(path), newest(spark, path) as version:
        if version.version() < 0:
            raise StorageError(f"there is no Delta table at {path!r}")
        return described(version)[1]


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Errors of Spark within the block become StorageErrors that name the table."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise StorageError(
            f"could not read table {path!r}: {error}; spark.absflow.storage.path must name a place "
            "that the driver and every executor can read and write"
        ) from error


def exists(files: Files, path: str) -> bool:
    """Whether there is a table at ``path``."""
    return log.has_commit(files.exists, files.names, path)


def found_version(files: Files, path: str) -> int | None:
    """The newest version of the table at ``path``; None if there is none."""
    return log.find_newest(files.read, files.exists, files.names, path)


def newest_version(files: Files, path: str) -> int:
    """The newest version of the table at ``path``.

    Raises:
        StorageError: if there is none.
    """
    version = found_version(files, path)
    if version is None:
        raise StorageError(f"there is no Delta table at {path!r}")
    return version


def restore(spark: SparkSession, path: str, version: int, user_metadata: Mapping[str, Any]) -> None:
    """Put a table back to an earlier version, in one commit.

    Raises:
        StorageError: if Delta refuses, as when files of that version are gone.
    """
    note = {"spark.databricks.delta.commitInfo.userMetadata": json.dumps(user_metadata)}
    try:
        with conf_set(spark, note):
            DeltaTable.forPath(spark, path).restoreToVersion(version)
    except (PySparkException, Py4JError) as error:
        raise StorageError(
            f"could not put table {path!r} back to version {version}: {error}"
        ) from error
