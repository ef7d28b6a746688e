"""Functions of applyInPandasWithState: what they meet, what they may return; errors. No JVM."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from absflow.columnar.process import Call, call
from absflow.columnar.state import DELETED, KeyedState
from absflow.errors import ProcessError, ResultError
from absflow.spark.worker.per_key import per_key

INPUT = pa.schema([("k", pa.string()), ("v", pa.int64()), ("flag", pa.bool_())])
KEYS = pa.schema([("k", pa.string())])
STATE = pa.schema([("n", pa.int64()), ("name", pa.string())])
OUTPUT = pa.schema([("k", pa.string()), ("total", pa.int64())])
EMPTY = KeyedState.empty(KEYS, STATE)
MADE = Call("legs", "flights", 17, 4, 9, 1_700_000_000_000, 0, ("k",), OUTPUT)
ROWS = pa.table([["a", "b", "a", None], [1, 2, 3, None], [True, None, False, True]], schema=INPUT)


def run(function, rows=ROWS, state=EMPTY, made=MADE, time_zone="UTC"):
    return call(per_key(function, time_zone), made, rows, state)


def live(state):
    rows = state.table.to_pylist()
    return {row["k"]: (row["n"], row["name"]) for row in rows if not row[DELETED]}


def total(key, frames, state):
    """Count and sum, as Spark's guide does it."""
    frame = pd.concat(frames)
    n = len(frame) + (state.get[0] if state.exists else 0)
    state.update((n, f"name of {key[0]}"))
    yield pd.DataFrame({"k": [key[0]], "total": [frame["v"].sum()]})


def test_a_function_that_needs_it_is_given_the_context():
    """Behind the state; all keys of a call have the same."""

    def stamped(key, frames, state, context):
        state.update((context.time_ms, context.input))
        yield pd.DataFrame({"k": [key[0]], "total": [context.key_group]})

    processed = run(stamped)
    assert [row["total"] for row in processed.output.to_pylist()] == [17] * 3
    assert set(live(processed.state).values()) == {(MADE.time_ms, "flights")}


def test_state_and_output_of_each_key():
    """A frame with the key's rows, its state or none; what it yields, in the order of the keys."""
    processed = run(total)
    assert processed.output.to_pylist() == [
        {"k": "a", "total": 4},
        {"k": "b", "total": 2},
        {"k": None, "total": 0},
    ]
    assert live(processed.state) == {
        "a": (2, "name of a"),
        "b": (1, "name of b"),
        None: (1, "name of None"),
    }
    again = run(total, ROWS.slice(0, 2), processed.state).state
    assert live(again) == {
        "a": (3, "name of a"),
        "b": (2, "name of b"),
        None: (1, "name of None"),
    }


def test_a_frame_is_the_keys_own():
    """All columns, index from 0, and types by the nulls of this key alone; it may be written to."""
    seen = {}

    def look(key, frames, _state):
        (frame,) = frames
        seen[key] = (list(frame.index), frame.dtypes.map(str).tolist(), frame.values.tolist())
        frame["v"] = 0
        frame.loc[0, "k"] = "written"
        return ()

    run(look)
    assert seen[("a",)] == ([0, 1], ["object", "int64", "bool"], [["a", 1, True], ["a", 3, False]])
    assert seen[("b",)] == ([0], ["object", "int64", "object"], [["b", 2, None]])
    index, types, values = seen[(None,)]
    assert (index, types) == ([0], ["object", "float64", "bool"])
    assert np.isnan(values[0][1])


def test_update_and_remove_as_in_spark():
    """The last call of a key counts; without one its state stays as it is."""
    stored = run(total).state

    def end(key, _frames, state):
        if key == ("a",):
            state.update((np.int64(7), "gone"))
            state.remove()
            assert state.getOption is None
        if key == ("b",):
            state.remove()
            state.update((8, None))
            assert state.getOption == (8, None)
        return iter(())

    processed = run(end, ROWS.slice(0, 2), stored)
    assert processed.output is None
    assert live(processed.state) == {"b": (8, None), None: (1, "name of None")}
    untouched = run(lambda *_: [pd.DataFrame()], ROWS, stored)
    assert untouched.state is stored


