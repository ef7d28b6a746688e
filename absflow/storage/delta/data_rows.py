"""The rows of a table's data files as Arrow, without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from absflow.storage.stores.contract import Store

__all__ = ["UnreadableFileError", "batches_of", "rows_of"]

_BATCH_ROWS = 65_536


class UnreadableFileError(Exception):
    """A data file is gone or damaged; the text has its path, for whoever knows whose it is."""


def rows_of(
    store: Store, path: str, schema: pa.Schema, *, check: bool = True
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in order.

    Args:
        store: has it.
        path: where.
        schema: the columns that are wanted; one that the file has not is null.
        check: look at the checksums of its pages.

    Raises:
        UnreadableFileError: it is not there, or is not what was written.
        StorageError: the storage refuses.
    """
    data = store.read(path)
    if data is None:
        raise UnreadableFileError(f"data file '{path}' is gone")
    try:
        yield from batches_of(data, schema, check=check)
    except pa.ArrowMemoryError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFileError(f"data file '{path}' cannot be read: {error}") from error


def batches_of(data: bytes, schema: pa.Schema, *, check: bool = True) -> Iterator[pa.RecordBatch]:
    """The rows in the bytes of a Parquet file, with a null for each column that it has not."""
    file = pq.ParquetFile(
        pa.BufferReader(data),
        page_checksum_verification=check,
        # As Spark writes times, if it does; in ns there are none behind the year 2262.
        coerce_int96_timestamp_unit="us",
    )
    there = [name for name in schema.names if name in file.schema_arrow.names]
    for batch in file.iter_batches(_BATCH_ROWS, columns=there):
        columns = [
            batch[field.name].cast(field.type)
            if field.name in there
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
