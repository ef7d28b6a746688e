"""What the tests of the columnar layer share: types with their values, and tables of them."""

import datetime as dt
from decimal import Context, Decimal

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# No limits of time: the tests share two cores with others.
SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]


def examples(count):
    return settings(max_examples=count, suppress_health_check=SLOW_IS_FINE)


def _signed(bits):
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _decimals(precision, scale):
    whole = 10**precision - 1
    return st.integers(-whole, whole).map(lambda n: Decimal(n).scaleb(-scale, _WIDE))


_WIDE = Context(prec=60)
_MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))

# Every type a key column can have, and values of it.
KEY_TYPES = {
    "int8": (pa.int8(), _signed(8)),
    "int16": (pa.int16(), _signed(16)),
    "int32": (pa.int32(), _signed(32)),
    "int64": (pa.int64(), _signed(64)),
    "bool": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us"), _MOMENTS),
    "timestamp_tz": (
        pa.timestamp("us", tz="UTC"),
        _MOMENTS.map(lambda moment: moment.replace(tzinfo=dt.timezone.utc)),
    ),
    "decimal": (pa.decimal128(12, 2), _decimals(12, 2)),
    "wide_decimal": (pa.decimal128(38, 9), _decimals(38, 9)),
    "string": (pa.string(), st.text(max_size=20)),
    "large_string": (pa.large_string(), st.text(max_size=20)),
    "binary": (pa.binary(), st.binary(max_size=20)),
    "large_binary": (pa.large_binary(), st.binary(max_size=20)),
}

# Types that only rows and state can have.
_POINT = pa.struct([pa.field("x", pa.int32()), pa.field("label", pa.string())])
VALUE_TYPES = KEY_TYPES | {
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "list": (pa.list_(pa.int64()), st.lists(st.none() | _signed(64), max_size=3)),
    "struct": (
        _POINT,
        st.fixed_dictionaries({"x": st.none() | _signed(32), "label": st.none() | st.text()}),
    ),
    "list_of_struct": (
        pa.list_(_POINT),
        st.lists(
            st.none()
            | st.fixed_dictionaries({"x": _signed(32), "label": st.none() | st.text(max_size=9)}),
            max_size=3,
        ),
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        st.dictionaries(st.text(max_size=3), st.none() | _signed(64), max_size=3).map(
            lambda entries: list(entries.items())
        ),
    ),
}


@st.composite
def arrays(draw, type_, values, max_size=12):
    """An array of ``type_``: fresh, a slice of a longer one, or a chunked one."""
    given = draw(st.lists(st.none() | values, max_size=max_size))
    return given, draw(laid_out(given, type_))


@st.composite
def laid_out(draw, given, type_):
    """``given`` as an array or chunked array, with whatever offsets."""
    before = draw(st.integers(0, 9))
    around = [next((v for v in given if v is not None), None)] * before
    whole = pa.array([*around, *given, *around], type=type_)
    array = whole.slice(before, len(given))
    cut = draw(st.none() | st.integers(0, len(given)))
    if cut is None:
        return array
    return pa.chunked_array([array.slice(0, cut), array.slice(cut)], type=type_)


@st.composite
def key_tables(draw, count=2, max_columns=3, max_rows=14):
    """``count`` tables of the same key columns, with many equal keys within and among them."""
    kinds = draw(st.lists(st.sampled_from(sorted(KEY_TYPES)), min_size=1, max_size=max_columns))
    pools = [
        draw(st.lists(st.none() | KEY_TYPES[kind][1], min_size=1, max_size=3)) for kind in kinds
    ]
    schema = pa.schema([(f"k{n}", KEY_TYPES[kind][0]) for n, kind in enumerate(kinds)])
    tables = []
    for _ in range(count):
        rows = draw(st.lists(st.tuples(*map(st.sampled_from, pools)), max_size=max_rows))
        columns = [
            draw(laid_out([row[n] for row in rows], field.type)) for n, field in enumerate(schema)
        ]
        tables.append(pa.table(columns, schema=schema))
    return tables


def rows_of(table):
    """The rows as tuples; equal for equal rows whatever the table's layout."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
