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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.columnar.pages import channel_schema
from absflow.errors import FencedError, StorageError
from absflow.storage.delta_log import LogTail, now_ms
from absflow.storage.fence import Fence
from absflow.storage.files import Files
from absflow.storage.session import conf_set
from absflow.storage.transactions import (
    ArrowRows,
    DriverRows,
    Written,
    append_once,
    plain_table,
)

__all__ = [
    "ATTEMPTS",
    "BARRIERS",
    "CHANNEL_PROPERTIES",
    "CHECKPOINTS",
    "COMMITTED_OFTEN",
    "JOB_PROPERTIES",
    "OVERTAKES",
    "REFUSED",
    "ArrowRows",
    "DriverRows",
    "DriverTable",
    "Written",
    "append_once",
    "channel_columns",
    "create",
    "history_columns",
    "millis",
    "now_ms",
    "plain_table",
    "read",
    "resolved",
    "restore",
    "rows_of",
    "timestamp",
]

_TIME = pa.timestamp("us", tz="UTC")

ATTEMPTS = pa.schema(
    [
        ("attempt", pa.int32()),
        ("incarnation", pa.int64()),
        ("kind", pa.string()),
        ("at", _TIME),
        ("fingerprint", pa.string()),
        ("details", pa.string()),
        ("restored_from", pa.string()),
    ]
)
BARRIERS = pa.schema(
    [
        ("attempt", pa.int32()),
        ("checkpoint_id", pa.int64()),
        ("base_id", pa.int64()),
        ("completed_id", pa.int64()),
        ("kind", pa.string()),
        ("request", pa.string()),
        ("stage", pa.string()),
        ("input", pa.string()),
        ("triggered_at", _TIME),
    ]
)
OVERTAKES = pa.schema(
    [
        ("attempt", pa.int32()),
        ("checkpoint_id", pa.int64()),
        ("kind", pa.string()),
        ("base_id", pa.int64()),
        ("completed_id", pa.int64()),
        ("triggered_at", _TIME),
        ("at", _TIME),
    ]
)
_IN_FLIGHT = pa.struct(
    [
        ("input", pa.string()),
        ("attempt", pa.int32()),
        ("position", pa.string()),
        ("epoch", pa.int64()),
        ("from_seq", pa.int64()),
        ("files", pa.list_(pa.string())),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
_BACKLOG = pa.struct(
    [
        ("input", pa.string()),
        ("commits", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("age_ms", pa.int64()),
    ]
)
_STAGE = pa.struct(
    [
        ("stage", pa.string()),
        ("checkpoint_id", pa.int64()),
        ("batch_id", pa.int64()),
        ("lineage", pa.list_(pa.int64())),
        ("positions", pa.map_(pa.string(), pa.string())),
        ("in_flight", pa.list_(_IN_FLIGHT)),
        ("rows_changed", pa.int64()),
        ("bytes_changed", pa.int64()),
        ("keys_total", pa.int64()),
        ("bytes_total", pa.int64()),
        ("rows_out", pa.int64()),
        ("held_rows", pa.int64()),
        ("held_bytes", pa.int64()),
        ("start_delay_ms", pa.int64()),
        ("alignment_ms", pa.int64()),
        ("sync_ms", pa.int64()),
        ("async_ms", pa.int64()),
        ("commit_ms", pa.int64()),
        ("busy", pa.float64()),
        ("backpressured", pa.float64()),
        ("backlogs", pa.list_(_BACKLOG)),
    ]
)
# A row of `checkpoints` that is no fact of a checkpoint: the answer to a request that got none.
REFUSED = "REFUSED"
CHECKPOINTS = pa.schema(
    [
        ("checkpoint_id", pa.int64()),
        ("kind", pa.string()),
        ("type", pa.string()),
        ("request", pa.string()),
        ("reason", pa.string()),
        ("cause", pa.string()),
        ("attempt", pa.int32()),
        ("incarnation", pa.int64()),
        ("base_id", pa.int64()),
        ("derived_from", pa.int64()),
        ("triggered_at", _TIME),
        ("ended_at", _TIME),
        ("duration_ms", pa.int64()),
        ("stages", pa.list_(_STAGE)),
        ("stage", pa.string()),
        ("set_id", pa.int64()),
        ("replaces", pa.list_(pa.int64())),
        ("fingerprint", pa.string()),
        ("versions", pa.map_(pa.string(), pa.string())),
    ]
)


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
# A channel is read from end to end, never searched, so its commits need no statistics.
CHANNEL_PROPERTIES = {
    **JOB_PROPERTIES,
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.dataSkippingNumIndexedCols": "0",
}


def channel_columns(output: pa.Schema) -> pa.Schema:
    """The columns of a channel table."""
    return channel_schema(output)


def history_columns(keys: pa.Schema, state: pa.Schema) -> pa.Schema:
    """The columns of a state history table."""
    own = [
        pa.field("set_id", pa.int64()),
        pa.field("checkpoint_id", pa.int64()),
        pa.field("key_group", pa.int32()),
        pa.field("op", pa.string()),
    ]
    return pa.schema([*own, *keys, *state])


def create(
    spark: SparkSession,
    path: str,
    schema: pa.Schema,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> None:
    """Create an empty table at ``path``, unless there is one.

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
    if files.names(f"{path}/_delta_log"):
        return  # asking Delta costs half a second for each table at every start
    builder = DeltaTable.createIfNotExists(spark).location(files.qualified(path))
    builder = builder.addColumns(from_arrow_schema(schema))
    if partition_by:
        builder = builder.partitionedBy(*partition_by)
    for key, value in (properties or {}).items():
        builder = builder.property(key, value)
    try:
        builder.execute()
    except (PySparkException, Py4JError) as error:
        raise StorageError(
            f"could not create table {path!r}: {error}; its directory must be empty or hold this "
            "very table"
        ) from error


def read(spark: SparkSession, path: str) -> DataFrame:
    """The table at ``path`` as it is now.

    Raises:
        StorageError: if it cannot be read.
    """
    with _reading(path):
        return spark.read.format("delta").load(path)


def rows_of(spark: SparkSession, path: str) -> list[dict[str, Any]]:
    """All rows of a small table; errors as of :func:`read`."""
    table = read(spark, path)
    with _reading(path):
        return list(table.toArrow().to_pylist())


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise StorageError(
            f"could not read table {path!r}: {error}; spark.absflow.storage.path must name a place "
            "that the driver and every executor can read and write"
        ) from error


def resolved(rows: DataFrame, keys: Sequence[str], lineage: Sequence[int]) -> DataFrame:
    """One row per live key: of rows of a state history in these sets, the newest of each key."""
    place = F.array_position(F.array(*(F.lit(n) for n in lineage)), F.col("set_id"))
    newest = Window.partitionBy(*(f"`{key}`" for key in keys)).orderBy(place.desc())
    ranked = rows.withColumn("_absflow_rank", F.row_number().over(newest))
    live = ranked.where((F.col("_absflow_rank") == 1) & (F.col("op") == "upsert"))
    return live.drop("_absflow_rank")


def restore(spark: SparkSession, path: str, version: int, user_metadata: Mapping[str, Any]) -> None:
    """Put a table back to an earlier version, in one commit.

    Raises:
        StorageError: if Delta refuses, as when files of that version are gone.
    """
    noted = conf_set(
        spark, "spark.databricks.delta.commitInfo.userMetadata", json.dumps(user_metadata)
    )
    try:
        with noted:
            DeltaTable.forPath(spark, path).restoreToVersion(version)
    except (PySparkException, Py4JError) as error:
        raise StorageError(
            f"could not put table {path!r} back to version {version}: {error}"
        ) from error


class DriverTable:
    """A table of facts that only the driver writes."""

    def __init__(
        self,
        spark: SparkSession,
        files: Files,
        path: str,
        schema: pa.Schema,
        app_id: str,
        incarnation: int,
        fence: Fence,
    ) -> None:
        """Create the table if it is not there."""
        create(spark, path, schema, properties=JOB_PROPERTIES)
        self._fence = fence
        self._spark = spark
        self._path = path
        self._schema = schema
        self._app_id = app_id
        self._incarnation = incarnation
        self._written = 0
        self._log = LogTail(files.read, files.names, path)

    def rows(self) -> list[dict[str, Any]]:
        """All rows."""
        return rows_of(self._spark, self._path)

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Append facts in one commit and see it in the log.

        Raises:
            FencedError: if there is a newer driver.
            StorageError: if it was not committed.
        """
        self._fence.check()
        self._commit([dict(row) for row in rows])

    def claim(self) -> None:
        """Commit no row, so that no older driver can commit any more; errors as for a fact."""
        self._commit([])

    def _commit(self, rows: list[dict[str, Any]]) -> None:
        self._written += 1
        version = (self._incarnation << 32) + self._written
        table = pa.Table.from_pylist(rows, schema=self._schema)
        facts = DriverRows(self._spark, table)
        try:
            note = {"incarnation": self._incarnation}
            append_once(facts, self._path, self._app_id, version, note, if_empty=True)
        except (PySparkException, Py4JError) as error:
            raise StorageError(f"could not append to {self._path!r}: {error}") from error
        commits = self._log.advance()
        if not any(c.transactions.get(self._app_id) == version for c in commits):
            newest = self._log.transactions.get(self._app_id, -1)
            raise FencedError(
                f"a commit to {self._path!r} was skipped: the log has driver incarnation "
                f"{newest >> 32}, this driver is {self._incarnation}. Another driver runs on this "
                "storage root, so this one has stopped; start one driver only"
            )


def timestamp(time_ms: int) -> datetime:
    """``time_ms`` (ms since 1970) as an aware datetime in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, tz=timezone.utc)


def millis(time: datetime) -> int:
    """The inverse of :func:`timestamp`."""
    return round(time.timestamp() * 1000)
