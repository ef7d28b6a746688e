"""One append to a Delta table, made once, without the search that Delta makes for it.

Delta skips a write whose transaction id (``txnAppId``, ``txnVersion``) the table has already. To
know that, its ``DataFrameWriter`` puts the whole state of the table together before each write, a
Spark job that costs several times the write itself (docs/internals/decisions, 39). Here the ids are
known from the commits that were made since the last look, a file each; the rest is Delta's own: the
same command writes the files, and the same transaction commits them.

Where the rows are Arrow in Python's hands, only the transaction is Delta's. Those of a worker
(:class:`ArrowRows`) would become rows of the JVM first; for the few of the driver
(:class:`DriverRows`) planning and a Spark job take four times as long as the commit. Their files
are written by :mod:`absflow.storage.delta.data_files`.

Two writers of one id cannot both commit. What was committed before this transaction began stands in
the log, which is read after it began; and what is committed later conflicts with it, for the id is
among those that the transaction has read, as it is in Delta's own command.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from absflow.errors import StorageError
from absflow.storage.clock import now_ms
from absflow.storage.delta import data_files
from absflow.storage.delta.classes import delta_classes
from absflow.storage.delta.data_files import PlainTable
from absflow.storage.delta.log import LogTail, find_commit
from absflow.storage.delta.newest import columns, described, is_encrypted, newest
from absflow.storage.files import Files

__all__ = [
    "ArrowRows",
    "DriverRows",
    "SideOutput",
    "UncommittedFiles",
    "append_once",
    "committed",
    "has_any",
    "newest_of",
    "plain_table",
    "written_by_workers",
]

_CODEC = "spark.sql.parquet.compression.codec"
_WRITTEN = pa.schema([("add", pa.string()), ("message", pa.string())])
_lock = threading.Lock()
_known: dict[str, _Transactions] = {}


@dataclass(frozen=True, slots=True)
class DriverRows:
    """A few rows in the driver's memory, to be appended without a Spark job.

    Attributes:
        sparkSession: the session, named as a DataFrame has it.
        table: all columns of the Delta table.
    """

    sparkSession: SparkSession
    table: pa.Table


@dataclass(frozen=True, slots=True)
class UncommittedFiles:
    """Rows that are in files of a table, which no version of it names yet.

    Attributes:
        sparkSession: the session, named as a DataFrame has it.
        table: the table as it was when they were written.
        adds: the actions that add them.
    """

    sparkSession: SparkSession
    table: PlainTable
    adds: list[dict[str, Any]]


class SideOutput(Protocol):
    """What a worker does with a partition of :class:`ArrowRows` on the way; one for each."""

    def take(self, batch: pa.RecordBatch) -> None:
        """See rows of the source."""

    def messages(self) -> Iterable[str]:
        """What the driver is to get, when no more rows come."""


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows that the Python workers make of the rows of a DataFrame.

    Attributes:
        source: the DataFrame.
        make: makes them, partition by partition, as for ``mapInArrow``.
        schema: their columns.
        side_output: makes what sees the rows of the source meanwhile, if workers write them.
    """

    source: DataFrame
    make: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    schema: pa.Schema
    side_output: Callable[[], SideOutput] | None = None

    @property
    def sparkSession(self) -> SparkSession:
        """The session, named as a DataFrame has it."""
        return self.source.sparkSession

    def frame(self) -> DataFrame:
        """The same as a DataFrame."""
        return self.source.mapInArrow(self.make, from_arrow_schema(self.schema))


def plain_table(spark: SparkSession, path: str, schema: pa.Schema) -> PlainTable | None:
    """The table, if workers may write files with these columns for it."""
    with newest(spark, path) as snapshot:
        return _plain(spark, path, schema, Files(spark), snapshot)


