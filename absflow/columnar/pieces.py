"""Tables in pieces of a size in bytes, and what can be done with them without making one of them.

Arrow counts the bytes of a column of text or binary values with 32 bits, so more than 2 GB of them
cannot be one record batch; and its ``take`` makes one batch of a table of many first. So whatever
may become large is cut into pieces: what travels, what is kept, and what is worked on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from absflow.columnar.pages import encode, one_batch

__all__ = [
    "PAGE_BYTES",
    "cut",
    "encode_batches",
    "encode_pieces",
    "fits",
    "pieces",
    "reordered",
    "replaced",
    "take",
    "where",
    "where_in",
]

# A page has at most so many bytes, unless a setting says otherwise. Small enough for what Spark
# counts by rows: Parquet's writer looks at its memory every 100 rows. Large enough that it is never
# met by the rows of a micro-batch on their way to a hundred key groups.
PAGE_BYTES = 1 << 20
# Of so few rows it costs less to encode them than to ask Arrow how many bytes they have.
_FEW = 4096
# More bytes than this are not made one batch of.
_ONE = 1 << 30


def fits(table: pa.Table | pa.RecordBatch, max_bytes: int) -> bool:
    """Whether it has at most so many bytes.

    What Arrow holds for it is known at once, but is more if it is a part of something.
    """
    return bool(table.get_total_buffer_size() <= max_bytes or table.nbytes <= max_bytes)


def cut(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Slices of the batch of at most so many bytes, as far as single rows allow."""
    if fits(batch, max_bytes) or batch.num_rows <= 1:
        yield batch
        return
    size = batch.nbytes
    # Nearly always the first cut does, for rows are much of a size; where they are not, once more.
    step = max(1, int(batch.num_rows * max_bytes / size))
    for start in range(0, batch.num_rows, step):
        yield from cut(batch.slice(start, step), max_bytes)


def pieces(batches: Iterable[pa.RecordBatch], max_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of the batches in batches of about so many bytes: small ones are put together."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for part in cut(batch, max_bytes) if batch.num_rows else ():
            more = part.get_total_buffer_size()
            if more > max_bytes:
                more = part.nbytes
            if waiting and size + more > max_bytes:
                yield one_batch(pa.Table.from_batches(waiting))
                waiting, size = [], 0
            waiting.append(part)
            size += more
    if waiting:
        yield one_batch(pa.Table.from_batches(waiting))


def encode_pieces(table: pa.Table | pa.RecordBatch, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """The rows as payloads of at most so many bytes, as far as single rows allow.

    Yields:
        How many rows, and their payload (:func:`~absflow.columnar.pages.encode`).
    """
    if table.num_rows <= _FEW or fits(table, max_bytes):
        payload = encode(table)
        if len(payload) <= max_bytes or table.num_rows <= 1:
            yield table.num_rows, payload
            return
    batches = table.to_batches() if isinstance(table, pa.Table) else [table]
    yield from encode_batches(batches, max_bytes)


def encode_batches(
    batches: Iterable[pa.RecordBatch], max_bytes: int
) -> Iterator[tuple[int, bytes]]:
    """As :func:`encode_pieces`, of batches that come one by one."""
    # What Arrow adds to the values is a few hundred bytes.
    for piece in pieces(batches, max_bytes - max_bytes // 16):
        yield from _within(piece, max_bytes)


def _within(piece: pa.RecordBatch, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    payload = encode(piece)
    if len(payload) <= max_bytes or piece.num_rows == 1:
        yield piece.num_rows, payload
        return
    half = piece.num_rows // 2
    yield from _within(piece.slice(0, half), max_bytes)
    yield from _within(piece.slice(half), max_bytes)


def take(table: pa.Table, places: npt.NDArray[np.int64]) -> pa.Table:
    """The rows at these places; -1 gives a row of nulls.

    Of a table in several chunks those without such a row are not touched, and the result may be in
    chunks, too.

    Args:
        table: the rows.
        places: n row numbers.
    """
    if not len(places):
        return table.schema.empty_table()
    if all(column.num_chunks <= 1 for column in table.columns):
        return table.take(_indices(places))
    batches = table.to_batches()
    lengths = np.array([batch.num_rows for batch in batches], dtype=np.int64)
    ends = np.cumsum(lengths)
    batch_of = np.where(places < 0, -1, np.searchsorted(ends, places, side="right"))
    order = np.argsort(batch_of, kind="stable")
    used, firsts = np.unique(batch_of[order], return_index=True)
    parts = []
    for number, here in zip(used.tolist(), np.split(order, firsts[1:]), strict=True):
        if number < 0:
            parts.append(_nulls(table.schema, len(here)))
        else:
            inside = places[here] - (ends[number] - lengths[number])
            parts.append(batches[number].take(pa.array(inside)))
    found = pa.Table.from_batches(parts, table.schema)
    if np.all(order[1:] > order[:-1]):
        return found
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return reordered(found, back)


def where(table: pa.Table, mask: npt.NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
    """The rows that the mask has, batch by batch; one of which all rows stay is not copied."""
    start = 0
    for batch in table.to_batches():
        mine = mask[start : start + batch.num_rows]
        start += batch.num_rows
        if mine.any() or not batch.num_rows:  # an empty batch stays as it is
            yield where_in(batch, mine)


def where_in(batch: pa.RecordBatch, mask: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The rows that the mask has; if it has all, they are not copied."""
    return batch if mask.all() else batch.filter(pa.array(mask))


def reordered(table: pa.Table, places: npt.NDArray[np.int64]) -> pa.Table:
    """As :func:`take`, if most rows of the table are wanted."""
    if len(places) <= 1 or fits(table, _ONE):
        return table.combine_chunks().take(_indices(places))
    half = len(places) // 2
    return pa.concat_tables([take(table, places[:half]), take(table, places[half:])])


def replaced(table: pa.Table, rows: pa.Table, which: npt.NDArray[np.int64]) -> pa.Table:
    """The table with other rows in some places.

    Args:
        table: the table.
        rows: m rows, with its columns.
        which: their m places, each once.
    """
    if not rows.num_rows:
        return table
    place = np.arange(table.num_rows)
    place[which] = table.num_rows + np.arange(len(which))
    return reordered(pa.concat_tables([table, rows.cast(table.schema)]), place)


def _indices(places: npt.NDArray[np.int64]) -> pa.Array:
    missing = places < 0
    return pa.array(places, mask=missing) if missing.any() else pa.array(places)


def _nulls(schema: pa.Schema, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(count, f.type) for f in schema], schema=schema)
