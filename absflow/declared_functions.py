"""The functions of a stage, by their form: seen to be such, and made columnar."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from absflow.columnar.forms import (
    RowFunction,
    RowTimerFunction,
    can_take,
    on_pandas,
    per_row,
    per_row_timers,
)
from absflow.columnar.process import Process
from absflow.columnar.timers import TIMEOUT_FIELDS
from absflow.declared import declared_type
from absflow.errors import GraphError
from absflow.spark.model import InitialState
from absflow.spark.worker.group_state import TIMEOUTS
from absflow.spark.worker.per_key import KeyFunction, per_key, per_key_timeout
from absflow.spark.worker.processor import ProcessorStage
from absflow.spark.worker.processor_init import TIME_MODES, asked_variables
from absflow.spark.worker.sendable import check_sendable

__all__ = [
    "AnyProcess",
    "AnyTimerFunction",
    "Functions",
    "FunctionsAsked",
    "declared_functions",
    "declared_initial",
    "needs_event_time",
]

AnyProcess: TypeAlias = "Process | RowFunction | KeyFunction | StatefulProcessor"
AnyTimerFunction: TypeAlias = "Process | RowTimerFunction"

# What a process function may be called with, by its form.
_ARGUMENTS = {
    "arrow": ["rows, state, context"],
    "pandas": ["rows, state, context"],
    "per-key": ["key, frames, state", "key, frames, state, context"],
    "per-row": ["state, row", "state, row, context"],
}
# And one for timers, by the forms that may have one.
_TIMER_ARGUMENTS = {
    "arrow": ["rows, state, context"],
    "pandas": ["rows, state, context"],
    "per-row": ["timer, state", "timer, state, context"],
}

_TIMEOUTS = pa.schema(TIMEOUT_FIELDS)
# By form, whether a StatefulProcessor is given pandas frames.
_PROCESSORS = {"stateful-processor": False, "stateful-processor-in-pandas": True}


@dataclass(frozen=True, slots=True)
class Functions:
    """What a stage calls, columnar.

    Attributes:
        process: by input.
        on_timer: for timers; None if there are none.
        state: the columns that its state has.
        initial: for initial state; None if nothing takes it.
    """

    process: Mapping[str, Process]
    on_timer: Process | None
    state: StructType
    initial: Process | None = None


@dataclass(frozen=True, slots=True)
class FunctionsAsked:
    """What a stage's author says of its functions; as of :meth:`absflow.Job.stage`."""

    process: AnyProcess | Mapping[str, AnyProcess]
    form: str
    state: str | StructType | None
    on_timer: AnyTimerFunction | None
    timeout: str
    time_mode: str


def declared_functions(
    stage: str,
    inputs: tuple[str, ...],
    asked: FunctionsAsked,
    columns: Callable[[str], Sequence[str]],
    time_zone: str,
) -> Functions:
    """The functions of a stage.

    Args:
        stage: its name.
        inputs: their names.
        asked: as declared.
        columns: gives those of an input.
        time_zone: the session's.

    Raises:
        GraphError: they are none of this form.
    """
    form, state = asked.form, asked.state
    _check_words(stage, form, asked.timeout, asked.time_mode)
    if form in _PROCESSORS:
        if state is not None or asked.on_timer is not None:
            raise GraphError(
                f"stage {stage!r}: a StatefulProcessor says in init which state it has, and in "
                "handleExpiredTimer what its timers do; leave out state and on_timer"
            )
        return _processor(stage, inputs, asked, time_zone)
    if state is None:
        raise GraphError(f"stage {stage!r} has no state; give its columns, stage(..., state=...)")
    functions = _process_functions(stage, inputs, asked.process, form)
    made_columnar = _columnar(form, time_zone, asked.timeout)
    columns_of_state = declared_type(stage, "state", state)
    on_timer: Process | None = None
    if asked.timeout != "NoTimeout":
        on_timer = _timeout_function(stage, functions, asked.timeout, columns, time_zone)
        columns_of_state = StructType([*columns_of_state, *from_arrow_schema(_TIMEOUTS)])
    elif asked.on_timer is not None:
        on_timer = _timer_function(stage, asked.on_timer, form)
    made = {given: made_columnar(function) for given, function in functions.items()}
    return Functions(made, on_timer, columns_of_state)


