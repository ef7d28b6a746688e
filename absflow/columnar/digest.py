"""Digests: what is said of a set's rows, so that whoever reads them again sees that they are they.

A digest is the sum of the rows' hashes modulo 2^64. So it says nothing of an order, and the digests
of parts add up to that of the whole. The hash of a row is over whether it is a deletion, and its
key and state columns; the hash of a value is that of :mod:`absflow.columnar.keys`, and here it is
defined for what no key may be, too: of a float, its bits, with one NaN for all; of a list, its
length and its elements by their places; of a map, which has no order, the same without places; of a
struct, its fields in their order. A null is none of all that, whatever lies below it.

The hash is part of the storage format, as that of keys is. It depends on the values alone: not on
the widths of Arrow's offsets, on slices, or on who has read the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from absflow.columnar.keys import NULL, Hashes, flat, hash64, hash_column, mix
from absflow.protocol.checkpoints import SetDigest

__all__ = [
    "added",
    "column_hashes",
    "digest_of",
    "is_delete",
    "row_hashes",
    "set_digest",
    "set_digests",
    "signed",
    "total",
    "value_hashes",
]

# Columns of a state history that no digest is over: where the rows lie, not what they say.
_OWN = ("set_id", "checkpoint_id", "key_group", "op")
_PLACE = np.uint64(0x9E3779B97F4A7C15)
# Of a row that says that its key has state, that it was deleted, and nothing, which is damage.
_DELETED = hash64([pa.array([False, True, None])])


def set_digests(rows: pa.Table) -> list[SetDigest]:
    """The digest of each set in rows of a state history."""
    hashes = row_hashes(rows["op"], column_hashes(rows).values())
    ids = rows["set_id"].to_numpy()
    return [digest_of(int(set_id), hashes[ids == set_id]) for set_id in np.unique(ids)]


def set_digest(set_id: int, batches: Iterable[pa.RecordBatch]) -> SetDigest:
    """The digest of rows that are all of one set, whether they say which or not."""
    hashes = (row_hashes(rows["op"], column_hashes(rows).values()) for rows in batches)
    parts = (digest_of(set_id, of) for of in hashes)
    return added([SetDigest(set_id, 0, 0), *parts])[set_id]


def digest_of(set_id: int, hashes: Hashes) -> SetDigest:
    """The digest of rows of one set, by their hashes (:func:`row_hashes`)."""
    return SetDigest(set_id, len(hashes), total(hashes))


def column_hashes(rows: pa.Table | pa.RecordBatch) -> Mapping[str, Hashes]:
    """The hashes of the values in each column of a state history that a digest is over."""
    return {name: value_hashes(rows[name]) for name in rows.schema.names if name not in _OWN}


def added(parts: Iterable[SetDigest]) -> dict[int, SetDigest]:
    """Digests of parts of sets, put together by their sets."""
    whole: dict[int, SetDigest] = {}
    for part in parts:
        before = whole.get(part.set_id, SetDigest(part.set_id, 0, 0))
        digest = signed(before.digest + part.digest)
        whole[part.set_id] = SetDigest(part.set_id, before.rows + part.rows, digest)
    return whole


def row_hashes(op: pa.Array | pa.ChunkedArray, columns: Iterable[Hashes]) -> Hashes:
    """The hash of each row of a set.

    Args:
        op: what the row says, ``delete`` or ``upsert``.
        columns: of its key columns, then its state columns, the hash of each value.
    """
    hashes = _DELETED[is_delete(op).astype(np.int8)]
    if op.null_count:
        hashes = np.where(flat(op.is_null()).to_numpy(zero_copy_only=False), _DELETED[2], hashes)
    for column in columns:
        hashes = mix(hashes ^ column)
    return hashes


def is_delete(op: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Whether a row says that its key was deleted; of a dictionary each word is compared once."""
    op = flat(op)
    if types.is_dictionary(op.type):
        said = pc.equal(op.dictionary, "delete").take(op.indices)
    else:
        said = pc.equal(op, "delete")
    found: npt.NDArray[np.bool_] = pc.fill_null(said, False).to_numpy(zero_copy_only=False)
    return found


def value_hashes(column: pa.Array | pa.ChunkedArray) -> Hashes:
    """The hash of each value of a column; of what a key may be, that of a key."""
    return _hash(flat(column))


def total(hashes: Hashes) -> int:
    """Their sum, as :func:`signed` has it."""
    return int(hashes.sum(dtype=np.uint64).view(np.int64)) if len(hashes) else 0


def signed(number: int) -> int:
    """A whole number modulo 2^64, as a column of longs holds it.

    >>> signed(2**64 - 1), signed(2**63)
    (-1, -9223372036854775808)
    """
    return (number + 2**63) % 2**64 - 2**63


def _hash(column: pa.Array) -> Hashes:
    of = column.type
    if types.is_floating(of):
        hashes = _hash_floats(column)
    elif types.is_struct(of):
        # Not its children, which know nothing of a slice.
        parts = [_hash(column.field(place)) for place in range(of.num_fields)]
        first = np.full(len(column), _PLACE)
        hashes = reduce(lambda before, part: mix(before ^ part), parts, first)
    elif types.is_map(of):
        keys, items = _elements(column, column.keys), _elements(column, column.items)
        hashes = _hash_runs(column, mix(_hash(keys)) ^ _hash(items), placed=False)
    elif types.is_list(of) or types.is_large_list(of):
        hashes = _hash_runs(column, _hash(_elements(column, column.values)), placed=True)
    else:
        return hash_column(column)
    if column.null_count:
        hashes = np.where(column.is_null().to_numpy(zero_copy_only=False), NULL, hashes)
    return hashes


def _hash_floats(column: pa.Array) -> Hashes:
    values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    bits = np.where(np.isnan(values), np.float64(np.nan), values).view(np.uint64)
    return mix(bits)


def _elements(column: pa.Array, values: pa.Array) -> pa.Array:
    """What lies between the first and the last offset of a column of lists or maps."""
    if not len(column):
        return values[:0]
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return values.slice(first, last - first)


def _hash_runs(column: pa.Array, elements: Hashes, *, placed: bool) -> Hashes:
    if not len(column):
        return np.empty(0, dtype=np.uint64)
    offsets = column.offsets.to_numpy().astype(np.int64)
    offsets -= offsets[0]
    lengths = np.diff(offsets)
    if placed:
        places = np.arange(len(elements)) - np.repeat(offsets[:-1], lengths)
        elements = elements ^ (places.astype(np.uint64) * _PLACE)
    sums = np.zeros(len(elements) + 1, dtype=np.uint64)
    np.cumsum(mix(elements), out=sums[1:])
    return mix(sums[offsets[1:]] - sums[offsets[:-1]] ^ mix(lengths.astype(np.uint64)))
