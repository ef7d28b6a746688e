"""Removes files of the job's tables that no version names, and none will.

Which these are says :mod:`absflow.protocol.retention.leftovers`; here is how they are looked for.
Names in directories are read before the log, so what was committed before that is known. A
directory in which the log names nothing goes as a whole; another one is looked into once, for
nobody writes there any more, and at most so many of them at a time.

The tables of facts have no such directories. Their only writer is the job's thread: whatever it was
writing when the names were read is committed, or never will be, once it takes its next event.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from absflow.protocol.retention.leftovers import is_data_file, sort_directories, unnamed
from absflow.storage.delta.named import NamedFiles
from absflow.storage.files import Files

__all__ = ["Sweep"]

# Directories that are looked into at once, in each table.
_LOOKS = 200


class Sweep:
    """What one thread has swept, for the tables that only this driver writes."""

    def __init__(self, spark: SparkSession, files: Files) -> None:
        """Look with these."""
        self._spark = spark
        self._files = files
        self._looked: dict[str, set[str]] = {}

    def partitions(self, table: str, column: str, over: Callable[[int], bool]) -> int:
        """Sweep what is over of a table with one partition column; how many deletions it took.

        Raises:
            StorageError: a directory cannot be read, or something not deleted.
        """
        there = self._files.names(table)
        if not sort_directories(there, column, over, ()).over:
            return 0
        named = NamedFiles(self._spark, table)
        found = sort_directories(there, column, over, named.directories())
        for name in found.drop:
            self._files.delete_folder(f"{table}/{name}")
        looked = self._looked[table] = self._looked.get(table, set()).intersection(found.look)
        due = [name for name in found.look if name not in looked][:_LOOKS]
        files = named.within(due)
        swept = len(found.drop)
        for directory in due:
            own = {path.rpartition("/")[2] for path in files if path.startswith(f"{directory}/")}
            for name in unnamed(self._files.names(f"{table}/{directory}"), own):
                self._files.delete(f"{table}/{directory}/{name}")
                swept += 1
            looked.add(directory)
        return swept

    def facts(self, table: str, await_writer: Callable[[], None]) -> int:
        """Sweep a table without partitions; how many files it took.

        Args:
            table: the table's path.
            await_writer: returns when its writer has ended what it was writing at the call.

        Raises:
            StorageError: as :meth:`partitions`.
        """
        there = [name for name in self._files.names(table) if is_data_file(name)]
        await_writer()
        named = NamedFiles(self._spark, table).all()
        left = unnamed(there, named)
        for name in left:
            self._files.delete(f"{table}/{name}")
        return len(left)
