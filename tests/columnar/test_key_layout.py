"""Neither layout nor process changes a hash; keys spread, and are found again."""

import doctest
import importlib
import json
import os
import subprocess
import sys
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from arrow_cases import KEY_TYPES, examples, key_tables, laid_out, rows_of
from hypothesis import given
from hypothesis import strategies as st
from key_cases import D

from absflow.columnar.keys import check_key_type, factorize, hash64, key_groups, locate
from absflow.errors import GraphError


@examples(60)
@given(st.lists(st.none() | st.integers(-128, 127)))
def test_the_width_of_an_integer_does_not_matter(values):
    """A key column may be widened without moving a key."""
    hashes = [
        hash64([pa.array(values, type=type_)]).tolist()
        for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    ]
    assert hashes == [hashes[0]] * 4


def test_equal_moments_have_equal_hashes():
    """A time zone is how a moment is shown, and a unit how it is counted; neither is hashed."""
    seconds = pa.array([1357017300], type=pa.int64()).cast(pa.timestamp("s"))
    micros = seconds.cast(pa.timestamp("us"))
    zones = [micros.cast(pa.timestamp("us", tz=zone)) for zone in ("UTC", "America/New_York")]
    assert len({hash64([array]).item() for array in (seconds, micros, *zones)}) == 1


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_layout_does_not_matter(kind):
    """Slices and chunked arrays hash like fresh arrays, at any offset, with any nulls."""
    type_, values = KEY_TYPES[kind]

    @examples(25)
    @given(st.lists(st.none() | values, max_size=20), st.data())
    def check(plain, data):
        fresh = hash64([pa.array(plain, type=type_)]).tolist()
        assert hash64([data.draw(laid_out(plain, type_))]).tolist() == fresh

    check()


GARBAGE = {
    "int64": (pa.int64(), np.array([1, 77, 3], dtype=np.int64)),
    "int8": (pa.int8(), np.array([1, 77, 3], dtype=np.int8)),
    "date": (pa.date32(), np.array([1, 2**31 - 1, 3], dtype=np.int32)),
    "timestamp": (pa.timestamp("us"), np.array([1, 2**63 - 1, 3], dtype=np.int64)),
    "timestamp in s": (pa.timestamp("s"), np.array([1, 2**63 - 1, 3], dtype=np.int64)),
    "decimal": (pa.decimal128(9, 2), np.array([1, 0, -1, -1, 3, 0], dtype=np.int64)),
    "bool": (pa.bool_(), np.array([0b011], dtype=np.uint8)),
}


@pytest.mark.parametrize(("type_", "data"), GARBAGE.values(), ids=GARBAGE)
def test_what_lies_under_a_null_does_not_matter(type_, data):
    """A null is a null, whatever bytes its slot holds, in a slice as well."""
    valid = pa.py_buffer(b"\x05")
    array = pa.Array.from_buffers(type_, 3, [valid, pa.py_buffer(data)], null_count=1)
    first, _, last = array.to_pylist()
    fresh = pa.array([first, None, last], type=type_)
    assert hash64([array]).tolist() == hash64([fresh]).tolist()
    assert hash64([array.slice(1)]).tolist() == hash64([fresh]).tolist()[1:]


@pytest.mark.parametrize("type_", [pa.string(), pa.binary()], ids=str)
def test_text_under_a_null_does_not_matter(type_):
    """Even a null slot that owns bytes of the data buffer hashes as null."""
    offsets = pa.py_buffer(np.array([0, 2, 13, 15], dtype=np.int32))
    text = pa.py_buffer(b"ab" + b"\xff garbage \xff" + b"cd")
    array = pa.Array.from_buffers(type_, 3, [pa.py_buffer(b"\x05"), offsets, text], null_count=1)
    fresh = pa.array(["ab", None, "cd"]).cast(type_)
    for start in range(4):
        seen, due = (hash64([a.slice(start)]).tolist() for a in (array, fresh))
        assert seen == due


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_no_rows_have_no_hashes(kind):
    """Empty arrays are fine: with no chunk, at the end of another, or not even with offsets."""
    type_ = KEY_TYPES[kind][0]
    empty = pa.array([], type_)
    bare = pa.Array.from_buffers(
        type_, 0, [None, *[pa.py_buffer(b"")] * (len(empty.buffers()) - 1)]
    )
    for array in (empty, pa.chunked_array([], type_), pa.array([None], type_).slice(1), bare):
        assert hash64([array]).tolist() == []


# -- spread --------------------------------------------------------------------------------------