def declared_initial(stage: str, functions: Functions, frame: object) -> InitialState:
    """The initial state of a stage.

    Args:
        stage: its name.
        functions: what it calls.
        frame: as declared.

    Raises:
        GraphError: nothing takes it, or it is no DataFrame.
    """
    if not isinstance(frame, DataFrame):
        raise GraphError(
            f"stage {stage!r}: its initial_state is a {type(frame).__name__}, but a DataFrame with "
            "its key columns is expected, without groupBy"
        )
    if functions.initial is None:
        raise GraphError(
            f"stage {stage!r} has an initial_state, but no function for it; it is for a "
            "StatefulProcessor with handleInitialState. For other functions write a savepoint: "
            "job.write_savepoint"
        )
    return InitialState(frame, functions.initial)


def _check_words(stage: str, form: str, timeout: str, time_mode: str) -> None:
    forms = [*_ARGUMENTS, *_PROCESSORS]
    if form not in forms:
        raise GraphError(f"stage {stage!r}: form is {form!r}, must be one of {forms}")
    if timeout not in TIMEOUTS or (timeout != "NoTimeout" and form != "per-key"):
        raise GraphError(
            f"stage {stage!r}: timeout is {timeout!r} in form {form!r}; it must be one of "
            f'{list(TIMEOUTS)}, and the form "per-key" if keys time out'
        )
    if not isinstance(time_mode, str) or time_mode.lower() not in TIME_MODES:
        raise GraphError(
            f"stage {stage!r}: time_mode is {time_mode!r}, must be one of "
            f"{list(TIME_MODES.values())}"
        )
    if time_mode.lower() != "none" and form not in _PROCESSORS:
        raise GraphError(
            f"stage {stage!r}: time_mode is {time_mode!r} in form {form!r}; it is of the forms "
            f"{list(_PROCESSORS)}"
        )


def needs_event_time(on_timer: Process | None) -> bool:
    """Whether a stage's timers say of themselves that an input must have event time."""
    return bool(getattr(on_timer, "waits_for_event_time", False))


def _columnar(form: str, time_zone: str, timeout: str) -> Callable[[Any], Process]:
    """What makes a columnar function on Arrow tables out of one of this form."""
    if form == "per-key":
        return lambda function: per_key(function, time_zone, timeout)
    columnar: Mapping[str, Callable[[Any], Process]] = {
        "arrow": lambda function: function,
        "pandas": on_pandas,
        "per-row": per_row,
    }
    return columnar[form]


def _timeout_function(
    stage: str,
    functions: Mapping[str, AnyProcess],
    timeout: str,
    columns: Callable[[str], Sequence[str]],
    time_zone: str,
) -> Process:
    """The function for timers of a stage whose keys may time out."""
    if len(functions) > 1:
        raise GraphError(
            f"stage {stage!r} has {len(functions)} inputs and timeout={timeout!r}; a key that "
            "times out is given to the function of its one input"
        )
    ((given, function),) = functions.items()
    return per_key_timeout(cast("KeyFunction", function), time_zone, timeout, columns(given))


def _timer_function(stage: str, on_timer: AnyTimerFunction, form: str) -> Process:
    """The function for timers, seen to be one and made columnar."""
    if form not in _TIMER_ARGUMENTS:
        raise GraphError(
            f"stage {stage!r}: its functions are of form {form!r}, which sets no timers; with "
            f"on_timer the form must be one of {list(_TIMER_ARGUMENTS)}"
        )
    ways = _TIMER_ARGUMENTS[form]
    if not callable(on_timer) or not any(can_take(on_timer, len(w.split(", "))) for w in ways):
        raise GraphError(
            f"stage {stage!r}: on_timer must be a function that is called with "
            f"({') or ('.join(ways)}), not {on_timer!r}"
        )
    if form == "per-row":
        return per_row_timers(cast("RowTimerFunction", on_timer))
    given = cast("Process", on_timer)
    return on_pandas(given) if form == "pandas" else given


