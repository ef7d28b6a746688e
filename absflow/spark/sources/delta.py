"""What a Delta table still holds of what stands behind a position of a source in it.

Delta's source reads the files of a snapshot first, in an order of its own, then those that each
commit adds. So the commits must be there, and of the files those that are yet to be read. Only a
file that a commit has removed can have been deleted since (``VACUUM``), so only these are looked
for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from absflow.columnar.spec import StageSpec
from absflow.errors import StorageError
from absflow.storage.delta.log import (
    DeltaPosition,
    actions_of,
    file_of,
    log_file,
    newest_version,
)
from absflow.storage.files import Files

__all__ = ["begins_in_batch_2", "cleaned_up"]


def cleaned_up(
    spark: SparkSession, files: Files, options: Mapping[str, str], position: DeltaPosition
) -> list[str]:
    """What is gone, in words; empty if a source can go on at ``position``.

    Args:
        spark: the session.
        files: for looking.
        options: the source's, by name in lower case.
        position: where it is to go on.

    Raises:
        StorageError: the table cannot be asked.
    """
    table = options["path"]
    names = set(files.names(f"{table}/_delta_log"))
    newest = newest_version(names)
    if newest is None:
        return [f"there is no Delta table at {table!r} any more"]
    log = _Log(spark, table)
    if log.id != position.table:
        return [f"table {table!r} is another one now: its id is {log.id}, wanted {position.table}"]
    # A snapshot is made of its log; behind it, as anywhere else, the source reads by commits.
    first = position.version + position.snapshot
    there = newest
    while there >= 0 and log_file("", there).rpartition("/")[2] in names:
        there -= 1
    if not there < first <= newest + 1:
        return [f"table {table!r} has versions {there + 1} to {newest}, wanted {first}"]
    wanted: list[str] = []
    if position.snapshot:
        try:
            wanted += log.replaced(position)
        except StorageError as error:
            return [str(error)]
    if options.get("readchangefeed", "false").lower() != "true":
        skip = options.get("skipchangecommits", "false").lower() == "true"
        wanted += _removed(files, table, range(first, newest + 1), position, skip_changes=skip)
    gone = files.missing(file_of(table, path) for path in wanted)
    if not gone:
        return []
    return [f"{len(gone)} files of {table!r}, yet to be read, are gone (VACUUM), {gone[0]!r} first"]


def _removed(
    files: Files, table: str, versions: range, position: DeltaPosition, *, skip_changes: bool
) -> Iterator[str]:
    """The files to be read by commits that a commit has removed again."""
    added: dict[str, None] = {}
    removed: set[str] = set()
    for version in versions:
        actions = actions_of(files.read(log_file(table, version)) or "")
        adds = [a["add"] for a in actions if "add" in a]
        removes = [a["remove"] for a in actions if "remove" in a]
        removed.update(remove["path"] for remove in removes)
        if skip_changes and any(remove.get("dataChange", True) for remove in removes):
            continue
        to_read = [add["path"] for add in adds if add["dataChange"]]
        inside = version == position.version and not position.snapshot
        added.update(dict.fromkeys(to_read[position.index + 1 :] if inside else to_read))
    return (path for path in added if path in removed)


class _Log:
    """A table's log, through the classes by which Delta's source reads it."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        """Open the newest version of the table.

        Raises:
            StorageError: Delta cannot.
        """
        self._spark = spark
        self._table = table
        self._session: Any = spark._jsparkSession
        jvm: Any = spark.sparkContext._jvm
        self._delta = jvm.org.apache.spark.sql.delta
        self._nothing = jvm.PythonUtils.toSeq(jvm.java.util.ArrayList())
        try:
            self._log = self._delta.DeltaLog.forTable(self._session, table)
            self._newest = self._log.update(*_defaults(self._log, "update", range(1, 4)))
        except (Py4JJavaError, PySparkException) as error:
            raise StorageError(
                f"could not read the log of table {table!r}: {_first_words(error)}"
            ) from error
        self.id = str(self._newest.metadata().id())

    def replaced(self, position: DeltaPosition) -> list[str]:
        """The files of a snapshot behind a position that the table does not have any more.

        Raises:
            StorageError: what that snapshot is made of is gone.
        """
        rest = _defaults(self._log, "getSnapshotAt", range(2, 5))
        try:
            snapshot = self._log.getSnapshotAt(position.version, *rest)
        except (Py4JJavaError, PySparkException) as error:
            raise StorageError(
                f"version {position.version} of table {self._table!r} cannot be made any more: "
                f"{_first_words(error)}"
            ) from error
        source = self._delta.files.DeltaSourceSnapshot(self._session, snapshot, self._nothing)
        indexed = DataFrame(source.filteredFiles().toDF(), self._spark)
        unread = indexed.where(F.col("index") > position.index).select("index", "add.path")
        now = DataFrame(self._newest.allFiles().toDF(), self._spark).select("path")
        gone = unread.join(now, "path", "left_anti").orderBy("index")
        return [row.path for row in gone.collect()]


def _first_words(error: Py4JJavaError | PySparkException) -> str:
    """PySpark makes exceptions of its own of Spark's, and leaves others as they come from Java."""
    java = getattr(error, "java_exception", None)
    return str(java.toString() if java is not None else error)


def _defaults(of: Any, method: str, places: range) -> list[Any]:
    """The default arguments of a Scala method, which Java does not have."""
    return [getattr(of, f"{method}$default${place}")() for place in places]


def begins_in_batch_2(spec: StageSpec) -> bool:
    """Whether a restored stage reads nothing in batch 1, as in batch 0, which restores its state.

    After a start Spark asks a source once more for the rows of the last batch that was done, which
    for batch 0 begins with the source. Delta then wants its log from there on, of which much may be
    gone. A batch 1 that had begun when the query started is not preceded by that.
    """
    return any(given.root and given.format == "delta" for given in spec.inputs)
