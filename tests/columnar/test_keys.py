"""Keys: the hash that spreads state, and where a key stands among others."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest
from arrow_cases import KEY_TYPES, arrays, examples, key_tables, rows_of
from hypothesis import given
from key_cases import UTC, D

from absflow.columnar.keys import hash64, key_groups

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
