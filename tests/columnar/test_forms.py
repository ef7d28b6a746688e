"""Functions of one row: what they get, what may come back, and how wrong answers are named."""

from datetime import date, datetime, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from arrow_cases import examples, rows_of
from hypothesis import given
from hypothesis import strategies as st
from process_cases import AB, EMPTY, MADE, STORED, error_of, live, rows

from absflow.columnar.forms import per_row
from absflow.columnar.process import Call, call
from absflow.columnar.state import MODIFIED, KeyedState


def running(state, row):
    """Sum of ``v`` by key, each row emits it; a negative value forgets the key and says nothing."""
    key, value = row
    if value < 0:
        return None, None
    total = (state[0] if state else 0) + value
    return (total, f"name of {key}"), [(key, total)]


@examples(80)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["a", "b", "c", "x"]), st.integers(-2, 9)), min_size=1),
        min_size=1,
        max_size=4,
    )
)
def test_rows_come_in_order_and_state_is_carried(batches):
    """However the rows are cut into calls, it is a loop over them with a dict."""
    state, emitted, due, due_emitted = EMPTY, [], {}, []
    for pairs in batches:
        processed = call(per_row(running), MADE, rows(*pairs), state)
        state = processed.state
        emitted += rows_of(processed.output)
        for row in pairs:
            new, out = running(due.get(row[0]), row)
            due_emitted += out or []
            due.pop(row[0], None)
            if new:
                due[row[0]] = new
    assert emitted == due_emitted
    assert live(state) == due


def test_an_equal_state_is_no_change():
    """Such a key keeps its epoch, so that no checkpoint writes it."""

    def only_b(state, row):
        return (state[0] + (row[0] == "b"), *state[1:]), []

    after = call(per_row(only_b), MADE, AB, STORED).state
    assert live(after) == {"a": (10, "x"), "b": (21, "y"), "c": (30, "z")}
    later = call(per_row(lambda state, row: (state, ())), MADE, AB, STORED)
    assert later.state is STORED
    assert rows_of(later.output) == []


def test_a_list_that_the_function_changed_in_place_is_a_change():
    """Though what it returns is the very tuple that it was given."""
    keys, columns = pa.schema([("k", pa.string())]), pa.schema([("seen", pa.list_(pa.int64()))])

    def collect(state, row):
        state = state or ([],)
        state[0].append(row[1])
        return state, None

    state = KeyedState.empty(keys, columns)
    for _ in range(2):
        state = call(per_row(collect), MADE, AB, state).state
    kept = {row["k"]: row["seen"] for row in state.table.to_pylist()}
    assert kept == {"a": [1, 3, 1, 3], "b": [2, 2]}


