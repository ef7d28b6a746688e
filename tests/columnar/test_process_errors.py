"""What a process function may not return, and how each error is named."""

import dataclasses
import inspect
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from arrow_cases import rows_of
from process_cases import AB, EMPTY, MADE, STORED, error_of, returning, rows, state_table

from absflow.columnar.forms import on_pandas, per_row
from absflow.columnar.process import Result, call
from absflow.columnar.state import KeyedState
from absflow.errors import ProcessError, ResultError


def hits_bad_row(values):
    if (values < 0).any():
        raise ValueError(f"negative value {values.min()}")


def in_arrow(given_rows, _state, _context):
    hits_bad_row(given_rows["v"].to_numpy())
    return Result()


def in_pandas(given_rows, _state, _context):
    hits_bad_row(given_rows["v"])
    return Result()


@pytest.mark.parametrize("bad", [0, 1, 499, 500, 998, 999])
@pytest.mark.parametrize("process", [in_arrow, on_pandas(in_pandas)])
def test_the_first_bad_key_is_found(bad, process):
    """Out of 1000 keys, by their values, in about 2 log n calls; later ones do not matter."""
    calls = []

    def counted(given_rows, state, context):
        keys = np.array(state["k"])[context.key_of_row]
        calls.append(keys.tolist() == list(np.array(given_rows["k"])))
        return process(given_rows, state, context)

    pairs = [(f"key-{n}", -5 if n in (bad, 999) else n) for n in range(1000)]
    message = error_of(counted, rows(*pairs, ("key-0", 1)))
    assert f"the first bad row has key {{'k': 'key-{bad}'}}" in message
    assert "the process function raised ValueError: negative value -5" in message
    assert "The batch is not committed; mend the function or the row" in message
    assert len(calls) <= 21
    assert all(calls), "the search gave the function rows beside the state of others"


@pytest.mark.parametrize("wrong", [lambda rows: rows.groupby("k"), lambda rows: rows["v"].mean()])
def test_a_function_for_pandas_without_its_form_is_told_so(wrong):
    """What pandas has, and Arrow's tables and columns have not."""
    message = error_of(lambda rows, state, context: wrong(rows), rows(("a", 1)))
    assert "object has no attribute" in message
    assert 'if it is written for pandas, declare stage(..., form="pandas")' in message


def test_the_trace_shows_the_users_frames():
    """The user's function is in it with its line, absflow's own frames are not; the cause stays."""
    with pytest.raises(ProcessError) as caught:
        call(in_arrow, MADE, rows(("a", -1)), EMPTY)
    message = str(caught.value)
    assert "in hits_bad_row" in message
    assert 'raise ValueError(f"negative value {values.min()}")' in message
    assert "process.py" not in message.replace("test_process.py", "")
    assert isinstance(caught.value.__cause__, ValueError)


def returns_nothing(given_rows, _state, _context):
    return None


def looks_up(given_rows, _state, _context):
    return given_rows.column("no such column")


def by_row(_state, _row):
    return None


@pytest.mark.parametrize(
    ("process", "function", "line", "named"),
    [
        (in_arrow, hits_bad_row, 2, ""),
        (on_pandas(in_pandas), hits_bad_row, 2, ""),
        (looks_up, looks_up, 1, ""),
        (returns_nothing, returns_nothing, 0, "function returns_nothing at "),
        (on_pandas(returns_nothing), returns_nothing, 0, "function returns_nothing at "),
        (per_row(by_row), by_row, 0, "function by_row at "),
    ],
)
def test_the_message_begins_with_the_users_line(process, function, line, named):
    """The last of their own that was on the way, else the function's name, and where it begins."""
    at = f"{named}{__file__}:{inspect.getsourcelines(function)[1] + line}"
    message = error_of(process, rows(("a", -1)))
    assert message.startswith(f"stage 'legs', input 'flights', {at} (key group 17): ")


@pytest.mark.parametrize(
    ("process", "kind"),
    [
        (in_arrow, ProcessError),
        (looks_up, ProcessError),
        (returns_nothing, ResultError),
        (returning(Result(output=pa.table({"k": ["a"]}))), ResultError),
        (per_row(by_row), ResultError),
        (per_row(lambda _state, row: (("one", "x"), [row])), ResultError),
    ],
)
def test_a_wrong_result_is_told_from_what_the_function_raised(process, kind):
    """The one would come again, the other may pass."""
    with pytest.raises(ProcessError) as caught:
        call(process, MADE, rows(("a", -1)), EMPTY)
    assert type(caught.value) is kind


