"""Rows as Avro: every type comes back as it went, and what Avro cannot hold is refused."""

import datetime as dt
import io
import json
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest

from absflow.destinations import avro
from absflow.destinations.avro import Registry, avro_schema
from absflow.errors import GraphError, StorageError

REGISTRY = Registry("http://127.0.0.1:1", {}, "t-value")
UTC = dt.timezone.utc
ALL = pa.schema(
    [
        ("b", pa.bool_()),
        ("i8", pa.int8()),
        ("i32", pa.int32()),
        ("i64", pa.int64()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("s", pa.string()),
        ("raw", pa.binary()),
        ("d", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("money", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("box", pa.struct([("x", pa.int32()), ("when", pa.timestamp("us", tz="UTC"))])),
        ("boxes", pa.list_(pa.struct([("y", pa.float64())]))),
    ]
)
AT = dt.datetime(2026, 2, 3, 4, 5, 6, 789_012)
ROW = {
    "b": True,
    "i8": -128,
    "i32": 2**31 - 1,
    "i64": -(2**63),
    "f32": 0.5,
    "f64": float("inf"),
    "s": "naïve\x00",
    "raw": b"\x00\xff",
    "d": dt.date(1969, 12, 31),
    "at": AT.replace(tzinfo=UTC),
    "local": AT,
    "money": Decimal("-12345678.90"),
    "tags": ["a", None, ""],
    "counts": {"one": 1, "none": None},
    "box": {"x": None, "when": AT.replace(tzinfo=UTC)},
    "boxes": [{"y": 1.5}, None],
}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """The registry's answer; its own test asks a real one."""
    monkeypatch.setattr(avro, "_schema_id", lambda registry, text: 513)


def decoded(rows):
    """As a reader with the schema has them."""
    parsed = fastavro.parse_schema(json.loads(json.dumps(avro_schema("t-value", rows.schema))))
    found = []
    for value in REGISTRY.values(rows):
        assert value[:5] == b"\0\0\0\2\1"
        data = io.BytesIO(value[5:])
        found.append(fastavro.schemaless_reader(data, parsed))
        assert not data.read()
    return found


def test_every_type_comes_back():
    nothing = dict.fromkeys(ALL.names)
    rows = pa.RecordBatch.from_pylist([ROW, nothing], schema=ALL)
    assert decoded(rows) == [ROW, nothing]


def test_times_that_python_has_not():
    """Spark's timestamps reach beyond the year 9999."""
    far = pa.array([400_000_000_000_000_000], pa.timestamp("us", tz="UTC"))
    (value,) = REGISTRY.values(pa.record_batch({"at": far}))
    parsed = fastavro.parse_schema(
        {"type": "record", "name": "r", "fields": [{"name": "at", "type": ["null", "long"]}]}
    )
    assert fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed) == {"at": 4 * 10**17}


def test_who_has_the_schema_of_before_reads_rows_of_now():
    """A column more, and one less."""
    now = pa.record_batch({"k": ["a"], "new": [1]})
    then = pa.schema([("k", pa.string()), ("old", pa.float64())])
    writer, reader = (
        fastavro.parse_schema(avro_schema("t-value", each)) for each in (now.schema, then)
    )
    (value,) = REGISTRY.values(now)
    found = fastavro.schemaless_reader(io.BytesIO(value[5:]), writer, reader)
    assert found == {"k": "a", "old": None}


def test_a_subject_with_any_name_makes_a_name():
    assert avro_schema("my.topic-1-value", ALL)["name"] == "my_topic_1"
    assert avro_schema("1-value", ALL)["name"] == "_1"


@pytest.mark.parametrize(
    ("name", "of", "words"),
    [
        ("größe", pa.int64(), "column 'größe': Avro's names have letters without accents"),
        ("a.b", pa.int64(), r"column 'a\.b'"),
        ("box", pa.struct([("x y", pa.int64())]), r"column 'box\.x y'"),
        ("m", pa.map_(pa.int64(), pa.int64()), "column 'm': Avro has no type for map<int64"),
        ("n", pa.null(), "column 'n': Avro has no type for null"),
    ],
)
def test_what_avro_has_no_name_or_type_for(name, of, words):
    with pytest.raises(GraphError, match=words):
        avro_schema("t-value", pa.schema([(name, of)]))


def test_a_registry_that_does_not_answer(monkeypatch):
    monkeypatch.undo()
    registry = Registry("http://user:secret@127.0.0.1:1", {"max.retries": 0}, "t-value")
    with pytest.raises(StorageError, match=r"registry http://127\.0\.0\.1:1 does not") as raised:
        registry.register(pa.schema([("k", pa.string())]))
    assert "secret" not in str(raised.value)
    with pytest.raises(GraphError, match="its client does not take the options"):
        Registry("http://127.0.0.1:1", {"no.such.option": "1"}, "t-value").register(ALL)