def test_the_time_is_that_of_the_batch():
    """No key has timed out, as without timeouts in Spark."""
    times = []

    def look(_key, _frames, state):
        times.append(state.getCurrentProcessingTimeMs())
        assert (state.hasTimedOut, state.oldTimeoutTimestamp) == (False, -1)
        return []

    run(look)
    assert times == [1_700_000_000_000] * 3


NOT_DECLARED = {
    "setTimeoutDuration": lambda state: state.setTimeoutDuration(1000),
    "setTimeoutTimestamp": lambda state: state.setTimeoutTimestamp(1000),
    "getCurrentWatermarkMs": lambda state: state.getCurrentWatermarkMs(),
}


@pytest.mark.parametrize("name", NOT_DECLARED)
def test_what_of_group_state_is_not_declared_is_refused(name):
    """Timeouts and the watermark, by a message of absflow that says what to declare."""

    def function(_key, _frames, state):
        NOT_DECLARED[name](state)
        return []

    with pytest.raises(
        ProcessError, match=rf"{name} was called, .*; declare (stage|source)\(\.\.\."
    ):
        run(function)


def test_the_rest_of_group_state_is_sparks():
    """Without state `get` raises what it raises there, and null is no state."""

    def function(_key, _frames, state):
        assert (state.exists, state.getOption, str(state)) == (
            False,
            None,
            "GroupState(<undefined>)",
        )
        with pytest.raises(ValueError, match="STATE_NOT_EXISTS"):
            state.get  # noqa: B018
        with pytest.raises(TypeError, match="CANNOT_BE_NONE"):
            state.update(None)
        state.update((1, "x"))
        assert (state.exists, state.get, str(state)) == (True, (1, "x"), "GroupState((1, 'x'))")
        return []

    assert len(live(run(function).state)) == 3


OUTPUTS = {
    "by name": pd.DataFrame({"total": [4], "k": ["a"]}),
    "by place": pd.DataFrame([["a", 4]]),
    "cast": pd.DataFrame({"k": ["a"], "total": [4.0]}),
    "categories": pd.DataFrame({"k": pd.Categorical(["a"]), "total": [4]}),
}


@pytest.mark.parametrize("how", OUTPUTS)
def test_output_is_taken_as_spark_takes_it(how):
    """Columns go by name, or by place where they have no names; types are cast."""
    output = run(lambda *_: [OUTPUTS[how]], ROWS.slice(1, 1)).output
    assert output.schema == OUTPUT
    assert output.to_pylist() == [{"k": "a", "total": 4}]


def test_a_null_key_beside_numbers_leaves_them_as_they_are():
    """Each key has the type that it would have alone: no float for an integer, of two columns."""
    keys = pa.schema([("i", pa.int64()), ("flag", pa.bool_())])
    large = 2**53 + 1
    rows = pa.table([[large, None, large, None], [True, True, None, None]], schema=keys)
    made = Call("s", "i", 0, 1, 1, 0, 0, tuple(keys.names), keys)
    seen = []

    def look(key, frames, _state):
        (frame,) = frames
        seen.append((*key, str(frame["i"].dtype), str(frame["flag"].dtype)))
        return [frame]

    output = run(look, rows, KeyedState.empty(keys, pa.schema([])), made).output
    assert output.equals(rows)
    assert [repr(values) for values in seen] == [
        f"(np.int64({large}), np.True_, 'int64', 'bool')",
        "(np.float64(nan), np.True_, 'float64', 'bool')",
        f"(np.int64({large}), None, 'int64', 'object')",
        "(np.float64(nan), None, 'float64', 'object')",
    ]