def append_once(
    rows: DataFrame | ArrowRows | DriverRows | UncommittedFiles,
    path: str,
    app_id: str,
    txn_version: int,
    user_metadata: Mapping[str, Any],
    *,
    if_empty: bool = False,
) -> list[str] | None:
    """Append rows to a table that is there, in one commit, unless it has this transaction.

    Args:
        rows: the rows; not computed if they are there already, else by one action.
        path: the table's.
        app_id: names the writer.
        txn_version: rises with its writes; lower and equal ones count as written.
        user_metadata: what the commit says of itself.
        if_empty: whether to commit if there is no row. Without, nothing is said of an empty write,
            which costs less than a commit; and a stream that reads the table has no batch for it.

    Returns:
        The messages of the side outputs; None if it is there already, or no worker wrote it.

    Raises:
        StorageError: if rows of the driver have other columns than the table, or the table is not
            any more what it was when its files were written.
    """
    spark = rows.sparkSession
    scala = delta_classes(spark.sparkContext._jvm)
    session: Any = spark._jsparkSession
    with scala.active(session):
        log = scala.delta_log.forTable(session, path)
        transaction = log.startTransaction()
        getattr(transaction.readTxn(), "$plus$eq")(app_id)
        snapshot = transaction.snapshot()
        known = _transactions(spark, path, snapshot)
        if known.newest(snapshot, app_id) >= txn_version:
            return None
        note = json.dumps(user_metadata)
        none, tags = scala.none, scala.map({})
        written, messages = _write(rows, path, known.files, snapshot)
        if isinstance(written, DataFrame):
            given = {"txnAppId": app_id, "txnVersion": str(txn_version), "userMetadata": note}
            options = scala.options(scala.map(given), session.sessionState().conf())
            write = scala.write(
                log, scala.append, options, scala.nothing, tags, written._jdf, none, none, False
            )
            made = write.writeAndReturnCommitData(transaction, session, none, False)
            actions, tags = made.actions(), made.stringTags()
            empty = not scala.adds(actions)
        else:
            txn = {"appId": app_id, "version": txn_version, "lastUpdated": now_ms()}
            actions, empty = scala.actions([*written, {"txn": txn}]), not written
            transaction.registerSQLMetrics(session, scala.added(session, written))
        if not empty or if_empty:
            operation = scala.operation(
                scala.append, none, none, scala.some(note), none, none, none, none, none
            )
            transaction.commitIfNeeded(actions, operation, tags)
        return messages


def committed(
    spark: SparkSession, path: str, app_id: str, txn_version: int
) -> tuple[int, list[str]] | None:
    """The commit of a transaction, as :func:`find_commit` gives it; None if it is not known.

    Whether the table has the transaction is known without a search. For one that it has, the log is
    read from the newest commit back to its own.
    """
    known, newest, version = _newest(spark, path, app_id)
    if newest < txn_version:
        return None
    return find_commit(known.files.read, path, version, app_id, txn_version)


def has_any(spark: SparkSession, path: str, app_id: str) -> bool:
    """Whether a table has a transaction of ``app_id``."""
    return newest_of(spark, path, app_id) >= 0


def newest_of(spark: SparkSession, path: str, app_id: str) -> int:
    """The newest transaction of ``app_id`` that a table has; -1 without any."""
    return _newest(spark, path, app_id)[1]


def _newest(spark: SparkSession, path: str, app_id: str) -> tuple[_Transactions, int, int]:
    """The transactions of a table, the newest of an application (-1: none), and its version."""
    with newest(spark, path) as snapshot:
        known = _transactions(spark, path, snapshot)
        return known, known.newest(snapshot, app_id), int(snapshot.version())


def _write(
    rows: DataFrame | ArrowRows | DriverRows | UncommittedFiles,
    path: str,
    files: Files,
    snapshot: Any,
) -> tuple[list[dict[str, Any]] | DataFrame, list[str] | None]:
    """The actions that add the rows' files, which are there now; or what Delta is to write.

    And the messages of the side outputs.
    """
    if isinstance(rows, DataFrame):
        return rows, None
    spark = rows.sparkSession
    if isinstance(rows, ArrowRows):
        table = _plain(spark, path, rows.schema, files, snapshot)
        return (rows.frame(), None) if table is None else _by_workers(rows, files, table)
    protocol, metadata = described(snapshot)
    if isinstance(rows, DriverRows):
        return _by_driver(rows, path, files, metadata), None
    if (protocol, metadata) != (rows.table.protocol, rows.table.metadata):
        raise StorageError(
            f"table {path!r} was changed while files were written for it; what it is now is seen "
            "to from now on"
        )
    return rows.adds, []


def _has_all(table: StructType, rows: StructType) -> bool:
    """Whether the rows' columns are the table's; readers find them by name, and null for others."""
    there = {field.name: field for field in table.fields}
    return all(there.get(field.name) == field for field in rows.fields)


