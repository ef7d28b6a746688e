"""A table with few commits, read without Spark.

Spark puts a table's state together before it reads: five jobs and most of a second of CPU time for
a table of two rows. A job's facts are such tables at most of its starts, and of those a start reads
several.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from absflow.storage.delta import newest
from absflow.storage.delta.data_rows import batches_of
from absflow.storage.delta.live_files import UNREADABLE, LiveFile, LiveFiles
from absflow.storage.delta.log import file_of, log_file
from absflow.storage.files import Files

__all__ = ["FEW", "ShortTable", "short_table"]

# So many commits are read one by one, each with a file or none; a longer table is left to Spark.
FEW = 32
# They come through Py4J, which is no way for many.
MOST_BYTES = 1 << 20
# Of a local table, for somebody who waits: a commit is read in a millisecond there.
PATIENT_FEW = 400
PATIENT_BYTES = 1 << 24
# For who asks again and again, and keeps what was read.
KEPT_FEW = 1000
_AT_ONCE = 8


def short_table(
    files: Files, path: str, columns: Collection[str] | None = None, *, patient: bool = False
) -> pa.Table | None:
    """All rows of a table that is not partitioned; None if Spark is to read it.

    So it is if the table has many commits or large files, or asks more of a reader than to read
    files; or if a file is not what is expected: Spark then reads it, or says what is wrong.

    Args:
        files: the file system.
        path: the table's.
        columns: those that are wanted, if it has them; None for all.
        patient: a table on a local file system may be longer.

    Raises:
        StorageError: the file system refuses.
    """
    if patient and files.is_local(path):
        return _read(files.read_bytes, path, columns, PATIENT_FEW, PATIENT_BYTES)
    if files.exists(log_file(path, FEW)) or files.exists(f"{path}/_delta_log/_last_checkpoint"):
        return None
    return _read(files.read_bytes, path, columns, FEW, MOST_BYTES)


class ShortTable:
    """A table that is read again and again: what was read of it is kept; for one thread."""

    def __init__(self, files: Files, path: str) -> None:
        """Of the table at ``path``."""
        self._read = files.read_bytes
        self._path = path
        self._live = LiveFiles(self._read, path, KEPT_FEW)
        self._rows: dict[str, pa.Table] = {}

    def rows(self, wanted: Callable[[LiveFile], bool]) -> pa.Table | None:
        """The rows of the files that are ``wanted``; else as :func:`short_table`."""
        try:
            schema = _schema(self._live)
            chosen = {name: file for name, file in self._live.files.items() if wanted(file)}
            if schema is None or not _is_short(chosen.values(), KEPT_FEW, PATIENT_BYTES):
                return None
            kept = {name: self._rows[name] for name in self._live.files.keys() & self._rows.keys()}
            # A column may have been added since.
            self._rows = {name: rows for name, rows in kept.items() if rows.schema.equals(schema)}
            due = [name for name in chosen if name not in self._rows]
            self._rows.update(_by_file(self._read, self._path, schema, due))
            return pa.concat_tables([schema.empty_table(), *map(self._rows.__getitem__, chosen)])
        except UNREADABLE:
            return None


def _read(
    read: Callable[[str], bytes | None],
    path: str,
    columns: Collection[str] | None,
    few: int,
    most_bytes: int,
) -> pa.Table | None:
    live = LiveFiles(read, path, few)
    try:
        schema = _schema(live)
        if schema is None or not _is_short(live.files.values(), few, most_bytes):
            return None
        if columns is not None:
            schema = pa.schema([each for each in schema if each.name in columns])
        rows = _by_file(read, path, schema, live.files).values()
        return pa.concat_tables([schema.empty_table(), *rows])
    except UNREADABLE:
        return None


def _schema(live: LiveFiles) -> pa.Schema | None:
    """The columns of a table's newest version; None if Spark is to read it."""
    found = live.advance()
    metadata: dict[str, Any] = live.metadata or {}
    if not found or metadata["partitionColumns"]:
        return None
    return to_arrow_schema(newest.columns(metadata), timezone="UTC")


def _is_short(files: Collection[LiveFile], few: int, most_bytes: int) -> bool:
    return len(files) <= few and sum(file.size for file in files) <= most_bytes


def _by_file(
    read: Callable[[str], bytes | None], path: str, schema: pa.Schema, names: Collection[str]
) -> dict[str, pa.Table]:
    """The rows of each of these files."""

    def rows(name: str) -> pa.Table:
        data = read(file_of(path, name))
        if data is None:
            raise FileNotFoundError
        return pa.Table.from_batches(batches_of(data, schema), schema)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(names, pool.map(rows, names), strict=True))
