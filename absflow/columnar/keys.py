"""Keys: which key group a key belongs to, and where a key stands in a table of keys.

The hash is part of the storage format: state and pages of a job are spread by it. It depends on
the values of the key columns only (not on Spark, on the process, or on the width of an integer)
and is pinned by test vectors.

A value is one or more 64-bit words. Integers, dates (days), timestamps (microseconds UTC) and
booleans are one, in two's complement; a decimal is the two of its unscaled 128-bit value, the low
one first; strings (UTF-8) and binary are their length in bytes, then the bytes as little-endian
words, the last one padded with zeros. The words are folded from 0 on by ``hash = mix(hash ^ word)``
where ``mix`` is one step of SplitMix64 (Steele, Lea, Flood 2014): add ``_SEED``, then finalise.
Null has the hash ``NULL``. A row folds the hashes of its columns in key order from ``_SEED`` on.
The key group is the hash modulo the number of key groups (Flink: murmur hash modulo the maximum
parallelism).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.pieces import take
from absflow.errors import GraphError

__all__ = [
    "NULL",
    "Codes",
    "Hashes",
    "check_key_type",
    "factorize",
    "flat",
    "fold",
    "hash64",
    "hash_column",
    "key_groups",
    "locate",
    "mix",
]

_SEED = np.uint64(0x9E3779B97F4A7C15)
NULL = np.uint64(0xD1B54A32D192ED03)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

# Arrow counts the bytes of a column of text with 32 bits.
_SMALL = (1 << 31) - 1
# So many times as many rows as are looked up are many.
_MANY = 8

Codes = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


def check_key_type(name: str, type_: pa.DataType) -> None:
    """Refuse a key column whose values cannot be hashed to the same group for ever.

    Raises:
        GraphError: for floats (0.0, -0.0 and NaN have no one hash), nested types, and what Spark
            has no type for.
    """
    allowed = (
        pa.types.is_signed_integer,
        pa.types.is_boolean,
        pa.types.is_date32,
        pa.types.is_timestamp,
        pa.types.is_decimal128,
        _is_bytes,
    )
    if not any(test(type_) for test in allowed):
        raise GraphError(
            f"key column {name!r} has type {type_}, but a key is made of string, integer, date, "
            "timestamp, boolean, decimal and binary columns; cast it to one of these"
        )


def key_groups(columns: Sequence[pa.Array], groups: int) -> npt.NDArray[np.int32]:
    """The key group of every row.

    Args:
        columns: the key columns, each of n values; order matters.
        groups: how many key groups there are.

    Returns:
        n numbers in [0, groups).

    >>> key_groups([pa.array(["N14228", None])], 128).tolist()
    [106, 53]
    """
    numbers: npt.NDArray[np.int32] = (hash64(columns) % np.uint64(groups)).astype(np.int32)
    return numbers


def hash64(columns: Sequence[pa.Array]) -> Hashes:
    """The 64-bit hash of every row over ``columns``; see the module for its definition."""
    return fold([hash_column(flat(column)) for column in columns])


def fold(columns: Sequence[Hashes]) -> Hashes:
    """The hash of every row, by those of its values in each column."""
    result = np.full(len(columns[0]), _SEED, dtype=np.uint64)
    for hashes in columns:
        result = mix(result ^ hashes)
    return result


def mix(words: Hashes) -> Hashes:
    """One step of SplitMix64."""
    words = words + _SEED
    words = (words ^ (words >> np.uint64(30))) * _MIX_1
    words = (words ^ (words >> np.uint64(27))) * _MIX_2
    words = words ^ (words >> np.uint64(31))
    return words


def hash_column(column: pa.Array) -> Hashes:
    """The hash of each value of a type that a key may have."""
    if _is_bytes(column.type):
        hashes = _hash_bytes(column)
    elif pa.types.is_decimal128(column.type):
        words = _words(column, 2 * column.offset, 2 * len(column)).view(np.uint64).reshape(-1, 2)
        hashes = mix(mix(words[:, 0]) ^ words[:, 1])
    else:
        hashes = mix(_integers(column).view(np.uint64))
    if column.null_count:
        hashes = np.where(column.is_null().to_numpy(zero_copy_only=False), NULL, hashes)
    return hashes


def _integers(column: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    values: npt.NDArray[np.int64] = (
        pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return values


def _hash_bytes(column: pa.Array) -> Hashes:
    """Hash variable-length values, the n-th words of all of them at a time."""
    column = column.cast(pa.large_binary())
    if not len(column):
        return np.empty(0, dtype=np.uint64)
    offsets = _words(column, column.offset, len(column) + 1)
    lengths = np.diff(offsets)
    hashes = mix(lengths.astype(np.uint64))
    # One word may be read at every byte, so at the last one, too.
    data = np.frombuffer(column.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    data = np.append(data, np.zeros(8, dtype=np.uint8))
    words = np.ndarray(len(data) - 7, dtype="<u8", buffer=data, strides=(1,))
    for start in range(0, int(lengths.max()), 8):
        rows = np.flatnonzero(lengths > start)
        beyond = (8 * np.maximum(start + 8 - lengths[rows], 0)).astype(np.uint64)
        word = words[offsets[rows] - offsets[0] + start] << beyond >> beyond
        hashes[rows] = mix(hashes[rows] ^ word)
    return hashes


def _words(column: pa.Array, start: int, count: int) -> Codes:
    """``count`` 64-bit words of the column's values (or offsets), from word ``start`` on."""
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(count, dtype=np.int64)
    return np.frombuffer(buffer, dtype="<i8", count=count, offset=start * 8)


