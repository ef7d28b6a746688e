"""Keys: the hash that spreads state, and where a key stands among others."""

import datetime as dt
import decimal
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
from arrow_cases import KEY_TYPES, arrays, examples, key_tables, laid_out, rows_of
from hypothesis import given
from hypothesis import strategies as st

from absflow.columnar.keys import check_key_type, factorize, hash64, key_groups, locate
from absflow.errors import GraphError

# -- the documented hash, once more and slowly ---------------------------------------------------

MASK = 2**64 - 1
SEED = 0x9E3779B97F4A7C15
NULL = 0xD1B54A32D192ED03


def mix(word):
    """One step of SplitMix64, as its authors print it."""
    word = (word + SEED) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def fold(words, start):
    for word in words:
        start = mix(start ^ word)
    return start


def words_of(value, type_):
    if isinstance(value, str | bytes):
        raw = value.encode() if isinstance(value, str) else value
        parts = [raw[at : at + 8] for at in range(0, len(raw), 8)]
        return [len(raw), *(int.from_bytes(part, "little") for part in parts)]
    if isinstance(value, decimal.Decimal):
        unscaled = int(value.scaleb(type_.scale, decimal.Context(prec=60)))
        return [unscaled & MASK, (unscaled >> 64) & MASK]
    if isinstance(value, dt.datetime):
        value = (value - dt.datetime(1970, 1, 1, tzinfo=value.tzinfo)) // dt.timedelta.resolution
    elif isinstance(value, dt.date):
        value = (value - dt.date(1970, 1, 1)).days
    return [int(value) & MASK]


def slow_hash64(rows, types):
    """The hash of each row by the docstring of the module, one value at a time."""
    return [
        fold(
            (
                NULL if value is None else fold(words_of(value, type_), 0)
                for value, type_ in zip(row, types, strict=True)
            ),
            SEED,
        )
        for row in rows
    ]


# -- vectors -------------------------------------------------------------------------------------

UTC = dt.timezone.utc
D = decimal.Decimal
VECTORS = {
    "string": (
        pa.string(),
        [
            ("", 0x7D91D4C3FE86F0DE),
            ("a", 0x0D1BFE8AA2587798),
            ("N14228", 0x7D4B4356B37343EA),
            ("8 bytes.", 0xFC2BE465E56E5A0F),
            ("9 bytes..", 0x096D98CB7A93DFE6),
            ("Zürich 雪", 0x307FB585C9BB3086),
            (None, 0x1EA59F2878E51FB5),
        ],
    ),
    "binary": (
        pa.binary(),
        [
            (b"", 0x7D91D4C3FE86F0DE),
            (b"\x00", 0xE5DD105A383644F7),
            (b"\x00\x00", 0x8D9168E38B7798C6),
            (b"\xff\xfe\x00", 0xF331412602A8DED2),
            (bytes(range(17)), 0xE8A555AFC8EC1181),
        ],
    ),
    "int8": (
        pa.int8(),
        [
            (0, 0x7D91D4C3FE86F0DE),
            (1, 0x29E49B199086D8D3),
            (-1, 0xC81B5873BBC0192C),
            (127, 0x0A480824A71FD492),
            (-128, 0x93AF8170C9E67272),
        ],
    ),
    "int16": (
        pa.int16(),
        [
            (32767, 0xF2895A83E94DC71A),
            (-32768, 0xFF74580BA708B27E),
        ],
    ),
    "int32": (
        pa.int32(),
        [
            (2**31 - 1, 0x3F85617991301306),
            (-(2**31), 0xCEB059AB1F07250C),
        ],
    ),
    "int64": (
        pa.int64(),
        [
            (0, 0x7D91D4C3FE86F0DE),
            (2**63 - 1, 0x57EF9DAC46D9BDBE),
            (-(2**63), 0x5291381B480C075D),
            (None, 0x1EA59F2878E51FB5),
        ],
    ),
    "boolean": (
        pa.bool_(),
        [
            (False, 0x7D91D4C3FE86F0DE),
            (True, 0x29E49B199086D8D3),
            (None, 0x1EA59F2878E51FB5),
        ],
    ),
    "date": (
        pa.date32(),
        [
            (dt.date(1970, 1, 1), 0x7D91D4C3FE86F0DE),
            (dt.date(2013, 1, 1), 0x5A0BE08BC040A84F),
            (dt.date(1, 1, 1), 0xA7369C47151B2A5C),
        ],
    ),
    "timestamp": (
        pa.timestamp("us"),
        [
            (dt.datetime(2013, 1, 1, 5, 15, 0, 1), 0xC9E9DE7640C3037B),
            (dt.datetime(1, 1, 1), 0x69D57CB8F7E14549),
        ],
    ),
    "timestamp with time zone": (
        pa.timestamp("us", tz="UTC"),
        [
            (dt.datetime(2013, 1, 1, 5, 15, 0, 1, UTC), 0xC9E9DE7640C3037B),
        ],
    ),
    "decimal": (
        pa.decimal128(12, 2),
        [
            (D("0.00"), 0x4A1BE2A9D411162E),
            (D("1.10"), 0x7DA619F98F80C607),
            (D("-1.10"), 0x9835E5AA78CB7A11),
            (D("9999999999.99"), 0x82497AD470D74637),
            (None, 0x1EA59F2878E51FB5),
        ],
    ),
    "decimal of two words": (
        pa.decimal128(38, 0),
        [
            (D(10**38 - 1), 0x4B1873B5D17AD5A5),
            (D(-(10**38) + 1), 0x377B0FF5F238F121),
        ],
    ),
}