def test_a_function_without_a_name_of_its_own_is_named_by_what_it_is():
    """A closure without what it is in, an instance by its class, one of C by its repr."""

    class Refuses:
        def __call__(self, _rows, _state, _context):
            return None

    def inner(_rows, _state, _context):
        return None

    for process, name in ((inner, "inner"), (Refuses(), "Refuses.__call__")):
        assert f", function {name} at {__file__}:" in error_of(process)
    assert f", {print!r} (key group 17): " in error_of(print)


def test_a_bad_pair_of_keys_is_told_by_one_of_them():
    """When no key alone is bad, the search ends with a key of the rows that are bad together."""

    def refuses_company(given_rows, state, _context):
        if state.num_rows > 1:
            raise KeyError("two")
        return Result()

    assert "{'k': 'a'}" in error_of(refuses_company, rows(("a", 1), ("b", 2)))


def test_a_bad_null_key_is_named():
    """A null is a key like any other."""
    assert "key {'k': None}" in error_of(in_arrow, rows(("a", 1), (None, -1)))


WRONG_RESULTS = {
    "nothing": (None, "returned NoneType, but an absflow.Result is expected"),
    "table": (AB, "returned Table, but"),
    "tuple": ((AB, None), "returned tuple, but"),
}


@pytest.mark.parametrize(("result", "said"), WRONG_RESULTS.values(), ids=WRONG_RESULTS)
def test_anything_but_a_result_is_refused(result, said):
    """Most of all None, the answer of a function without a return."""
    assert said in error_of(returning(result))


WRONG_OUTPUTS = {
    "list": ([1], "output is a list, but a pyarrow Table or pandas DataFrame"),
    "missing": (pa.table({"k": ["a"]}), "output has columns ['k'], but ['k', 'total'] are decl"),
    "missing named": (pa.table({"k": ["a"]}), "; missing ['total']"),
    "extra": (pa.table({"k": ["a"], "total": [1], "x": [1]}), "; not declared ['x']"),
    "extra in pandas": (pd.DataFrame({"k": ["a"], "total": [1], 5: [1]}), "; not declared ['5']"),
    "twice": (pa.table([["a"], [1], [1]], ["k", "total", "total"]), "['k', 'total', 'total']"),
    "text": (
        pa.table({"k": ["a"], "total": ["many"]}),
        "output column 'total' has type string, but int64 is declared and its values do not fit",
    ),
    "fraction": (pa.table({"k": ["a"], "total": [1.5]}), "has type double, but int64"),
    "nested": (pa.table({"k": ["a"], "total": [[1]]}), "has type list<"),
    "text in pandas": (pd.DataFrame({"k": ["a"], "total": ["many"]}), "has type object, but int64"),
    "fraction in pandas": (pd.DataFrame({"k": ["a"], "total": [1.5]}), "has type float64, but"),
    "fraction among objects": (
        pd.DataFrame({"k": ["a", "b"], "total": pd.Series([1, 1.5], dtype=object)}),
        "output has 1.5 in column 'total', but an integer is declared (int64)",
    ),
    "large in pandas": (pd.DataFrame({"k": ["a"], "total": [2**70]}), "has type object, but"),
}


def test_a_decimal_that_outgrew_its_type_is_refused():
    """Arrow's product keeps the type of its factors, whatever comes out; a file would cut it."""
    factors = pa.array([Decimal("9999999.99")] * 3, pa.decimal128(9, 2))
    grown = pa.table({"k": ["a"] * 3, "total": factors}).group_by("k")
    made = dataclasses.replace(
        MADE, output=pa.schema([("k", pa.string()), ("total", pa.decimal128(9, 2))])
    )
    product = grown.aggregate([("total", "product")]).rename_columns(["k", "total"])
    with pytest.raises(ProcessError, match=r"column 'total' .* do not fit"):
        call(returning(Result(output=product)), made, AB, EMPTY)


@pytest.mark.parametrize(("output", "said"), WRONG_OUTPUTS.values(), ids=WRONG_OUTPUTS)
def test_output_that_is_not_as_declared_is_refused(output, said):
    """The message names the first difference between what is declared and what came."""
    assert said in error_of(returning(Result(output=output)))


