"""Flipped bits in a file of a state history, on their way to the pages of a restore."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from absflow.columnar.digest import added, set_digests
from absflow.columnar.pages import pages_of
from absflow.columnar.restore_packer import StatePacker
from absflow.protocol.checkpoints import SetDigest

LIST = pa.list_(pa.int32())
KEYS = pa.schema([("k", pa.string())])
STATE = pa.schema(
    [("n", pa.int64()), ("amount", pa.decimal128(21, 2)), ("l", pa.list_(pa.int32()))]
)
SET = 7
FLIPS = 1500


def rows():
    """A set of 60 keys, with nulls and a tombstone."""
    random = np.random.default_rng(3)
    n = random.integers(-1000, 1000, 60).tolist()
    return pa.table(
        {
            "set_id": [SET] * 60,
            "op": ["upsert"] * 59 + ["delete"],
            "k": [f"key {x}" for x in range(60)],
            "n": [None if x % 7 == 0 else x for x in n],
            "amount": pa.array([None if x % 5 == 0 else x for x in n], pa.int64()).cast(
                STATE.field("amount").type
            ),
            "l": [[x, None] for x in n],
        },
        schema=pa.schema([("set_id", pa.int64()), ("op", pa.string()), *KEYS, *STATE]),
    )


def said(table):
    """What the rows mean; all that is not a deletion is an upsert."""
    deleted = pc.equal(table["op"], "delete").to_pylist()
    values = (table[name].to_pylist() for name in (*KEYS.names, *STATE.names))
    return sorted(map(str, zip(deleted, *values, strict=True)))


def packed(table):
    """What the pages of a restore say of the set, and the values in the table."""
    packer = StatePacker("s", KEYS, STATE, 3, 9, (SET,))
    pages = [p for batch in packer.pack(table.to_batches()) for p in pages_of(batch)]
    parts = added(SetDigest(SET, p.rows, p.base_id) for p in pages)
    return parts[SET] if parts else None


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_a9_any_flipped_bit_gives_an_error_or_the_same_values(compression):
    """Seeded flips all over one file: the reader fails, the digest differs, or nothing does."""
    table = rows()
    (due,) = set_digests(table)
    assert packed(table) == due
    file = io.BytesIO()
    pq.write_table(table, file, compression=compression, write_page_checksum=True)
    good = file.getvalue()
    random = np.random.default_rng(11)
    met = dict.fromkeys(("unreadable", "other digest", "same"), 0)
    for bit in random.integers(0, 8 * len(good), FLIPS).tolist():
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        try:
            read = pq.ParquetFile(pa.BufferReader(bytes(bad)), page_checksum_verification=True)
            seen = read.read().cast(table.schema)
            found = packed(seen)
        except (OSError, ValueError, KeyError, MemoryError, pa.ArrowException):
            met["unreadable"] += 1
            continue
        if found != due:
            met["other digest"] += 1
        else:
            met["same"] += 1
            assert said(seen) == said(table), bit
    assert sum(met.values()) == FLIPS
    assert met["unreadable"] > FLIPS / 4


def test_a9_without_checksums_the_digest_alone_finds_them():
    """The same flips in a file without checksums are not all seen by the reader."""
    table = rows()
    (due,) = set_digests(table)
    file = io.BytesIO()
    pq.write_table(table, file, compression="none", use_dictionary=False)
    good, random, caught = file.getvalue(), np.random.default_rng(11), 0
    for bit in random.integers(0, 8 * len(good), FLIPS).tolist():
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        try:
            seen = pq.read_table(pa.BufferReader(bytes(bad))).cast(table.schema)
            found = packed(seen)
        except (OSError, ValueError, KeyError, MemoryError, pa.ArrowException):
            continue
        caught += found != due
        assert found != due or said(seen) == said(table), bit
    assert caught > FLIPS / 10
