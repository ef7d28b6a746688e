"""What depends on anything but rows, state and context is found; what does not passes."""

from __future__ import annotations

import datetime
import functools
import random
import time
import uuid
from collections import Counter as Tally

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from kit_cases import (
    Counter,
    at,
    click,
    count,
    count_pandas,
    number,
    per_key,
    processor,
    stage,
    tumbling,
    windows,
)

import absflow
from absflow.testing import (
    BARRIER,
    BATCH,
    RUNS,
    BarrierOn,
    Input,
    NotDeterministicError,
    Wait,
    check_deterministic,
)

FEED = [("a",), ("b",), ("a",), BATCH, ("c",), ("a",), ("b",), BATCH, ("b",), ("d",), ("a",)]
SEEN: dict[str, int] = {}
CALLS = Tally()
ORDER: list[str] = []


def found(made, feed=FEED, **more):
    """The run that shows the difference, and what is said."""
    with pytest.raises(NotDeterministicError) as caught:
        check_deterministic(made, feed, **more)
    return caught.value.run, str(caught.value)


def emitting(value):
    """A function of one row that emits what another makes up."""

    def process(state, row):
        return state or (0,), [(row[0], value(row))]

    return stage(process, "per-row", output="k string, n double")


def test_functions_of_rows_state_and_context_pass():
    """Every form, with rows for each row or each micro-batch."""
    assert len(check_deterministic(stage(number, "per-row"), FEED)) >= len(RUNS)
    for made in (
        stage(count),
        stage(count_pandas, "pandas"),
        stage(per_key, "per-key"),
        processor(),
    ):
        check_deterministic(made, FEED, output="newest")


def test_timers_waits_and_barriers_of_what_is_fed_pass():
    rows = [
        click("a", 0, 10),
        click("b", 0, 20),
        click("a", 0, 50),
        BARRIER,
        click("a", 1, 5),
        click("b", 3),
        click("c", 3, 1),
        BATCH,
        click("a", 7),
    ]
    check_deterministic(tumbling(), rows)
    check_deterministic(stage(number, "per-row", ttl=absflow.Ttl("1h")), [*FEED, Wait("2h"), *FEED])


def test_a_window_that_is_no_part_of_the_key_depends_on_the_cut():
    """A row of a later window may come before the timer of the one before, or behind it."""
    rows = [("a", at(0)), ("b", at(0)), BATCH, ("a", at(3)), ("b", at(5)), ("c", at(7))]
    assert found(windows(), rows)[0] == "cuts"


def test_random_numbers_and_a_clock_of_the_context_pass_where_micro_batches_stay():
    def process(state, row, context):
        return (context.time_ms,), [(row[0], int(context.random.integers(1000)))]

    made = stage(process, "per-row")
    check_deterministic(made, FEED, runs=["again", "elsewhere"])
    assert found(made)[0] in ("order", "cuts")


def test_a_clock_is_found_by_the_second_run():
    run, said = found(emitting(lambda row: time.time()))
    assert run == "again"
    assert "take context.time_ms for a clock" in said
    assert "time.time (test_deterministic_kit.py:" in said
    assert "first run: {'k': 'a'" in said
    assert "micro-batch 0, 2026-01-01 00:00:00" in said


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (lambda row: random.random(), "random.random"),
        (lambda row: float(np.random.rand()), "np.random.rand"),
        (lambda row: float(uuid.uuid4().int % 1000), "uuid.uuid4"),
    ],
)
def test_random_numbers_are_found(value, name):
    run, said = found(emitting(value))
    assert run == "again"
    assert f"it asks for {name} (" in said


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (lambda row: float(datetime.date.today().day), "datetime.date.today"),
        (lambda row: float(datetime.datetime.now().year), "datetime.datetime.now"),
        (lambda row: float(pd.Timestamp.now().year), "pd.Timestamp.now"),
    ],
)
def test_a_clock_that_stands_still_for_a_second_is_found_in_the_code(value, name):
    run, said = found(emitting(value))
    assert run == "code"
    assert name in said
    check_deterministic(emitting(value), FEED, allow=[name])


def helper():
    return datetime.date.today().day


def test_a_clock_of_a_helper_is_found_in_the_code():
    run, said = found(emitting(lambda row: float(helper())))
    assert (run, "datetime.date.today" in said) == ("code", True)


def test_a_clock_of_a_processor_is_found_in_the_code():
    class Dated(Counter):
        def handleInputRows(self, key, rows, timerValues):
            datetime.date.today()
            return super().handleInputRows(key, rows, timerValues)

    made = stage(Dated(), "stateful-processor", state=None)
    assert found(made, output="newest")[0] == "code"


def test_dependence_on_the_cut_is_found():
    """A function that says how many rows came with each."""

    def process(rows, state, context):
        counts = np.bincount(context.key_of_row, minlength=state.num_rows)
        output = pa.table({"k": state["k"], "n": counts})
        return absflow.Result(output=output, state=output)

    run, said = found(stage(process), output="newest")
    assert run == "cuts"
    assert "it depends on which rows come in one micro-batch" in said
    assert "run: in micro-batches of 9 rows; the first was in micro-batches of 3, 3, 3" in said
    run, said = found(stage(count))
    assert run == "cuts"
    assert 'output="newest"' in said


def test_state_that_depends_on_the_cut_is_found_though_rows_do_not_count():
    def process(rows, state, context):
        last = pa.array([rows.num_rows] * state.num_rows)
        return absflow.Result(state=pa.table({"k": state["k"], "n": last}))

    run, said = found(stage(process), output="none")
    assert run in ("order", "cuts", "restore", "key groups")
    assert "state differ:" in said


