"""Process functions that are not columnar on Arrow tables, made so that they are.

:func:`on_pandas` hands over pandas frames in the place of Arrow tables. :func:`per_row` calls a
function for every row with plain Python values, as Bytewax's ``stateful_map`` does::

    def count(state, row):
        n = (state[0] if state else 0) + 1
        return (n,), [(row[0], n)]

and with the :class:`~absflow.columnar.process.Context` if it has a third parameter. Its timers are
``context.timers``; :func:`per_row_timers` calls a function for each that is due::

    def over(timer, state, context):
        return None, [(*timer.key, state[0])]

It is the easiest to write, and costs microseconds a row where a columnar one costs nanoseconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import update_wrapper
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from absflow.columnar.process import Context, Process, Result, check_whole
from absflow.columnar.row_timers import KeyTimers, Timer, TimersOfCall, timer_at
from absflow.columnar.timers import Domain, Piece, in_pieces
from absflow.errors import ResultError
from absflow.protocol.event_time import from_datetime

__all__ = [
    "RowFunction",
    "RowTimerFunction",
    "can_take",
    "on_pandas",
    "per_row",
    "per_row_timers",
    "python_values",
    "state_rows",
    "takes_context",
]

_Values: TypeAlias = "tuple[Any, ...]"
_Answer: TypeAlias = "tuple[_Values | None, Iterable[_Values] | None]"
RowFunction: TypeAlias = (
    "Callable[[_Values | None, _Values], _Answer] "
    "| Callable[[_Values | None, _Values, Context], _Answer]"
)
RowTimerFunction: TypeAlias = (
    "Callable[[Timer, _Values | None], _Answer] "
    "| Callable[[Timer, _Values | None, Context], _Answer]"
)

# Without these a column of integers would be int64 in one batch and, for a null in it, float64 in
# the next, which cannot hold 2**53 + 1.
_NULLABLE: Mapping[pa.DataType, pd.api.extensions.ExtensionDtype] = {
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}


def on_pandas(function: Process) -> Process:
    """A columnar function that takes pandas frames.

    Integers and booleans have pandas' nullable types (``Int64``, ``boolean``), whether a batch has
    nulls or not. In a column of floats NaN and null are one, as in Spark's own pandas functions:
    the function gets NaN for both, and a NaN that it returns is null from then on.
    """

    def process(rows: pa.Table, state: pa.Table, context: Context) -> Result:
        rows, state = (table.to_pandas(types_mapper=_NULLABLE.get) for table in (rows, state))
        return function(rows, state, context)

    return update_wrapper(process, function, assigned=(), updated=())


def can_take(function: Callable[..., Any], arguments: int) -> bool:
    """Whether a function can be called with so many arguments, as far as its signature is known."""
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:
        pass  # some of C's have no signature; a call will show
    return True


def takes_context(function: Callable[..., Any], arguments: int) -> bool:
    """Whether a function must be given one argument more than so many: the context.

    One that can do without, as with a default of its own there, is called without.
    """
    return not can_take(function, arguments) and can_take(function, arguments + 1)


def per_row(function: RowFunction) -> Process:
    """A function of one row: ``(state, row) -> (state, outputs)``.

    ``row`` is a tuple of the input's columns, ``state`` one of the state columns of the row's key,
    or None if it has none. The function returns the new state (None forgets the key) and an
    iterable of tuples of the output columns (None: nothing to emit). Rows come in the order of
    their input. A key whose state comes back equal has not changed: no checkpoint writes it.

    A function that needs a third argument is given the context of the call that its row is in:
    all rows of a key group, input and epoch of a micro-batch have one, and draw from one
    ``random``, in their order. Its ``timers`` are those of the row's key, a
    :class:`~absflow.columnar.row_timers.KeyTimers`.
    """
    called: Callable[..., Any] = function
    wants_context = takes_context(function, 2)

    def process(rows: pa.Table, state: pa.Table, context: Context) -> Result:
        timers = None
        if wants_context or context.timers:  # without the context it may forget a key that has some
            reached = {}
            if context.watermark is not None:
                reached[Domain.EVENT] = from_datetime(context.watermark)
            timers = TimersOfCall(state.select(list(context.key)), context.timers, reached)
        keys = context.key_of_row.tolist()
        return _result(called, keys, _tuples(rows), state, context, timers, wants_context)

    return update_wrapper(process, function, assigned=(), updated=())


def per_row_timers(function: RowTimerFunction) -> Process:
    """The function for timers of such a stage: ``(timer, state) -> (state, outputs)``.

    It is called for one timer that is due, a :class:`~absflow.columnar.row_timers.Timer`, with the
    state of its key, and returns what a function of one row does. One that needs a third argument
    is given the context.
    """
    called: Callable[..., Any] = function
    wants_context = takes_context(function, 2)

    def timer_first(state: _Values | None, timer: Timer, *more: Context) -> Any:
        return called(timer, state, *more)

    def on_timer(due: pa.Table, state: pa.Table, context: Context) -> Result:
        times = due["time"].cast(pa.int64()).to_pylist()
        reached: dict[Domain, int | list[int]] = {}
        if context.watermark is not None:
            reached[Domain.EVENT] = from_datetime(context.watermark)
        reached[Domain(context.domain)] = [us - 1 for us in times]
        keys = state.select(list(context.key))
        timers = TimersOfCall(keys, context.timers, reached)
        columns = zip(_tuples(keys), times, due["name"].to_pylist(), strict=True)
        fired = [timer_at(key, us, name, context.domain) for key, us, name in columns]
        each = range(len(fired))
        return _result(timer_first, each, fired, state, context, timers, wants_context)

    return in_pieces(update_wrapper(on_timer, function, assigned=(), updated=()), Piece.PER_ROW)


def _result(
    called: Callable[..., Any],
    keys: Iterable[int],
    given: Iterable[Any],
    state: pa.Table,
    context: Context,
    timers: TimersOfCall | None,
    wants_context: bool,
) -> Result:
    """Call a function one by one, and put together what it has made of it.

    Args:
        called: the function.
        keys: of each call the number of its key.
        given: what it gets behind the state of that.
        state: of the keys.
        context: of all calls, as a columnar function gets it.
        timers: of the keys; None if there are none and the function cannot ask for any.
        wants_context: it is given that, too.
    """
    columns = state.drop_columns(list(context.key))
    before = _states(columns, context)
    # A function may change a list that it was given; so what it gets is not what we compare.
    nested = any(pa.types.is_nested(type_) for type_ in columns.schema.types)
    after = _states(columns, context) if nested else before.copy()
    emitted: list[tuple[Any, ...]] = []
    more: tuple[Context, ...] = ()
    if wants_context and timers is not None:
        more = (replace(context, timers=KeyTimers(timers)),)
    for key, what in zip(keys, given, strict=True):
        if timers is not None:
            timers.turn(key)
        made = called(after[key], what, *more)
        if not isinstance(made, tuple) or len(made) != 2:
            raise ResultError(f"returned {made!r}, but (state, outputs) is expected")
        after[key], outputs = made
        if outputs is not None:
            _check_rows(outputs, context.output)
            emitted.extend(outputs)
        if timers is not None and after[key] is None:
            timers.forgotten()
    changed = [key for key, value in enumerate(after) if value is not None and value != before[key]]
    values = _columns("state", [after[key] for key in changed], columns.schema)
    gone = [value is None for value in after]
    added, removed = (None, None) if timers is None else timers.tables(gone)
    return Result(
        output=_columns("output", emitted, context.output),
        state=state_rows(state, changed, values),
        delete=np.array(gone, dtype=bool),
        timers=added,
        delete_timers=removed,
    )


def _check_rows(outputs: object, schema: pa.Schema) -> None:
    """Refuse what is no rows at all, and one row where a list of them is expected."""
    one = isinstance(outputs, tuple) and bool(outputs) and not isinstance(outputs[0], tuple)
    if one or isinstance(outputs, str | bytes) or not isinstance(outputs, Iterable):
        raise ResultError(
            f"returned {outputs!r} as its outputs, but a list of tuples is expected, one for each "
            f"row: [({', '.join(schema.names)})]"
        )


def state_rows(state: pa.Table, changed: Sequence[int], values: pa.Table) -> pa.Table:
    """What a function returns for some keys.

    Args:
        state: k rows of key and state columns, as the function was given them.
        changed: m of these rows.
        values: m rows of new state columns.
    """
    keys = state.select(range(state.num_columns - values.num_columns))
    columns = [*keys.take(pa.array(changed, pa.int64())).columns, *values.columns]
    return pa.table(columns, names=state.column_names).cast(state.schema)


def _states(columns: pa.Table, context: Context) -> list[tuple[Any, ...] | None]:
    """The state of each key, None for a new one."""
    new = context.is_new.tolist()
    return [None if n else values for n, values in zip(new, _tuples(columns), strict=True)]


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows as tuples of Python values."""
    if not table.num_columns:
        return [()] * table.num_rows
    return list(zip(*(python_values(column) for column in table.columns), strict=True))


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """As ``to_pylist``, which makes an Arrow scalar for every value, but ten times as fast."""
    type_ = column.type
    text = pa.types.is_string(type_) or pa.types.is_large_string(type_)
    number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    if text or (number and not column.null_count):
        values: list[Any] = column.to_numpy().tolist()
        return values
    return column.to_pylist()  # type: ignore[no-any-return]


def _columns(what: str, rows: Sequence[tuple[Any, ...] | None], schema: pa.Schema) -> pa.Table:
    """Rows of Python values as a table of ``schema``.

    Raises:
        ResultError: they are none.
    """
    width = len(schema)
    for row in rows:
        if not isinstance(row, tuple) or len(row) != width:
            raise ResultError(
                f"returned a row that does not fit: {what} is {row!r}, but a tuple of {width} "
                f"({', '.join(schema.names)}) is expected"
            )
    if not width:
        return pa.table({"_": pa.nulls(len(rows))}).select([])
    values = list(zip(*rows, strict=True)) if rows else [()] * width
    try:
        for field, column in zip(schema, values, strict=True):
            check_whole(what, field, column)
        arrays = [pa.array(col, type_) for col, type_ in zip(values, schema.types, strict=True)]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ResultError(f"returned a value that does not fit: {error}") from error
    return pa.table(arrays, schema=schema)
