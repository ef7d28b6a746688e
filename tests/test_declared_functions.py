"""Which functions a stage may have by its form; what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest
from processor_stage import INT, Says
from pyspark.sql import DataFrame

from absflow.declared_functions import FunctionsAsked, declared_functions, declared_initial
from absflow.errors import GraphError


class Counts(Says):
    def init(self, handle):
        self.value = handle.getValueState("value", INT)


def asked(process: Any, form: str = "stateful-processor", **more: Any) -> FunctionsAsked:
    given = {"state": None, "on_timer": None, "timeout": "NoTimeout", "time_mode": "None"}
    return FunctionsAsked(process, form, **{**given, **more})


def declared(inputs: tuple[str, ...], given: FunctionsAsked) -> Any:
    return declared_functions("s", inputs, given, lambda _name: ["k"], "UTC")


def per_row(state, row):
    return state, None


def tables(rows, state, context):
    return None


def per_key(key, frames, state):
    return ()


def over_all(rows, state, context, more):
    return None


def over(timer, state):
    return None, None


def test_a_function_per_row_may_have_one_for_timers() -> None:
    """Which becomes columnar, as it does itself."""
    made = declared(("a",), asked(per_row, "per-row", state=INT, on_timer=over))
    assert made.on_timer.__wrapped__ is over  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", ["None", "ProcessingTime", "eventtime"])
@pytest.mark.parametrize("form", ["stateful-processor", "stateful-processor-in-pandas"])
def test_a_processor_declares_its_state(form: str, mode: str) -> None:
    """And has a function for timers if time may pass; modes are compared as Spark does."""
    for process in (Counts(), {"rows": Counts()}):
        made = declared(("rows",), asked(process, form, time_mode=mode))
        assert made.state.simpleString() == "struct<value:struct<x:int>>"
        assert (made.on_timer is None) == (mode == "None")
        assert list(made.process) == ["rows"]


@pytest.mark.parametrize(
    ("inputs", "given", "words"),
    [
        ("a", asked(Counts), "is an object of a class derived from .*StatefulProcessor, not <"),
        ("a", asked(per_row), "is an object of a class derived from"),
        ("ab", asked(Counts()), "has 2 inputs, but a StatefulProcessor is given the rows of one"),
        ("a", asked(Counts(), state=INT), "says in init which state it has"),
        ("a", asked(Counts(), on_timer=per_row), "leave out state and on_timer"),
        ("a", asked(Counts(), time_mode="Wall"), "time_mode is 'Wall', must be one of"),
        ("a", asked(Counts(), time_mode=None), "time_mode is None, must be one of"),
        ("a", asked(Counts(), "per-row", state=INT), "Counts is a StatefulProcessor, not of form"),
        ("a", asked(per_row, "per-row"), "has no state; give its columns"),
        ("a", asked(per_row, "per-row", state=INT, time_mode="EventTime"), "it is of the forms"),
        ("a", asked(per_row, "per row", state=INT), "form is 'per row', must be one of"),
        ("a", asked(tables, "per-row", state=INT), "named as those of form 'arrow'.*is 'per-row'"),
        (
            "a",
            asked(per_row, "per-row", state=INT, on_timer=over_all),
            r"\(timer, state\) or \(timer",
        ),
        ("a", asked(per_row, "per-row", state=INT, on_timer=3), "on_timer must be a function that"),
        ("a", asked(per_key, "per-key", state=INT, on_timer=over_all), "'arrow', 'pandas', 'per-r"),
    ],
)
def test_what_cannot_be_is_refused(inputs: str, given: FunctionsAsked, words: str) -> None:
    with pytest.raises(GraphError, match=f"stage 's'.*{words}"):
        declared(tuple(inputs), given)


class Begins(Counts):
    def handleInitialState(self, key, initialState, timerValues):
        self.value.update((initialState.n,))


def test_initial_state_is_for_a_processor_that_takes_it() -> None:
    frame: Any = object.__new__(DataFrame)
    made = declared(("rows",), asked(Begins()))
    assert declared_initial("s", made, frame).process is made.initial
    for given in (asked(Counts()), asked(per_row, "per-row", state=INT)):
        with pytest.raises(GraphError, match="no function for it; it is for a StatefulProcessor"):
            declared_initial("s", declared(("rows",), given), frame)
    with pytest.raises(GraphError, match="initial_state is a list, but a DataFrame"):
        declared_initial("s", made, [])


def test_a_processor_that_cannot_be_sent_is_refused_by_what_it_holds() -> None:
    class Holds(Counts):
        def __init__(self) -> None:
            self.generator = (n for n in range(3))

    with pytest.raises(GraphError, match="it uses 'generator'"):
        declared(("rows",), asked(Holds()))
