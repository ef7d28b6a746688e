"""The process function: what it is given, and how each wrong answer of it is named."""

import dataclasses

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from arrow_cases import examples, rows_of
from hypothesis import given
from hypothesis import strategies as st
from process_cases import AB, EMPTY, MADE, OUTPUT, STORED, live, returning, rows, state_table

from absflow.columnar.forms import on_pandas
from absflow.columnar.process import Result, call


@examples(80)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 9)), min_size=1),
    st.booleans(),
)
def test_each_row_knows_its_key(pairs, pandas):
    """State comes in the order of first rows; key_of_row and is_new say which row has which."""
    stored = {"a": (10, "x"), "b": (20, "y"), "c": (30, "z")}
    gone = call(returning(Result(delete=[True])), MADE, rows(("b", 0)), STORED).state
    seen = {}

    def look(given_rows, state, context):
        keys = list(state["k"] if isinstance(state, pd.DataFrame) else state["k"].to_pylist())
        seen.update(
            keys=keys,
            of_row=[keys[at] for at in context.key_of_row],
            new=context.is_new.tolist(),
            dtypes=(context.key_of_row.dtype, context.is_new.dtype),
            frames={type(given_rows), type(state)},
            names=list(state.columns if isinstance(state, pd.DataFrame) else state["name"]),
            rows=len(given_rows),
        )
        return Result()

    process = on_pandas(look) if pandas else look
    assert call(process, MADE, rows(*pairs), gone).state is gone
    keys = list(dict.fromkeys(k for k, _ in pairs))
    assert seen["keys"] == keys
    assert seen["of_row"] == [k for k, _ in pairs]
    assert seen["new"] == [k == "b" or k not in stored for k in keys]
    assert seen["dtypes"] == (np.int64, np.bool_)
    assert seen["rows"] == len(pairs)
    if pandas:
        assert seen["frames"] == {pd.DataFrame}
        assert seen["names"] == ["k", "n", "name"]
    else:
        assert seen["frames"] == {pa.Table}
        due = [None if k in ("b", None) else stored[k][1] for k in keys]
        assert [name.as_py() for name in seen["names"]] == due


def test_the_context_says_where_the_call_stands():
    """Stage, input, key group, epoch and time are those of the call."""
    seen = []
    call(lambda *given: seen.append(given[2]) or Result(), MADE, AB, EMPTY)
    (context,) = seen
    assert (context.stage, context.input, context.key_group) == ("legs", "flights", 17)
    assert (context.epoch, context.time_ms) == (4, 1_700_000_000_000)


def drawn(made):
    numbers = []
    call(lambda *given: numbers.extend(given[2].random.random(4)) or Result(), made, AB, EMPTY)
    return numbers


def test_random_numbers_repeat_with_the_call():
    """A replay draws the same numbers; every other call of the job draws others."""
    others = [
        dataclasses.replace(MADE, **change)
        for change in ({"stage": "x"}, {"key_group": 1}, {"batch_id": 10}, {"number": 1})
    ]
    assert drawn(MADE) == drawn(MADE)
    assert len({tuple(drawn(made)) for made in [MADE, *others]}) == 5


def test_an_empty_result_changes_nothing():
    """No output, and the very state that was there."""
    processed = call(returning(Result()), MADE, AB, STORED)
    assert processed.output is None
    assert processed.state is STORED


def test_state_may_be_returned_in_part_and_in_any_order():
    """Rows of state find their keys; the keys that are left out keep theirs."""
    result = Result(state=state_table(("c", 3, "new"), ("a", 1, "new")))
    after = call(returning(result), MADE, rows(("a", 0), ("b", 0), ("c", 0)), STORED).state
    assert live(after) == {"a": (1, "new"), "b": (20, "y"), "c": (3, "new")}
    assert after.table["_modified"].to_pylist() == [9, 9, 9]
    assert sorted(after.table["k"].to_pylist()) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "flags",
    [[False, True], np.array([False, True]), pa.array([False, True]), pd.Series([False, True])],
    ids=["list", "numpy", "arrow", "pandas"],
)
def test_keys_are_forgotten_by_flags(flags):
    """The flags stand beside the state that was given, not beside that which is returned."""
    after = call(returning(Result(delete=flags)), MADE, AB, STORED).state
    assert live(after) == {"a": (10, "x"), "c": (30, "z")}