def test_types_of_key_and_state():
    """Keys are numpy's and pandas' scalars, times local ones of the session; state is Python's."""
    at = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.timezone.utc)
    values = {
        "i": (pa.int32(), 7),
        "at": (pa.timestamp("us", tz="UTC"), at),
        "d": (pa.date32(), at.date()),
        "dec": (pa.decimal128(10, 2), Decimal("1.25")),
    }
    keys = pa.schema([(name, type_) for name, (type_, _) in values.items()])
    state = pa.schema(
        [("ints", pa.list_(pa.int64())), ("pair", pa.struct([("x", pa.int64())])), *keys]
    )
    state = pa.schema([f.with_name(f"s_{f.name}") for f in state])
    rows = pa.table([[v] for _, v in values.values()], schema=keys)
    made = Call("s", "i", 0, 1, 1, 0, 0, tuple(keys.names), keys)
    seen = []

    def keep(key, frames, given):
        (frame,) = frames
        seen.append((key, given.getOption))
        given.update(([1, None], {"x": 2}, *(v for _, v in values.values())))
        yield frame

    first = run(keep, rows, KeyedState.empty(keys, state), made, "Asia/Tokyo")
    assert first.output.equals(rows)
    run(keep, rows, first.state, made, "Asia/Tokyo")
    (key, _), (_, kept) = seen
    assert key == (7, pd.Timestamp("2026-11-22 21:00"), at.date(), Decimal("1.25"))
    assert type(key[0]) is np.int32
    ints, pair, *others = kept
    assert (ints, pair["x"]) == ([1, None], 2)
    assert others[0] == 7
    assert others[2:] == [at.date(), Decimal("1.25")]


WRONG = {
    "function returned DataFrame, but an iterable of pandas DataFrames": pd.DataFrame(),
    "function returned NoneType, but an iterable of pandas DataFrames": None,
    "function emitted int, but a DataFrame is expected": [1],
    r"function emitted columns \['k'\], but \['k', 'total'\] are declared": [
        pd.DataFrame({"k": ["a"]})
    ],
    r"function emitted columns \['k', 'Total'\], but \['k', 'total'\]": [
        pd.DataFrame({"k": ["a"], "Total": [1]})
    ],
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_answers_are_told(said):
    """With what came and what was expected; and as what no restart mends."""
    with pytest.raises(ResultError, match=said):
        run(lambda *_: WRONG[said])


def test_output_of_another_type_is_no_result():
    """Spark's conversion refuses it, and a restart would get the same."""

    def texts(key, _frames, _state):
        yield pd.DataFrame({"k": [key[0]], "total": ["many"]})

    with pytest.raises(ResultError, match="returned a value that does not fit: "):
        run(texts)


def test_what_the_function_itself_raises_is_no_wrong_result():
    """Also a TypeError, and one between two frames: a restart may help against that."""

    def fails(key, _frames, _state):
        yield pd.DataFrame({"k": [key[0]], "total": [1]})
        raise TypeError("mine")

    with pytest.raises(ProcessError, match="raised TypeError: mine") as caught:
        run(fails)
    assert not isinstance(caught.value, ResultError)


@pytest.mark.parametrize("value", [1.5, np.float32(0.5), Decimal("0.5")])
def test_a_fraction_is_no_integer_of_state(value):
    """It would be cut off, and gone in the next micro-batch."""

    def fraction(_key, _frames, state):
        state.update((value, "x"))
        return []

    with pytest.raises(ResultError, match=r"state has .* in column 'n', but an integer is"):
        run(fraction)


def test_a_frame_without_names_goes_by_place_beside_others():
    """Each frame by itself."""

    def mixed(key, _frames, _state):
        if key == ("b",):
            yield pd.DataFrame([("b", 2)])
        else:
            yield pd.DataFrame({"total": [1], "k": [key[0]]})

    assert [tuple(row.values()) for row in run(mixed).output.to_pylist()] == [
        ("a", 1),
        ("b", 2),
        (None, 1),
    ]


def test_a_bad_key_is_found():
    """By the same search as in a columnar function."""

    def fails(key, _frames, _state):
        if key == ("b",):
            raise ValueError("mine")
        return []

    with pytest.raises(ProcessError, match=r"the first bad row has key \{'k': 'b'\}") as caught:
        run(fails)
    assert "per_key.py" not in str(caught.value).replace("test_per_key.py", "")


def test_state_must_have_its_columns():
    """A state of another width is refused."""

    def short(_key, _frames, state):
        state.update((1,))
        return []

    with pytest.raises(ResultError, match="LENGTH"):
        run(short)
