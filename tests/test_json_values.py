"""Rows as JSON objects, for sinks that have no schema."""

import json
from decimal import Decimal

import pyarrow as pa
import pytest

from absflow.destinations.kafka_records import json_values


def values(type_, *given):
    rows = pa.record_batch([pa.array(given, type_)], names=["v"])
    return [json.loads(value)["v"] for value in json_values(rows)]


@pytest.mark.parametrize(
    ("type_", "given", "expected"),
    [
        (pa.int64(), 2**62, 2**62),
        (pa.string(), 'a "b"\n\u202e', 'a "b"\n\u202e'),
        (pa.decimal128(10, 2), Decimal("1.50"), "1.50"),
        (pa.binary(), b"\xff", "/w=="),
        (pa.list_(pa.int32()), [1, None], [1, None]),
        (pa.struct([("a", pa.int32())]), {"a": 1}, {"a": 1}),
        (pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", None)], {"a": 1, "b": None}),
        (pa.map_(pa.int32(), pa.string()), [(7, "x")], {"7": "x"}),
        (pa.list_(pa.map_(pa.string(), pa.int64())), [[("a", 1)], []], [{"a": 1}, {}]),
        (
            pa.struct([("m", pa.map_(pa.string(), pa.int64()))]),
            {"m": [("a", 1)]},
            {"m": {"a": 1}},
        ),
    ],
    ids=str,
)
def test_each_type_as_readers_expect_it(type_, given, expected):
    """A map is an object, as Spark's ``to_json`` writes it; null is null in each."""
    assert values(type_, given, None) == [expected, None]
