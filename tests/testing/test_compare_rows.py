"""Rows compared without regard to their order."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from absflow.testing import assert_same_rows, difference

ROWS = [{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "a", "n": 1}]
MOMENT = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "other",
    [
        ROWS[::-1],
        [("a", 1), ("a", 1), ("b", 2)],
        pa.table({"n": [2, 1, 1], "k": ["b", "a", "a"]}),
        pd.DataFrame({"k": ["b", "a", "a"], "n": np.array([2, 1, 1], dtype=np.int8)}),
    ],
)
def test_order_and_form_do_not_count(other):
    assert_same_rows(ROWS, other)
    assert_same_rows(pa.Table.from_pylist(ROWS), other)


def test_how_often_a_row_is_there_counts():
    said = difference(ROWS, ROWS[:2])
    assert said.splitlines()[0] == (
        "found 3 rows, expected 2; 0 of these are missing, 1 were not expected"
    )
    with pytest.raises(AssertionError, match=r"found    \{'k': 'a', 'n': 1\}"):
        assert_same_rows(ROWS, ROWS[:2])


def test_rows_of_a_key_stand_together():
    found = [("a", 3), ("b", 1), ("c", 1)]
    said = difference(found, [("a", 2), ("b", 1), ("c", 2)], key="column 0")
    assert [line.split()[0] for line in said.splitlines()[1:]] == [
        "expected", "found", "expected", "found"
    ]  # fmt: skip


def test_order_counts_if_it_is_to():
    assert difference(ROWS, ROWS[::-1], ordered=True) == ""
    said = difference(ROWS, [ROWS[1], ROWS[0], ROWS[0]], ordered=True)
    assert "in another order; the first that differs is row 0" in said


def test_other_columns_are_named():
    assert "found columns ['k', 'n'], expected ['k', 'm']" in difference(ROWS, [{"k": 1, "m": 2}])
    with pytest.raises(ValueError, match="has 3 values, but the columns are"):
        difference(ROWS, [(1, 2, 3)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (math.nan, float("nan")),
        (None, pd.NaT),
        (None, pd.NA),
        (np.int64(3), 3),
        (np.array([1, 2]), [1, 2]),
        ({"x": [1]}, {"x": (1,)}),
        (MOMENT, pd.Timestamp("2026-01-01", tz="Europe/Berlin") + pd.Timedelta("1h")),
        (Decimal("1.50"), Decimal("1.5")),
    ],
)
def test_values_that_are_equal_to_people_are_equal(one, other):
    assert_same_rows([{"x": one}], [{"x": other}])


def test_long_differences_are_cut():
    assert "and 40 more" in difference([(n,) for n in range(50)], [])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8), st.randoms())
def test_any_order_of_any_rows_is_the_same(rows, dice):
    shuffled = list(rows)
    dice.shuffle(shuffled)
    assert difference(rows, shuffled) == ""
    assert difference(rows, [*shuffled, (9, 9)]) != ""
