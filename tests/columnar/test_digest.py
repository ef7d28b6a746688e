"""Digests of sets: the same however the rows are laid out, another one for other rows."""

import io
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arrow_cases import VALUE_TYPES, arrays, examples, laid_out
from hypothesis import given
from hypothesis import strategies as st

from absflow.columnar.digest import is_delete, row_hashes, signed, total, value_hashes


def hashes(*columns, op="upsert"):
    return row_hashes(pa.array([op] * len(columns[0])), map(value_hashes, columns))


@pytest.mark.parametrize("kind", sorted(VALUE_TYPES))
def test_equal_values_have_one_hash_however_they_lie(kind):
    """Slices, chunks, garbage below nulls and a way through Parquet change nothing."""
    type_, values = VALUE_TYPES[kind]

    @examples(60)
    @given(st.data())
    def check(data):
        rows, first = data.draw(arrays(type_, values))
        second = data.draw(laid_out(rows, type_))
        assert hashes(first).tolist() == hashes(second).tolist()
        file = io.BytesIO()
        pq.write_table(pa.table({"v": second}), file)
        assert hashes(pq.read_table(file)["v"]).tolist() == hashes(first).tolist()
        equal = {}
        for row, number in zip(map(repr, first.to_pylist()), hashes(first).tolist(), strict=True):
            assert equal.setdefault(row, number) == number
        assert len(set(equal.values())) == len(equal) or kind in {"float", "float32", "map"}

    check()


def test_a_sum_knows_no_order_and_adds_up():
    """Of any order and any parts of the rows; a row twice is not a row once."""
    column = pa.array([None, "a", "b", "", "c" * 99, "a"])
    all_ = total(hashes(column))
    mixed = column.take(pa.array([3, 5, 0, 1, 4, 2]))
    assert total(hashes(mixed)) == all_
    parts = [total(hashes(column[:3])), total(hashes(column[3:]))]
    assert signed(sum(parts)) == all_
    assert total(hashes(column[:5])) != all_
    assert total(hashes(column[:0])) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([[]], pa.list_(pa.int64())), pa.array([None], pa.list_(pa.int64()))),
        (pa.array([[1, 2]]), pa.array([[2, 1]])),
        (pa.array([[1], [2]]), pa.array([[1, 2], []])),
        (pa.array([[None]], pa.list_(pa.int8())), pa.array([[]], pa.list_(pa.int8()))),
        (pa.array([{"x": None}]), pa.array([None], pa.struct([("x", pa.null())]))),
        (pa.array([0.0]), pa.array([-0.0])),
        (pa.array([0.0]), pa.array([None], pa.float64())),
        (
            pa.array([[("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.int64())),
            pa.array([[("a", 2), ("b", 1)]], pa.map_(pa.string(), pa.int64())),
        ),
    ],
)
def test_what_differs_has_another_digest(one, other):
    """Empty and null, the order in a list, where a list ends, the sign of zero."""
    if one.type != other.type:  # a column of nulls alone has no type of its own
        one = one.cast(pa.struct([("x", pa.int64())]))
        other = other.cast(one.type)
    assert total(hashes(one)) != total(hashes(other))


def test_columns_and_deletions_are_told_apart():
    """A value in the place of another column's, and a tombstone in the place of a row."""
    a, b = pa.array([1]), pa.array([2])
    assert total(hashes(a, b)) != total(hashes(b, a))
    assert total(hashes(a, b)) != total(hashes(a, b, op="delete"))


def test_deletions_are_found_however_they_are_said():
    """As words, as a dictionary in any order, in several chunks, and if there are none."""
    words = pa.array(["upsert", "delete", "upsert", "delete", None])
    for op in (words, words.dictionary_encode(), words[1:].dictionary_encode()):
        due = [word == "delete" for word in op.to_pylist()]
        assert is_delete(op).tolist() == due
        assert is_delete(op[1:]).tolist() == due[1:]
        assert is_delete(pa.chunked_array([op[:1], op[1:]])).tolist() == due
        assert is_delete(op[:0]).tolist() == []


def test_a_row_that_says_nothing_is_neither():
    """It was damaged, and its digest is another one; as a dictionary, too."""
    ops, value = ["upsert", "delete", None], value_hashes(pa.array([7, 7, 7]))
    for op in (
        pa.array(ops),
        pa.array(ops).dictionary_encode(),
        pa.chunked_array([ops[:2], ops[2:]], pa.string()),
    ):
        found = row_hashes(op, [value]).tolist()
        assert len({*found}) == 3
        assert found == row_hashes(pa.array(ops), [value]).tolist()


def test_one_nan_and_one_order_of_maps():
    """NaNs of any bits are equal, as to Spark; so are maps with the same entries."""
    quiet = np.array([0x7FF8000000000000, 0x7FF0000000000001, 0xFFF8000000000123], np.uint64)
    assert all(math.isnan(x) for x in quiet.view(np.float64))
    assert len({*hashes(pa.array(quiet.view(np.float64))).tolist()}) == 1
    entries = [("a", 1), ("b", None)]
    both = pa.array([entries, entries[::-1]], pa.map_(pa.string(), pa.int64()))
    assert len({*hashes(both).tolist()}) == 1


def test_vectors():
    """The hash is part of what is stored: these numbers must never change."""
    rows = {
        "long": pa.array([0, 1, None]),
        "double": pa.array([0.5, float("nan"), None]),
        "string": pa.array(["", "checkpoint", None]),
        "list": pa.array([[], [1, None], None], pa.list_(pa.int32())),
        "struct": pa.array([{"x": 1, "y": "a"}, {"x": None, "y": None}, None]),
        "map": pa.array([[], [("a", 1), ("b", 2)], None], pa.map_(pa.string(), pa.int64())),
    }
    seen = {name: hashes(column).tolist() for name, column in rows.items()}
    null = 6579982475863531725
    assert seen == {
        "long": [15665677159931211461, 12510435884785551440, null],
        "double": [3770990059357343232, 13858255670701678499, null],
        "string": [15665677159931211461, 5246121344612721608, null],
        "list": [11673272170869235943, 16169560739181997566, null],
        "struct": [8131025384371660883, 7576601771483720983, null],
        "map": [11673272170869235943, 17438948382740373044, null],
    }
