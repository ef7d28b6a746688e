"""The rows of a table's data files as Arrow, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from absflow.errors import StorageError
from absflow.storage.stores.contract import Store

__all__ = ["UnreadableFileError", "Within", "batches_of", "rows_of"]

_BATCH_ROWS = 65_536
# A file of so many bytes is fetched by one request.
_SMALL_BYTES = 1 << 20
# In so many is the footer of a larger one, mostly.
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Within:
    """Rows whose number in a column is one of these.

    Attributes:
        column: its name.
        least: the least of them.
        most: the greatest.
    """

    column: str
    least: int
    most: int


class UnreadableFileError(Exception):
    """A data file is gone or damaged; the text has its path, for whoever knows whose it is."""


def rows_of(
    store: Store,
    path: str,
    schema: pa.Schema,
    within: Within | None = None,
    *,
    check: bool = True,
    size: int = 0,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in order.

    Args:
        store: has it.
        path: where.
        schema: the columns that are wanted; one that the file has not is null.
        within: row groups that have no such row may be left out.
        check: look at the checksums of its pages.
        size: its bytes, so that of a large one no more is fetched than row groups that may have
            such rows; 0 to fetch it whole.

    Raises:
        UnreadableFileError: it is not there, or is not what was written.
        StorageError: the storage refuses.
    """
    data: Any = None
    if within is not None and size > _SMALL_BYTES:
        data = _fetched(store, path, within, size)
    if data is None:
        data = store.read(path)
    if data is None:
        raise UnreadableFileError(f"data file '{path}' is gone")
    try:
        yield from batches_of(data, schema, within, check=check)
    except pa.ArrowMemoryError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFileError(f"data file '{path}' cannot be read: {error}") from error


def _fetched(store: Store, path: str, within: Within, size: int) -> pa.Buffer | None:
    """A file with nothing but zeros where nobody looks; None if it is not what it should be.

    Who reads all of it then finds out what is wrong.
    """
    # Memory that is not written takes no room.
    data = np.zeros(size, dtype=np.uint8)

    def fetch(begin: int, end: int) -> None:
        if begin == end:
            return
        part = store.read_part(path, begin, end - begin)
        if part is None or len(part) != end - begin:
            raise OSError(f"{path!r} has no {end} bytes")
        data[begin:end] = np.frombuffer(part, dtype=np.uint8)

    try:
        tail = size - _TAIL_BYTES
        fetch(tail, size)
        footer = int.from_bytes(data[-8:-4].tobytes(), "little") + 8
        if footer > size - tail:
            fetch(max(0, size - footer), tail)
        file = pq.read_metadata(pa.BufferReader(data))
        begun = ended = 0
        for begin, end in sorted(_places(file, number) for number in _row_groups(file, within)):
            if begin != ended:
                fetch(begun, ended)
                begun = begin
            ended = end
        fetch(begun, ended)
    except (OSError, ValueError, StorageError, pa.ArrowException):
        return None
    return pa.py_buffer(data)


def _places(file: pq.FileMetaData, number: int) -> tuple[int, int]:
    """Where a row group begins and ends."""
    group = file.row_group(number)
    columns = [group.column(place) for place in range(group.num_columns)]
    begin = min(
        min(c.data_page_offset, c.dictionary_page_offset or c.data_page_offset) for c in columns
    )
    return begin, begin + sum(c.total_compressed_size for c in columns)


def batches_of(
    data: Any, schema: pa.Schema, within: Within | None = None, *, check: bool = True
) -> Iterator[pa.RecordBatch]:
    """The rows in the bytes of a Parquet file, with a null for each column that it has not.

    The arguments are those of :func:`rows_of`.
    """
    file = pq.ParquetFile(
        pa.BufferReader(data),
        page_checksum_verification=check,
        read_dictionary=[f.name for f in schema if pa.types.is_dictionary(f.type)],
        # As Spark writes times, if it does; in ns there are none behind the year 2262.
        coerce_int96_timestamp_unit="us",
    )
    there = [name for name in schema.names if name in file.schema_arrow.names]
    groups = None if within is None else _row_groups(file.metadata, within)
    for batch in file.iter_batches(_BATCH_ROWS, groups, columns=there):
        columns = [
            batch[field.name].cast(field.type)
            if field.name in there
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _row_groups(file: pq.FileMetaData, within: Within) -> list[int]:
    """Those that may have such a row, also if they do not say which they have."""
    paths = [file.schema.column(place).path for place in range(file.num_columns)]
    if within.column not in paths:
        return [*range(file.num_row_groups)]
    found, at = [], paths.index(within.column)
    for number in range(file.num_row_groups):
        said = file.row_group(number).column(at).statistics
        known = said is not None and said.has_min_max and said.null_count == 0
        if not known or (said.min <= within.most and within.least <= said.max):
            found.append(number)
    return found