def test_dependence_on_the_order_of_keys_is_found():
    """A number for each key by its place in the call."""

    def process(rows, state, context):
        first = state["n"].to_pylist()
        places = [before or place + 1 for place, before in enumerate(first)]
        table = pa.table({"k": state["k"], "n": places})
        return absflow.Result(output=table, state=table)

    run, said = found(stage(process, key_groups=1), output="none")
    assert run == "order"
    assert "the order of rows of different keys" in said


def test_dependence_on_which_keys_come_together_is_found():
    def process(rows, state, context):
        n = pa.array([context.key_group] * state.num_rows)
        return absflow.Result(state=pa.table({"k": state["k"], "n": n}))

    run, said = found(stage(process), runs=["key groups"])
    assert run == "key groups"
    assert "which keys come together" in said
    assert "1 key groups" in said


def test_a_global_that_counts_is_found():
    def process(state, row):
        CALLS[row[0]] += 1
        return (CALLS[row[0]],), [(row[0], CALLS[row[0]])]

    run, said = found(stage(process, "per-row"))
    assert run == "again"
    assert "keep in the state" in said


def cached(state, row):
    """Takes from a global what it has seen before, and never forgets."""
    SEEN.setdefault(row[0], state[0] if state else 0)
    SEEN[row[0]] += 1
    return (SEEN[row[0]],), [(row[0], SEEN[row[0]])]


def test_a_cache_in_a_module_is_found():
    SEEN.clear()
    assert found(stage(cached, "per-row"))[0] == "again"


def remembered(state, row, context):
    """Emits when this process has seen its key first; no second run shows that."""
    first = FIRST.setdefault(row[0], context.time_ms)
    return (1,), [(row[0], first)]


FIRST: dict[str, int] = {}


def test_a_cache_that_a_second_run_does_not_show_is_found_by_a_restore():
    """The process that is restored has another one, which is empty."""
    FIRST.clear()
    feed = [("a",), ("b",), BATCH, Wait("1h"), ("a",), ("b",), BATCH, ("a",)]
    run, said = found(stage(remembered, "per-row"), feed)
    assert run == "restore"
    assert "outside of its state" in said


def test_state_kept_in_a_dict_around_the_function_is_found():
    """Nothing of it is in the state that is returned."""
    totals: dict[str, int] = {}

    def process(state, row):
        totals[row[0]] = totals.get(row[0], 0) + 1
        return (0,), [(row[0], totals[row[0]])]

    assert found(stage(process, "per-row"))[0] == "again"


def test_a_state_that_is_changed_behind_the_back_is_found():
    """A list of the state that a later call still has in hand."""
    hands: dict[str, list] = {}

    def process(state, row):
        tags = hands.setdefault(row[0], [])
        tags.append("x")
        return (tags,), [(row[0], len(tags))]

    assert found(stage(process, "per-row", state="tags array<string>"))[0] == "again"


def test_an_attribute_of_a_processor_is_found():
    class Keeps(Counter):
        seen = 0

        def handleInputRows(self, key, rows, timerValues):
            self.seen += 1
            yield from (
                row.__class__(k=key[0], n=self.seen)
                for row in super().handleInputRows(key, rows, timerValues)
            )

    made = stage(Keeps(), "stateful-processor", state=None)
    run, _ = found(made, output="newest")
    assert run in ("again", "elsewhere", "order", "cuts", "restore", "key groups")


@functools.cache
def squared(n):
    return n * n


def test_a_memo_of_what_does_not_change_passes():
    def process(state, row):
        n = (state[0] if state else 0) + 1
        return (n,), [(row[0], squared(n))]

    check_deterministic(stage(process, "per-row"), FEED)


def test_a_join_that_goes_by_what_comes_first_is_found():
    """In the order of one micro-batch it is right, in two it is not."""

    def left(state, row):
        return (row[1],), None

    def right(state, row):
        return state, [(row[0], state[0] if state else -1)]

    given = {"a": Input("k string, n long"), "b": Input("k string, n long")}
    made = stage({"a": left, "b": right}, "per-row", inputs=given)
    feed = [("b", ("x", 0)), ("a", ("x", 7)), BATCH, ("b", ("x", 0))]
    assert found(made, feed)[0] == "cuts"


def test_late_rows_that_depend_on_the_cut_are_no_fault_of_the_function():
    rows = [click("a", 5), click("b", 0), BATCH, click("a", 6), click("b", 9)]
    run, said = found(tumbling(), rows)
    assert run == "cuts"
    assert "no fault of the function" in said
    assert "ordered=True" in said


def test_an_error_in_another_run_is_shown():
    def process(rows, state, context):
        if rows.num_rows > 3:
            raise RuntimeError("too many")
        return count(rows, state, context)

    run, said = found(stage(process), output="newest")
    assert run == "cuts"
    assert "raised RuntimeError: too many" in said


def test_barriers_on_one_input_are_fed_too():
    given = {name: Input("k string", of="stage") for name in "ab"}
    made = stage({"a": number, "b": number}, "per-row", inputs=given)
    feed = [("a", ("x",)), ("b", ("x",)), BarrierOn("a"), ("b", ("x",)), BarrierOn("b")]
    check_deterministic(made, feed, runs=["again", "elsewhere", "key groups"])


def test_there_are_no_other_runs():
    with pytest.raises(ValueError, match="runs are of"):
        check_deterministic(stage(), FEED, runs=["twice"])
