"""A storage root read with Spark; short tables of facts, and logs, without a job of Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import reduce
from operator import and_, or_

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from absflow.facts.matching import Match, expression, may_match, names_in
from absflow.storage.delta import tables
from absflow.storage.delta.live_files import UNREADABLE, LiveFiles
from absflow.storage.delta.short import ShortTable, short_table
from absflow.storage.files import Files
from absflow.storage.sql import quoted

__all__ = ["SparkStorageReader"]

# Behind each hundredth commit the log of a job's table has a checkpoint, from where it is read on.
_MOST_COMMITS = 200


class SparkStorageReader:
    """The storage root through Spark; rows of state and channels are not read.

    Raises:
        StorageError: from each method, if something cannot be read.
    """

    def __init__(
        self, spark: SparkSession, *, patient: bool = False, follows: bool = False
    ) -> None:
        """Look with ``spark``.

        Args:
            spark: the session.
            patient: a person waits, beside a job that keeps every core busy: also longer tables
                are read without a job of Spark, which would wait for one.
            follows: one thread looks again and again, beside a job: what it has read of a log, and
                of the facts, it keeps, and reads only what is new.
        """
        self._spark = spark
        self._patient = patient
        self._short: dict[str, ShortTable] | None = {} if follows else None
        self._logs: dict[str, LiveFiles] | None = {} if follows else None
        self._files = files = Files(spark)
        self.names: Callable[[str], list[str]] = files.names
        self.read: Callable[[str], str | None] = files.read

    def table(self, path: str, columns: Sequence[str], matches: Sequence[Match] = ()) -> pa.Table:
        """Rows of a table that match one of these; without any, all.

        Columns that a table of an earlier version does not have are left out.
        """
        read = {*columns, *(name for match in matches for name in names_in(match))}
        rows = self._rows(path, read, matches)
        if rows is not None:
            rows = rows.filter(expression(matches)) if matches else rows
            return rows.select([name for name in columns if name in rows.column_names])
        frame = tables.read(self._spark, path)
        columns = [name for name in columns if name in frame.columns]
        if matches:
            frame = frame.where(reduce(or_, map(_wanted, matches)))
        with tables.reading(path):
            return frame.select(*columns).toArrow()

    def values(self, table: str, column: str) -> frozenset[int]:
        """The values of a partition column, from the table's log."""
        return frozenset(self._by_partition(table, column))

    def sets(self, table: str) -> dict[int, int]:
        """The sets of a state history, and how many rows the log says that each has; 0 for none."""
        return self._by_partition(table, "set_id")

    def files(self, table: str) -> LiveFiles | None:
        """The files of a table as it is now, from its log; None if that has more than files."""
        log = LiveFiles(self._files.read_bytes, table, _MOST_COMMITS)
        if self._logs is not None:
            log = self._logs.setdefault(table, log)
        with suppress(*UNREADABLE):
            if log.advance():
                return log
        return None

    def _rows(
        self, path: str, columns: Collection[str], matches: Sequence[Match]
    ) -> pa.Table | None:
        if self._short is None:
            return short_table(self._files, path, columns, patient=self._patient)
        if path not in self._short:
            self._short[path] = ShortTable(self._files, path)
        return self._short[path].rows(lambda file: may_match(matches, file.statistics))

    def _by_partition(self, table: str, column: str) -> dict[int, int]:
        """The values of a partition column, and how many rows the log says that each has."""
        found = self.files(table)
        if found is None:
            return tables.rows_by_partition(self._spark, table, column)
        return found.rows_by_partition(column)


def _wanted(match: Match) -> Column:
    """In a form by which Delta leaves out files: of a list of ids it sees only the ends."""
    checkpoint_id = F.col("checkpoint_id")
    parts: list[Column] = [F.col(quoted(name)) == value for name, value in match.equal]
    parts += [F.col("kind").isin(*match.kinds)] if match.kinds else []
    parts += [] if match.first is None else [checkpoint_id >= match.first]
    parts += [] if match.last is None else [checkpoint_id <= match.last]
    return reduce(and_, parts)
