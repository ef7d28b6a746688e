"""A table with few commits, read without Spark.

Spark puts a table's state together before it reads: five jobs and most of a second of CPU time for
a table of two rows. A job's facts are such tables at most of its starts, and of those a start reads
several.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from absflow.storage.delta import newest
from absflow.storage.delta.data_rows import batches_of
from absflow.storage.delta.log import (
    actions_of,
    checkpoint_file,
    file_of,
    last_checkpoint,
    log_file,
)
from absflow.storage.files import Files

__all__ = ["FEW", "short_table"]

# So many commits are read one by one, each with a file or none; a longer table is left to Spark.
FEW = 32
# They come through Py4J, which is no way for many.
MOST_BYTES = 1 << 20
# Of a local table, for somebody who waits: a commit is read in a millisecond there.
PATIENT_FEW = 400
PATIENT_BYTES = 1 << 24
_AT_ONCE = 8


@dataclass(slots=True)
class _Found:
    """What a log says of a table, up to a commit."""

    sizes: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] | None = None
    min_reader: int | None = None

    def follow(self, action: dict[str, Any]) -> None:
        """One more action."""
        if (metadata := action.get("metaData")) is not None:
            self.metadata = metadata
        if (protocol := action.get("protocol")) is not None:
            self.min_reader = protocol["minReaderVersion"]
        if (added := action.get("add")) is not None:
            self.sizes[added["path"]] = added["size"]
        if (removed := action.get("remove")) is not None:
            self.sizes.pop(removed["path"], None)


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


def _read(
    read: Callable[[str], bytes | None],
    path: str,
    columns: Collection[str] | None,
    few: int,
    most_bytes: int,
) -> pa.Table | None:
    try:
        found = _found(read, path, few)
        if found is None or found.metadata is None or found.min_reader != 1:
            return None
        if found.metadata["partitionColumns"] or len(found.sizes) > few:
            return None
        if sum(found.sizes.values()) > most_bytes:
            return None
        schema = to_arrow_schema(newest.columns(found.metadata), timezone="UTC")
        if columns is not None:
            schema = pa.schema([each for each in schema if each.name in columns])

        def rows(name: str) -> pa.Table:
            data = read(file_of(path, name))
            if data is None:
                raise FileNotFoundError
            return pa.Table.from_batches(batches_of(data, schema), schema)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return pa.concat_tables([schema.empty_table(), *pool.map(rows, found.sizes)])
    except (OSError, ValueError, TypeError, KeyError, pa.ArrowException):
        return None


def _found(read: Callable[[str], bytes | None], path: str, few: int) -> _Found | None:
    """What the log says, from its last checkpoint on; None if it goes on for more than ``few``."""

    def text(file: str) -> str | None:
        data = read(file)
        return None if data is None else data.decode()

    found, version = _Found(), 0
    if (begun := last_checkpoint(text, path)) is not None:
        data = read(checkpoint_file(path, begun))
        if data is None:
            return None  # it is in several files
        wanted = ["add.path", "add.size", "metaData.schemaString", "metaData.partitionColumns"]
        wanted += ["protocol.minReaderVersion"]
        for action in pq.ParquetFile(pa.BufferReader(data)).read(wanted).to_pylist():
            found.follow(action)
        version = begun + 1
    for at in range(version, version + few):
        commit = text(log_file(path, at))
        if commit is None:
            return found
        for action in actions_of(commit):
            found.follow(action)
    return None
