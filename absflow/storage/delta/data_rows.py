"""The rows of a table's data files as Arrow, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from absflow.storage.stores.contract import Store

__all__ = ["UnreadableFileError", "Within", "batches_of", "rows_of"]

_BATCH_ROWS = 65_536


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
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in order.

    Args:
        store: has it.
        path: where.
        schema: the columns that are wanted; one that the file has not is null.
        within: row groups that have no such row may be left out.
        check: look at the checksums of its pages.

    Raises:
        UnreadableFileError: it is not there, or is not what was written.
        StorageError: the storage refuses.
    """
    data = store.read(path)
    if data is None:
        raise UnreadableFileError(f"data file '{path}' is gone")
    try:
        yield from batches_of(data, schema, within, check=check)
    except pa.ArrowMemoryError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFileError(f"data file '{path}' cannot be read: {error}") from error


def batches_of(
    data: bytes, schema: pa.Schema, within: Within | None = None, *, check: bool = True
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