@pytest.mark.parametrize(("type_", "vectors"), VECTORS.values(), ids=VECTORS)
def test_a_hash_never_changes(type_, vectors):
    """The hash of a value is what it was when the first job wrote its state."""
    values, due = zip(*vectors, strict=True)
    assert hash64([pa.array(values, type=type_)]).tolist() == list(due)
    assert slow_hash64([(value,) for value in values], [type_]) == list(due)


def test_the_hash_of_several_columns_never_changes():
    """Columns are folded in key order, and nulls differ by where they stand."""
    columns = [
        pa.array(["N14228", None, "N14228", None]),
        pa.array([1, 1, None, None], type=pa.int32()),
        pa.array([dt.date(2013, 1, 1)] * 4),
    ]
    due = [0xDBF55C65589147A3, 0x37E3BD9E09649000, 0x7338E7426AC88C7E, 0x33C113EF1F48025B]
    assert hash64(columns).tolist() == due
    assert hash64(columns[1::-1]).tolist() != hash64(columns[:2]).tolist()


def test_key_groups_never_change():
    """Which key group a key belongs to is pinned, too."""
    keys = pa.array(["N14228", "N24211", "N619AA", "", None])
    assert key_groups([keys], 128).tolist() == [106, 24, 30, 94, 53]
    assert key_groups([keys], 1).tolist() == [0] * 5
    assert key_groups([keys], 128).dtype == np.int32


def test_the_mixer_is_splitmix64():
    """The first outputs of SplitMix64 seeded with 0, as its authors publish them."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [mix(n * SEED & MASK) for n in range(3)] == published


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_the_docstring_defines_the_hash(kind):
    """An implementation written from the docstring alone agrees on any values of every type."""
    type_, values = KEY_TYPES[kind]

    @examples(40)
    @given(arrays(type_, values))
    def check(drawn):
        plain, array = drawn
        assert hash64([array]).tolist() == slow_hash64([(v,) for v in plain], [type_])

    check()


@examples(60)
@given(key_tables(count=1))
def test_the_docstring_defines_the_hash_of_rows(tables):
    """The same holds for several columns of mixed types."""
    (table,) = tables
    due = slow_hash64(rows_of(table), table.schema.types)
    assert hash64(table.columns).tolist() == due
    assert key_groups(table.columns, 7).tolist() == [word % 7 for word in due]


# -- layout --------------------------------------------------------------------------------------


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


# -- factorize and locate ------------------------------------------------------------------------


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
