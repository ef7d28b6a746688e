"""One append to a Delta table, made once, without the search that Delta makes for it.

Delta skips a write whose transaction id (``txnAppId``, ``txnVersion``) the table has already. To
know that, its ``DataFrameWriter`` puts the whole state of the table together before each write, a
Spark job that costs several times the write itself (docs/internals/decisions, 39). Here the ids are
known from the commits that were made since the last look, a file each; the rest is Delta's own: the
same command writes the files, and the same transaction commits them.

Two writers of one id cannot both commit. What was committed before this transaction began stands in
the log, which is read after it began; and what is committed later conflicts with it, for the id is
among those that the transaction has read, as it is in Delta's own command.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from absflow.storage.delta_log import LogTail
from absflow.storage.files import Files

__all__ = ["append_once"]

_lock = threading.Lock()
_known: dict[str, _Transactions] = {}


def append_once(
    frame: DataFrame,
    path: str,
    app_id: str,
    txn_version: int,
    user_metadata: Mapping[str, Any],
    *,
    if_empty: bool = False,
) -> None:
    """Append rows to a table that is there, in one commit, unless it has this transaction.

    Args:
        frame: the rows; not computed if they are there already.
        path: the table's.
        app_id: names the writer.
        txn_version: rises with its writes; lower and equal ones count as written.
        user_metadata: what the commit says of itself.
        if_empty: whether to commit if there is no row. Without, nothing is said of an empty write,
            which costs less than a commit; and a stream that reads the table has no batch for it.
    """
    spark = frame.sparkSession
    scala = _scala(spark.sparkContext._jvm)
    session: Any = spark._jsparkSession
    with scala.active(session):
        log = scala.delta_log.forTable(session, path)
        transaction = log.startTransaction()
        getattr(transaction.readTxn(), "$plus$eq")(app_id)
        if _newest(spark, path, transaction.snapshot(), app_id) >= txn_version:
            return
        note = json.dumps(user_metadata)
        given = {"txnAppId": app_id, "txnVersion": str(txn_version), "userMetadata": note}
        options = scala.options(scala.map(given), session.sessionState().conf())
        append, none = scala.append, scala.none
        write = scala.write(
            log, append, options, scala.nothing, scala.map({}), frame._jdf, none, none, False
        )
        made = write.writeAndReturnCommitData(transaction, session, none, False)
        if not (if_empty or scala.adds(made.actions())):
            return
        operation = scala.operation(
            append, none, none, scala.some(note), none, none, none, none, none
        )
        transaction.commitIfNeeded(made.actions(), operation, made.stringTags())


def _newest(spark: SparkSession, path: str, snapshot: Any, app_id: str) -> int:
    """The newest transaction of a writer in a table; -1 if there is none."""
    table = str(snapshot.metadata().id())
    with _lock:
        known = _known.get(path)
        if known is None or known.table != table:
            known = _known[path] = _Transactions(table, Files(spark), path)
    return known.newest(snapshot, app_id)


class _Transactions:
    """The transactions of one table, kept up with its log; several threads may ask."""

    def __init__(self, table: str, files: Files, path: str) -> None:
        """Of the table with this id, at this path."""
        self.table = table
        self._lock = threading.Lock()
        self._files = files
        self._tail = LogTail(self._read, files.names, path)
        self._whole = self._tail.version < 0
        self._older: Any = None

    def _read(self, path: str) -> str | None:
        return self._files.read(path)

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

    def map(self, given: Mapping[str, str]) -> Any:
        return self._utils.toScalaMap(given)