def _is_bytes(type_: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    return any(test(type_) for test in tests) or pa.types.is_large_binary(type_)


def flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column in one piece, copied only if it has several."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.nbytes > _SMALL and _is_bytes(column.type):
        text = pa.types.is_string(column.type)
        column = column.cast(pa.large_string() if text else pa.large_binary())
    return column.combine_chunks()


def factorize(keys: pa.Table) -> tuple[Codes, pa.Table]:
    """Number the distinct keys in the order of their first row.

    Args:
        keys: n rows of key columns; nulls are values like any other.

    Returns:
        n codes in [0, k), and the k distinct keys in the order of their codes.

    >>> codes, unique = factorize(pa.table({"k": ["b", "a", "b"]}))
    >>> codes.tolist(), unique["k"].to_pylist()
    ([0, 1, 0], ['b', 'a'])
    """
    if keys.num_columns == 1:
        encoded = flat(keys.column(0)).dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        unique, type_ = encoded.dictionary, keys.schema.field(0).type
        if unique.type != type_:
            unique = unique.cast(type_)
        return codes, pa.table([unique], schema=keys.schema)
    encoded = pa.array(_combined([keys])[0]).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    row_of = np.empty(len(encoded.dictionary), dtype=np.int64)
    row_of[codes] = np.arange(len(codes))  # any of the key's rows
    return codes, keys.take(pa.array(row_of))


def locate(keys: pa.Table, among: pa.Table) -> Codes:
    """For every row of ``keys`` its row in ``among`` (the first, if there are several), else -1."""
    if among.num_rows <= _MANY * keys.num_rows:
        return _located(keys, among)
    # To look many rows up in a small hash table costs far less than to make one of them.
    pairs = zip(among.columns, keys.columns, strict=True)
    there = reduce(pc.and_, (pc.is_in(a, value_set=flat(k)) for a, k in pairs))
    rows = np.flatnonzero(there.to_numpy())
    found = _located(keys, take(among, rows))
    return np.append(rows, -1)[found]  # -1 finds the last


def _located(keys: pa.Table, among: pa.Table) -> Codes:
    if keys.num_columns == 1:
        needles, haystack = flat(keys.column(0)), flat(among.column(0))
        if needles.type != haystack.type:
            needles = needles.cast(haystack.type)
    else:
        needles, haystack = (pa.array(c) for c in _combined([keys, among]))
    found = pc.index_in(needles, value_set=haystack)
    rows: Codes = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return rows


def _combined(tables: Sequence[pa.Table]) -> list[Codes]:
    """One code per row such that rows of all tables are equal exactly if their codes are."""
    sizes = [table.num_rows for table in tables]
    result, bound = np.zeros(sum(sizes), dtype=np.int64), 1
    for number in range(tables[0].num_columns):
        both = flat(
            pa.chunked_array(
                [c for t in tables for c in t.column(number).chunks],
                type=tables[0].schema.field(number).type,
            )
        )
        encoded = both.dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        count = max(len(encoded.dictionary), 1)
        if bound * count >= 2**63:
            # Renumbered from 0 on, so that the product stays below rows x rows.
            values, result = np.unique(result, return_inverse=True)
            bound = len(values)
        result, bound = result * count + codes, bound * count
    return np.split(result, np.cumsum(sizes)[:-1])