def test_a_number_that_is_too_large_is_refused():
    """It is never cut to the declared width."""
    narrow = dataclasses.replace(MADE, output=pa.schema([("small", pa.int32())]))
    for output in (pa.table({"small": [2**31]}), pd.DataFrame({"small": [2**31]})):
        said = error_of(returning(Result(output=output)), made=narrow)
        assert "column 'small' has type int64, but int32 is declared" in said


WRONG_STATES = {
    "stray key": (
        state_table(("a", 1, "x"), ("z", 1, "x")),
        "returned state for key {'k': 'z'}, which none of the rows has",
    ),
    "key of state but not of rows": (state_table(("c", 1, "x")), "for key {'k': 'c'}, which none"),
    "stray null": (state_table((None, 1, "x"), ("a", 1, "x")), "for key {'k': None}"),
    "twice": (
        state_table(("b", 1, "x"), ("a", 1, "x"), ("a", 2, "x")),
        "returned several state rows for key {'k': 'a'}, but a key has one",
    ),
    "missing": (pa.table({"k": ["a"], "n": [1]}), "state has columns ['k', 'n'], but"),
    "without keys": (pa.table({"n": [1], "name": ["x"]}), "; missing ['k']"),
    "not a frame": ({"k": ["a"]}, "state is a dict, but"),
    "wrong type": (
        pa.table({"k": ["a"], "n": ["one"], "name": ["x"]}),
        "state column 'n' has type string, but int64",
    ),
}


@pytest.mark.parametrize(("state", "said"), WRONG_STATES.values(), ids=WRONG_STATES)
def test_state_that_does_not_fit_is_refused(state, said):
    """State is for the keys of the given rows, one row each, with the declared columns."""
    assert said in error_of(returning(Result(state=state)), state=STORED)


WRONG_DELETES = {
    "too short": ([True], "has dtype bool and shape (1,)"),
    "too long": ([True] * 3, "shape (3,)"),
    "numbers": ([0, 1], "has dtype int64"),
    "nulls": (pa.array([True, None]), "has dtype object"),
    "one flag": (True, "shape ()"),
    "nested": ([[True, False]], "shape (1, 2)"),
}


@pytest.mark.parametrize(("delete", "said"), WRONG_DELETES.values(), ids=WRONG_DELETES)
def test_a_wrong_delete_mask_is_refused(delete, said):
    """One bool for each row of the given state; positions and nulls are not flags."""
    message = error_of(returning(Result(delete=delete)), state=STORED)
    assert said in message
    assert "one bool for each of the 2 rows of state is expected" in message


def test_a_failed_call_leaves_the_state_as_it_was():
    """The state before is still good for the batch's replay."""
    before = rows_of(STORED.table)
    error_of(returning(Result(state=state_table(("a", 1, "x"), ("z", 1, "x")))), state=STORED)
    error_of(returning(Result(state=state_table(("a", 1, "x")), delete=[1])), state=STORED)
    assert rows_of(STORED.table) == before


def test_several_key_columns_work_alike():
    """Keys of two columns, one of them null: state, errors and deletion find the right row."""
    keys = pa.schema([("k", pa.string()), ("d", pa.int32())])
    schema = pa.schema([*keys, ("n", pa.int64())])
    state = KeyedState.empty(keys, pa.schema([("n", pa.int64())]))
    given_rows = pa.table(
        [["a", "a", None, "a"], [1, None, 1, 1], [5, 6, 7, 8]],
        schema=pa.schema([*keys, ("v", pa.int64())]),
    )

    def total(table, given_state, context):
        sums = np.bincount(context.key_of_row, table["v"].to_numpy(), given_state.num_rows)
        kept = given_state.set_column(2, "n", pa.array(sums.astype(np.int64)))
        return Result(state=kept, delete=pc.equal(kept["n"], 6))

    after = call(total, MADE, given_rows, state).state
    assert [row for row in rows_of(after.table) if not row[-1]] == [
        ("a", 1, 13, 9, False),
        (None, 1, 7, 9, False),
    ]
    stray = pa.table([["a"], [2], [0]], schema=schema)
    message = error_of(returning(Result(state=stray)), given_rows, state=state)
    assert "state for key {'k': 'a', 'd': 2}" in message
