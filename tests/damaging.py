"""Files that are damaged on purpose."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq


def checked(path: Path) -> None:
    """Write a Parquet file anew, uncompressed and with checksums, as absflow writes one."""
    pq.write_table(pq.read_table(path), path, compression="none", write_page_checksum=True)


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file; the checksum file that Hadoop may have put beside it goes."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def flip_in_values(path: Path, column: str) -> None:
    """Flip a bit in the last values of a column, so that they decode to others."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    chunk = columns[column]
    end = chunk.data_page_offset  # of the dictionary, if there is one
    if not chunk.dictionary_page_offset:
        end += chunk.total_compressed_size
    flip(path, 8 * (end - 3))
