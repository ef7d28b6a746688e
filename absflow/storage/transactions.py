"""One append to a Delta table, made once, without the search that Delta makes for it.

Delta skips a write whose transaction id (``txnAppId``, ``txnVersion``) the table has already. To
know that, its ``DataFrameWriter`` puts the whole state of the table together before each write, a
Spark job that costs several times the write itself (docs/internals/decisions, 39). Here the ids are
known from the commits that were made since the last look, a file each; the rest is Delta's own: the
same command writes the files, and the same transaction commits them. Of a few rows that the driver
has in its hands (:class:`DriverRows`) only the transaction is Delta's: the planning of its command
and the job that writes one file take four times as long as the commit.

Two writers of one id cannot both commit. What was committed before this transaction began stands in
the log, which is read after it began; and what is committed later conflicts with it, for the id is
among those that the transaction has read, as it is in Delta's own command.
"""

from __future__ import annotations

import io
import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from absflow.errors import StorageError
from absflow.storage.delta_log import LogTail
from absflow.storage.files import Files

__all__ = ["DriverRows", "append_once"]

_lock = threading.Lock()
_known: dict[str, _Transactions] = {}


@dataclass(frozen=True, slots=True)
class DriverRows:
    """A few rows in the driver's memory, to be appended without a Spark job.

    Attributes:
        sparkSession: the session, named as a DataFrame has it.
        table: all columns of the Delta table; partition columns are integers or strings.
    """

    sparkSession: SparkSession
    table: pa.Table


def append_once(
    rows: DataFrame | DriverRows,
    path: str,
    app_id: str,
    txn_version: int,
    user_metadata: Mapping[str, Any],
    *,
    if_empty: bool = False,
) -> None:
    """Append rows to a table that is there, in one commit, unless it has this transaction.

    Args:
        rows: the rows; not computed if they are there already.
        path: the table's.
        app_id: names the writer.
        txn_version: rises with its writes; lower and equal ones count as written.
        user_metadata: what the commit says of itself.
        if_empty: whether to commit if there is no row. Without, nothing is said of an empty write,
            which costs less than a commit; and a stream that reads the table has no batch for it.

    Raises:
        StorageError: if rows of the driver have other columns than the table.
    """
    spark = rows.sparkSession
    scala = _scala(spark.sparkContext._jvm)
    session: Any = spark._jsparkSession
    with scala.active(session):
        log = scala.delta_log.forTable(session, path)
        transaction = log.startTransaction()
        getattr(transaction.readTxn(), "$plus$eq")(app_id)
        snapshot = transaction.snapshot()
        known = _transactions(spark, path, snapshot)
        if known.newest(snapshot, app_id) >= txn_version:
            return
        note = json.dumps(user_metadata)
        none, tags = scala.none, scala.map({})
        if isinstance(rows, DriverRows):
            adds = _write(rows.table, path, known.files, snapshot.metadata())
            txn = {"appId": app_id, "version": txn_version, "lastUpdated": _now_ms()}
            actions = scala.actions([*adds, {"txn": txn}])
        else:
            given = {"txnAppId": app_id, "txnVersion": str(txn_version), "userMetadata": note}
            options = scala.options(scala.map(given), session.sessionState().conf())
            write = scala.write(
                log, scala.append, options, scala.nothing, tags, rows._jdf, none, none, False
            )
            made = write.writeAndReturnCommitData(transaction, session, none, False)
            actions, tags = made.actions(), made.stringTags()
        if not (if_empty or scala.adds(actions)):
            return
        operation = scala.operation(
            scala.append, none, none, scala.some(note), none, none, none, none, none
        )
        transaction.commitIfNeeded(actions, operation, tags)


def _write(table: pa.Table, path: str, files: Files, metadata: Any) -> list[dict[str, Any]]:
    """A file for each partition of the table that has rows; the actions that add them."""
    described = json.loads(metadata.json())["metaData"]
    seen = from_arrow_schema(table.schema)
    due = StructType.fromJson(json.loads(described["schemaString"]))
    if seen != due:
        raise StorageError(
            f"rows for table {path!r} have the columns {seen.simpleString()}, but the table has "
            f"{due.simpleString()}, of another version of absflow; start on a new storage root"
        )
    adds = []
    for values, part in _partitions(table, described["partitionColumns"]):
        folder = "".join(f"{name}={value}/" for name, value in values.items())
        name = f"{folder}part-00000-{uuid.uuid4()}-c000.snappy.parquet"
        data = io.BytesIO()
        # What is declared in ns is us to Spark, which refuses a file with ns.
        pq.write_table(part, data, compression="snappy", coerce_timestamps="us")
        files.create(f"{path}/{name}", data.getvalue())
        add = {
            "path": name,
            "partitionValues": values,
            "size": data.tell(),
            "modificationTime": _now_ms(),
            "dataChange": True,
            "stats": json.dumps({"numRecords": part.num_rows}),
        }
        adds.append({"add": add})
    return adds


def _partitions(table: pa.Table, by: list[str]) -> Iterator[tuple[dict[str, str], pa.Table]]:
    if not by:
        if table.num_rows:
            yield {}, table
        return
    for values in table.group_by(by).aggregate([]).to_pylist():
        equal = [pc.equal(table[name], value) for name, value in values.items()]
        chosen = table.filter(reduce(pc.and_, equal)).drop_columns(by)
        yield {name: str(value) for name, value in values.items()}, chosen


def _now_ms() -> int:
    return round(time.time() * 1000)


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


@cache  # each step from package to package asks the JVM for a class of that name, in every jar
def _scala(jvm: Any) -> _Scala:
    return _Scala(jvm)


class _Scala:
    """Delta's classes, and Scala's values as the JVM wants them."""

    def __init__(self, jvm: Any) -> None:
        delta = jvm.org.apache.spark.sql.delta
        self._session = jvm.org.apache.spark.sql.classic.SparkSession
        self._utils = jvm.PythonUtils
        self._action = getattr(getattr(delta.actions, "Action$"), "MODULE$")
        self.delta_log = delta.DeltaLog
        self.options = delta.DeltaOptions
        self.write = delta.commands.WriteIntoDelta
        self.operation = delta.DeltaOperations.Write
        self.append = jvm.org.apache.spark.sql.SaveMode.Append
        self.none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        self.some = jvm.scala.Some
        self.nothing = self._utils.toSeq(jvm.java.util.ArrayList())

    @contextmanager
    def active(self, session: Any) -> Iterator[None]:
        """Delta asks its thread: one begun in Python has none, a query has its own."""
        kept = self._session.getActiveSession()
        self._session.setActiveSession(session)
        try:
            yield
        finally:
            if kept.isDefined():
                self._session.setActiveSession(kept.get())
            else:
                self._session.clearActiveSession()

    def adds(self, actions: Any) -> bool:
        """Whether a file is among them."""
        every = (actions.apply(place) for place in range(actions.size()))
        return any(action.getClass().getSimpleName() == "AddFile" for action in every)

    def actions(self, given: list[dict[str, Any]]) -> Any:
        """Delta's actions of their JSON, as it is in the log."""
        return self._utils.toSeq([self._action.fromJson(json.dumps(action)) for action in given])

    def map(self, given: Mapping[str, str]) -> Any:
        return self._utils.toScalaMap(given)
