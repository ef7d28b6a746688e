"""The files of a table's newest version, by its log, without a job of Spark.

Delta puts the whole state of a table together for that, a Spark job that takes a second beside a
job that keeps every core busy, and four the first time. Of the tables of a job the log has a
checkpoint behind each hundredth commit, so a look reads at most so many commits, and one that goes
on where the last one ended only those that are new (PROTOCOL.md of Delta, "Checkpoints" and
"Action Reconciliation").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from absflow.storage.delta.log import actions_of, checkpoint_file, last_checkpoint, log_file

__all__ = ["UNREADABLE", "LiveFile", "LiveFiles"]

# What comes of a log, or of a file, that is not as expected. Spark then reads it, or says what is
# wrong.
UNREADABLE = (OSError, ValueError, TypeError, KeyError, pa.ArrowException)

_COLUMNS = [
    *(f"add.{name}" for name in ("path", "size", "partitionValues", "stats")),
    *(f"metaData.{name}" for name in ("schemaString", "partitionColumns")),
    "protocol.minReaderVersion",
]
# More than this a reader need not know, of a table that is nothing but rows in files.
_PLAIN_READER = 1


@dataclass(frozen=True, slots=True)
class LiveFile:
    """What the log says of a file.

    Attributes:
        size: in bytes.
        partition: its values of the partition columns, as text.
        stats: its statistics, as JSON; empty if nothing is said.
    """

    size: int
    partition: Mapping[str, str | None]
    stats: str

    def value(self, column: str) -> int:
        """Its value of a partition column of whole numbers."""
        return int(self.partition[column] or 0)

    @property
    def statistics(self) -> Mapping[str, Any]:
        """Its statistics."""
        found: Mapping[str, Any] = json.loads(self.stats or "{}")
        return found


class LiveFiles:
    """Follows the log of one table; for one thread.

    Attributes:
        files: those of the newest version that was read, by their paths as the log has them.
        metadata: its ``metaData`` action; None before the first.
    """

    def __init__(self, read: Callable[[str], bytes | None], table: str, most: int) -> None:
        """Of the table at a path.

        Args:
            read: gives a file's bytes or None.
            table: the table's path.
            most: so many commits are read at a time, less one.
        """
        self.files: dict[str, LiveFile] = {}
        self.metadata: dict[str, Any] | None = None
        self._min_reader: int | None = None
        self._read = read
        self._table = table
        self._most = most
        self._version = -1

    def advance(self) -> bool:
        """Read what is new; whether this is all, and all that a reader must know of the table.

        Raises:
            UNREADABLE: one of these, if the log is not as expected.
            StorageError: the storage refuses.
        """
        begun = last_checkpoint(self._text, self._table)
        # Commits before it may have been cleaned up.
        if begun is not None and begun > self._version and not self._begin(begun):
            return False
        for version in range(self._version + 1, self._version + 1 + self._most):
            commit = self._text(log_file(self._table, version))
            if commit is None:
                return self.metadata is not None and self._min_reader == _PLAIN_READER
            for action in actions_of(commit):
                self._follow(action)
            self._version = version
        return False

    def rows_by_partition(self, column: str) -> dict[int, int]:
        """The values of a partition column of whole numbers, and how many rows each has.

        A file of which the log does not say it counts as none.
        """
        found: dict[int, int] = {}
        for file in self.files.values():
            value = file.value(column)
            found[value] = found.get(value, 0) + file.statistics.get("numRecords", 0)
        return found

    def _begin(self, version: int) -> bool:
        """Take the table from a checkpoint of its log, if that is one file."""
        data = self._read(checkpoint_file(self._table, version))
        if data is None:
            return False
        self.files, self.metadata, self._min_reader = {}, None, None
        for action in _actions(data):
            self._follow(action)
        self._version = version
        return True

    def _follow(self, action: Mapping[str, Any]) -> None:
        if (metadata := action.get("metaData")) is not None:
            self.metadata = metadata
        if (protocol := action.get("protocol")) is not None:
            self._min_reader = protocol["minReaderVersion"]
        if (add := action.get("add")) is not None:
            partition, stats = dict(add.get("partitionValues") or {}), add.get("stats") or ""
            self.files[add["path"]] = LiveFile(add["size"], partition, stats)
        if (remove := action.get("remove")) is not None:
            self.files.pop(remove["path"], None)

    def _text(self, path: str) -> str | None:
        data = self._read(path)
        return None if data is None else data.decode()


def _actions(checkpoint: bytes) -> Iterator[dict[str, Any]]:
    yield from pq.ParquetFile(pa.BufferReader(checkpoint)).read(_COLUMNS).to_pylist()