def test_a_key_may_be_changed_and_forgotten_at_once():
    """Forgetting wins, for an old key and for one that is new in this call."""
    result = Result(state=state_table(("n", 1, "new"), ("a", 1, "new")), delete=[True, True])
    after = call(returning(result), MADE, rows(("a", 0), ("n", 0)), STORED).state
    assert live(after) == {"b": (20, "y"), "c": (30, "z")}


def test_pandas_frames_work_like_arrow_tables():
    """The same function in pandas gives the same rows and state."""

    def count(given_rows, state, context):
        n = state["n"].fillna(0).astype("int64")
        n += np.bincount(context.key_of_row, weights=given_rows["v"], minlength=len(state)).astype(
            "int64"
        )
        state = state.assign(n=n, name="pandas")
        output = state[["k"]].assign(total=n)
        return Result(output=output[["total", "k"]], state=state, delete=state["k"] == "b")

    processed = call(on_pandas(count), MADE, rows(("a", 1), ("new", 5), ("b", 2), ("a", 3)), STORED)
    assert rows_of(processed.output) == [("a", 14), ("new", 5), ("b", 22)]
    assert processed.output.schema == OUTPUT
    assert live(processed.state) == {"a": (14, "pandas"), "new": (5, "pandas"), "c": (30, "z")}


CASTS = {
    "narrower integer": pa.table({"k": ["a"], "total": pa.array([7], type=pa.int32())}),
    "large string": pa.table({"k": pa.array(["a"], type=pa.large_string()), "total": [7]}),
    "other order": pa.table({"total": [7], "k": ["a"]}),
    "record batch": pa.record_batch({"k": ["a"], "total": [7]}),
    "chunked": pa.table({"k": pa.chunked_array([["a"], []]), "total": pa.chunked_array([[7]])}),
    "whole floats": pa.table({"k": ["a"], "total": [7.0]}),
    "pandas": pd.DataFrame({"total": [7], "k": ["a"]}),
    "pandas floats": pd.DataFrame({"total": [7.0], "k": ["a"]}),
    "pandas nullable": pd.DataFrame({"total": pd.array([7], dtype="Int64"), "k": ["a"]}),
    "pandas categories": pd.DataFrame({"total": [7], "k": pd.Categorical(["a"])}),
}


@pytest.mark.parametrize("output", CASTS.values(), ids=CASTS)
def test_a_safe_cast_is_made(output):
    """Output that fits its declaration without a loss is brought to it."""
    processed = call(returning(Result(output=output)), MADE, AB, EMPTY)
    assert processed.output.schema == OUTPUT
    assert rows_of(processed.output) == [("a", 7)]


def test_a_missing_number_is_null_in_pandas():
    """What pandas shows as NaN in a column of integers is a null again."""
    output = pd.DataFrame({"k": ["a", None], "total": [1.0, np.nan]})
    processed = call(on_pandas(returning(Result(output=output))), MADE, AB, EMPTY)
    assert rows_of(processed.output) == [("a", 1), (None, None)]


def test_large_integers_beside_a_null_are_exact_in_pandas():
    """Integers are nullable in pandas frames, so a null beside it makes no float of a number."""
    large = 2**53 + 1
    seen = []

    def keep(given_rows, state, _context):
        seen.append((str(given_rows["v"].dtype), str(state["n"].dtype), state["n"].isna().all()))
        return Result(state=state.assign(n=given_rows["v"], name=None))

    state = call(on_pandas(keep), MADE, rows(("a", large), ("b", None)), EMPTY).state
    assert live(state) == {"a": (large, None), "b": (None, None)}
    assert seen == [("Int64", "Int64", True)]


@pytest.mark.parametrize("pandas", [False, True])
def test_nan_and_null_are_one_in_pandas_frames_only(pandas):
    """What the docs say: frames give NaN for both and take it for null; Arrow keeps both apart."""
    schema = pa.schema([("k", pa.string()), ("v", pa.float64())])
    given_rows = pa.table([["a", "b"], [float("nan"), None]], schema=schema)
    made = dataclasses.replace(MADE, output=schema)
    seen = []

    def emit(rows, _state, _context):
        seen.append(rows)
        return Result(output=rows)

    output = call(on_pandas(emit) if pandas else emit, made, given_rows, EMPTY).output["v"]
    if pandas:
        assert seen[0]["v"].isna().all()
        assert output.null_count == 2
    else:
        assert output.null_count == 1
        assert np.isnan(output[0].as_py())