VALUES = {
    "i": (pa.int32(), 7),
    "n": (pa.int64(), 2**53 + 1),
    "f": (pa.float64(), 0.5),
    "t": (pa.bool_(), True),
    "s": (pa.string(), "ä"),
    "b": (pa.binary(), b"\x00"),
    "d": (pa.date32(), date(2026, 11, 22)),
    "at": (pa.timestamp("us", tz="UTC"), datetime(2026, 11, 22, 1, 2, 3, 4, timezone.utc)),
    "dec": (pa.decimal128(10, 2), Decimal("1.25")),
    "list": (pa.list_(pa.int64()), [1, None]),
    "struct": (pa.struct([("x", pa.string())]), {"x": None}),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_plain_python(name):
    """Of every type, as row, state and output, beside a null and not."""
    type_, value = VALUES[name]
    schema = pa.schema([("k", pa.int64()), ("v", type_)])
    state = KeyedState.empty(pa.schema([schema.field("k")]), pa.schema([schema.field("v")]))
    made = Call("s", "i", 0, 1, 1, 0, 0, ("k",), schema)
    seen = []

    def keep(state, row):
        seen.append((state, row))
        return row[1:], [row]

    for values in ([value, value], [value, None]):
        given_rows = pa.table([[1, 2], pa.array(values, type_)], schema=schema)
        processed = call(per_row(keep), made, given_rows, state)
        assert processed.output.equals(given_rows)
        state = processed.state
    assert seen == [
        (None, (1, value)),
        (None, (2, value)),
        ((value,), (1, value)),
        ((value,), (2, None)),
    ]
    assert type(seen[0][1][1]) is type(value)


def test_a_stage_may_have_keys_only():
    """Without state columns the state of a key is the empty tuple: it was seen."""
    state = KeyedState.empty(pa.schema([("k", pa.string())]), pa.schema([]))

    def first(state, row):
        return (), [] if state == () else [row]

    processed = call(per_row(first), MADE, AB, state)
    assert rows_of(processed.output) == [("a", 1), ("b", 2)]
    processed = call(per_row(first), MADE, AB, processed.state)
    assert processed.output.num_rows == 0
    assert processed.state.table[MODIFIED].to_pylist() == [9, 9]


def test_a_function_that_needs_it_is_given_the_context():
    """Behind state and row; its random numbers are those of the call, row after row."""
    seen = []

    def stamped(state, row, context):
        seen.append((row[0], context.random.random()))
        return (context.time_ms, context.stage), [(row[0], context.epoch)]

    for _ in range(2):
        processed = call(per_row(stamped), MADE, AB, EMPTY)
        assert rows_of(processed.output) == [("a", 4), ("b", 4), ("a", 4)]
        assert live(processed.state) == dict.fromkeys("ab", (MADE.time_ms, "legs"))
    assert seen[:3] == seen[3:]
    assert len({number for _, number in seen}) == 3


def with_default(state, row, limit=3):
    return (limit, "x"), None


def of_any(*arguments):
    return (len(arguments), "x"), None


@pytest.mark.parametrize(("function", "n"), [(with_default, 3), (of_any, 2)])
def test_a_function_that_can_do_without_the_context_is_not_given_it(function, n):
    """What it has as a default stays its own."""
    assert live(call(per_row(function), MADE, AB, EMPTY).state)["a"] == (n, "x")


WRONG = {
    "returned None, but (state, outputs) is expected": None,
    "state is (1,), but a tuple of 2 (n, name) is expected": ((1,), None),
    "state is [1, 'x'], but a tuple of 2 (n, name) is expected": ([1, "x"], None),
    "output is ('a',), but a tuple of 2 (k, total) is expected": (None, [("a",)]),
    "output is 'a', but a tuple of 2 (k, total) is expected": (None, ["a"]),
    "'ab' as its outputs, but a list of tuples is expected": (None, "ab"),
    "2 as its outputs, but a list of tuples is expected": (None, 2),
    "('a', 2) as its outputs, but a list of tuples is expected, one for each row: [(k, total)]": (
        None,
        ("a", 2),
    ),
    "Could not convert 'one'": (("one", "x"), None),
    "state has 1.5 in column 'n', but an integer is declared (int64)": ((1.5, "x"), None),
    "state has nan in column 'n'": ((float("nan"), "x"), None),
    "state has Decimal('0.5') in column 'n'": ((Decimal("0.5"), "x"), None),
    "output has 2.5 in column 'total'": (None, [("a", 1), ("b", None), ("b", 2.5)]),
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_answers_are_told(said):
    """With what came and what was expected; and the key whose row it was."""

    def wrong_for_b(state, row):
        return WRONG[said] if row[0] == "b" else (None, None)

    message = error_of(per_row(wrong_for_b))
    assert said in message
    assert "the first bad row has key {'k': 'b'}" in message


def test_a_whole_number_may_be_of_any_type():
    """Of numpy, too; Arrow takes it as it is."""

    def whole(_state, row):
        return (np.float64(3.0), "x"), [(row[0], n) for n in (2.0, Decimal(2), np.int8(2))]

    processed = call(per_row(whole), MADE, AB, EMPTY)
    assert [total for _, total in rows_of(processed.output)] == [2] * 3 * AB.num_rows


def test_the_trace_shows_the_users_function_only():
    """Not the loop around it."""

    def fails(_state, _row):
        raise KeyError("mine")

    message = error_of(per_row(fails))
    assert 'raise KeyError("mine")' in message
    assert "forms.py" not in message.replace("test_forms.py", "")