def _process_functions(
    stage: str,
    inputs: tuple[str, ...],
    process: AnyProcess | Mapping[str, AnyProcess],
    form: str,
) -> Mapping[str, AnyProcess]:
    """The process function of each input."""
    functions = process if isinstance(process, Mapping) else dict.fromkeys(inputs, process)
    if not isinstance(process, Mapping) and len(inputs) > 1:
        raise GraphError(
            f"stage {stage!r} has {len(inputs)} inputs and one process function; give a mapping "
            f"with one for each of {list(inputs)}"
        )
    for name, function in functions.items():
        if isinstance(function, StatefulProcessor):
            raise GraphError(
                f"stage {stage!r}: {type(function).__name__} is a StatefulProcessor, not of form "
                f"{form!r}; say what it is for, stage(..., form=...): "
                f"{' or '.join(map(repr, _PROCESSORS))}"
            )
        if not callable(function):
            raise GraphError(
                f"stage {stage!r}: the process function of {name!r} is a "
                f"{type(function).__name__}, which cannot be called"
            )
        ways = _ARGUMENTS[form]
        if not any(can_take(function, len(way.split(", "))) for way in ways):
            raise GraphError(
                f"stage {stage!r}: the process function of {name!r} is "
                f"{getattr(function, '__name__', type(function).__name__)}"
                f"{inspect.signature(function)}, but one of form {form!r} is called with "
                f"({') or ('.join(ways)}); say which form it has, stage(..., form=...): "
                f"{', '.join(map(repr, _ARGUMENTS))}"
            )
        if other := _named_as(function, form):
            raise GraphError(
                f"stage {stage!r}: the arguments of the process function of {name!r} are named as "
                f"those of form {other!r}: {inspect.signature(function)}. But its form is "
                f"{form!r}, so it is called with ({') or ('.join(ways)}); say which form it has, "
                "or name them so"
            )
    return functions


def _named_as(function: Callable[..., Any], form: str) -> str | None:
    """Another form, if a function has the very names of that one's arguments; else None."""
    try:
        names = ", ".join(inspect.signature(function).parameters)
    except ValueError:
        return None  # some of C's have no signature
    named = [other for other, ways in _ARGUMENTS.items() if names in ways]
    return named[0] if named and form not in named else None


def _processor(
    stage: str, inputs: tuple[str, ...], asked: FunctionsAsked, time_zone: str
) -> Functions:
    """Those of one of Spark's ``StatefulProcessor`` objects."""
    if len(inputs) > 1:
        raise GraphError(
            f"stage {stage!r} has {len(inputs)} inputs, but a StatefulProcessor is given the rows "
            "of one; bring them together in a stage before it"
        )
    given: object = asked.process
    if isinstance(given, Mapping) and tuple(given) == inputs:
        given = given[inputs[0]]
    if not isinstance(given, StatefulProcessor):
        raise GraphError(
            f"stage {stage!r}: of form {asked.form!r} the process is an object of a class derived "
            f"from pyspark.sql.streaming.StatefulProcessor, not {given!r}"
        )
    check_sendable(stage, {"process": given.handleInputRows})
    mode = asked.time_mode.lower()
    variables = asked_variables(
        stage, given, mode, lambda what, schema: declared_type(stage, what, schema)
    )
    in_pandas = _PROCESSORS[asked.form]
    calls = ProcessorStage(stage, given, variables, mode, time_zone, in_pandas=in_pandas)
    on_rows, on_timer = calls.functions()
    state = StructType([variable.field for variable in variables.values()])
    takes_initial = type(given).handleInitialState is not StatefulProcessor.handleInitialState
    initial = calls.initial() if takes_initial else None
    return Functions({inputs[0]: on_rows}, on_timer, state, initial)