SPREAD = {
    "strings": [pa.array([f"N{n:05d}" for n in range(20_000)])],
    "integers": [pa.array(range(20_000))],
    "multiples of 128": [pa.array(range(0, 128 * 20_000, 128))],
    "dates": [pa.array(np.arange(20_000, dtype=np.int32)).cast(pa.date32())],
    "full hours": [pa.array(np.arange(20_000) * 3_600_000_000).cast(pa.timestamp("us"))],
    "cents": [pa.array([D(n).scaleb(-2) for n in range(20_000)], type=pa.decimal128(12, 2))],
    "pairs": [
        pa.array([f"key-{n % 200}" for n in range(20_000)]),
        pa.array(np.arange(20_000) // 200),
    ],
}


@pytest.mark.parametrize("columns", SPREAD.values(), ids=SPREAD)
def test_keys_spread_evenly(columns):
    """128 groups get like numbers of keys: chi square below its mean of 127 + 4.5 deviations."""
    counts = np.bincount(key_groups(columns, 128), minlength=128)
    expected = counts.sum() / 128
    assert ((counts - expected) ** 2 / expected).sum() < 127 + 4.5 * (2 * 127) ** 0.5


def test_the_hash_is_the_same_in_every_process():
    """Python's own hash seed has no part in it."""
    program = (
        "import json, pyarrow as pa; from absflow.columnar.keys import hash64\n"
        "print(json.dumps(hash64([pa.array(['N14228', None, ''])]).tolist()))"
    )
    here = hash64([pa.array(["N14228", None, ""])]).tolist()
    for seed in ("0", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        assert json.loads(done.stdout) == here


@examples(200)
@given(key_tables(count=1))
def test_factorize_is_a_dict_of_first_rows(tables):
    """Keys are numbered as a dict would that is filled row by row; a null is a value."""
    (table,) = tables
    numbers = {}
    due = [numbers.setdefault(row, len(numbers)) for row in rows_of(table)]
    codes, unique = factorize(table)
    assert codes.tolist() == due
    assert rows_of(unique) == list(numbers)
    assert unique.schema == table.schema
    assert codes.dtype == np.int64


@pytest.mark.parametrize("many", [8, 0])
@examples(200)
@given(tables=key_tables(count=2))
def test_locate_is_a_dict_lookup(many, tables):
    """Each key is found at its first row, or not at all, whichever table is hashed."""
    keys, among = tables
    first = {}
    for number, row in enumerate(rows_of(among)):
        first.setdefault(row, number)
    with patch("absflow.columnar.keys._MANY", many):
        found = locate(keys, among)
    assert found.tolist() == [first.get(row, -1) for row in rows_of(keys)]
    assert found.dtype == np.int64


def test_many_columns_of_many_values_do_not_overflow():
    """The product of nine columns' sizes is 2 ** 117; no two keys become one by wrapping around.

    The strays differ from the table's keys in one column only, and there by half of its values, so
    that a number of 64 bits loses just this difference.
    """
    size = 2**13
    whole = np.arange(size)
    table = pa.table({f"k{n}": whole for n in range(9)})
    strays = table.set_column(0, "k0", pa.array(np.roll(whole, size // 2)))
    both = pa.concat_tables([table, strays])
    codes, unique = factorize(both)
    assert codes.tolist() == list(range(2 * size))
    assert unique.equals(both)
    assert locate(table, table).tolist() == whole.tolist()
    assert (locate(strays, table) == -1).all()


# -- types ---------------------------------------------------------------------------------------

REFUSED = [
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.list_(pa.int64()),
    pa.large_list(pa.int64()),
    pa.struct([("a", pa.int64())]),
    pa.map_(pa.string(), pa.int64()),
    pa.dictionary(pa.int32(), pa.string()),
    pa.decimal256(50, 2),
    pa.date64(),
    pa.duration("us"),
    pa.time64("us"),
    pa.uint64(),
    pa.null(),
]


@pytest.mark.parametrize("type_", REFUSED, ids=str)
def test_a_type_without_one_hash_per_value_is_refused(type_):
    """The error names the column and its type, and what to do."""
    with pytest.raises(GraphError, match=r"key column 'speed' has type .*; cast it") as caught:
        check_key_type("speed", type_)
    assert str(type_) in str(caught.value)


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_every_type_with_a_hash_is_allowed(kind):
    """What these tests hash may be a key."""
    check_key_type("k", KEY_TYPES[kind][0])


@pytest.mark.parametrize("module", ["keys", "pages", "process", "stage", "state"])
def test_the_examples_in_docstrings_hold(module):
    """Doctests run."""
    failed, _ = doctest.testmod(importlib.import_module(f"absflow.columnar.{module}"))
    assert failed == 0