def _plain(
    spark: SparkSession, path: str, schema: pa.Schema, files: Files, snapshot: Any
) -> PlainTable | None:
    codec = str(spark.conf.get(_CODEC, "snappy")).lower()
    protocol, metadata = described(snapshot)
    if (
        codec in data_files.CODECS
        and _has_all(columns(metadata), from_arrow_schema(schema))
        and data_files.is_plain(schema, protocol, metadata)
        and not is_encrypted(spark)
    ):
        place = files.for_workers(path)
        return PlainTable(*place, protocol, metadata, schema, codec, spark.version)
    return None


def _by_driver(
    rows: DriverRows, path: str, files: Files, metadata: Mapping[str, Any]
) -> list[dict[str, Any]]:
    table, version = rows.table, rows.sparkSession.version
    seen, due = from_arrow_schema(table.schema), columns(metadata)
    if seen != due:
        raise StorageError(
            f"rows for table {path!r} have the columns {seen.simpleString()}, but the table has "
            f"{due.simpleString()}, of another version of absflow; start on a new storage root"
        )

    def create(name: str, data: pa.Buffer) -> None:
        files.add(f"{path}/{name}", data.to_pybytes())

    batches = table.to_batches()
    return list(data_files.write(batches, table.schema, metadata, "snappy", version, create))


def _by_workers(
    rows: ArrowRows, files: Files, table: PlainTable
) -> tuple[list[dict[str, Any]], list[str]]:
    make, make_side_output = rows.make, rows.side_output

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any] | str]:
        side_output = None if make_side_output is None else make_side_output()

        def seen() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if side_output is not None:
                    side_output.take(batch)
                yield batch

        yield from table.write(make(seen()))
        if side_output is not None:
            yield from side_output.messages()

    return written_by_workers(rows.source, files, table, write)


def written_by_workers(
    source: DataFrame,
    files: Files,
    table: PlainTable,
    write: Callable[[Iterable[pa.RecordBatch]], Iterator[dict[str, Any] | str]],
) -> tuple[list[dict[str, Any]], list[str]]:
    """The actions and the messages that workers make of the rows of a DataFrame, by one Spark job.

    Args:
        source: the DataFrame.
        files: reaches the table.
        table: where ``write`` puts files.
        write: gets the rows of a partition; the action that adds a file, or a text for the driver.
    """

    def records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written = [
            {"message": each} if isinstance(each, str) else {"add": json.dumps(each)}
            for each in write(batches)
        ]
        yield pa.RecordBatch.from_pylist(written, _WRITTEN)

    source = files.reached(source, table.folder)
    found = source.mapInArrow(records, from_arrow_schema(_WRITTEN)).collect()
    adds = [json.loads(row["add"]) for row in found if row["add"] is not None]
    return adds, [row["message"] for row in found if row["message"] is not None]


def _transactions(spark: SparkSession, path: str, snapshot: Any) -> _Transactions:
    """What is known of a table; anew if it is another table than before."""
    table = str(snapshot.metadata().id())
    with _lock:
        known = _known.get(path)
        if known is None or known.table != table:
            known = _known[path] = _Transactions(table, Files(spark), path)
    return known


class _Transactions:
    """The transactions of one table, kept up with its log; several threads may ask."""

    def __init__(self, table: str, files: Files, path: str) -> None:
        """Of the table with this id, at this path."""
        self.table = table
        self.files = files
        self._lock = threading.Lock()
        self._tail = LogTail(files.read, files.names, path)
        self._whole = self._tail.version < 0
        self._older: Any = None

    def newest(self, snapshot: Any, app_id: str) -> int:
        """The newest of a writer, also if it was committed just now; -1 if there is none."""
        with self._lock:
            self._tail.advance()
            version = int(snapshot.version())
            if not self._whole or self._tail.version < version:
                # Commits of the log are gone; so this once Delta is to put them together.
                self._older, self._whole = snapshot.transactions(), True
                self._tail.version = version
                self._tail.transactions.clear()
                self._tail.advance()
            found = self._tail.transactions.get(app_id)
            if found is None and self._older is not None and self._older.contains(app_id):
                found = int(self._older.apply(app_id))
            return -1 if found is None else found
