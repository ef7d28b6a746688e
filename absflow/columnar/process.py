"""The user's process function: what it is given, what it returns, and how its errors are named.

A columnar function is called once per key group, input and epoch of a micro-batch with all rows at
once, never once per row or key::

    def process(rows, state, context):
        totals = np.bincount(context.key_of_row, weights=rows["v"], minlength=state.num_rows)
        ...
        return Result(output=..., state=...)

``state`` has one row for every distinct key in ``rows``, in the order in which the keys first
appear; ``context.key_of_row`` says for each row of ``rows`` which one is its own. So sums, counts,
first and last values need no join.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from absflow.columnar.keys import factorize, locate
from absflow.columnar.state import KeyedState, Touched
from absflow.columnar.whereabouts import line_of, line_of_error, trace_of
from absflow.errors import ProcessError, ResultError

__all__ = ["Call", "Context", "Frame", "Process", "Processed", "Result", "call"]

Frame: TypeAlias = "pa.Table | pd.DataFrame"


@dataclass(frozen=True, slots=True)
class Result:
    """What a process function returns; each part may be left out.

    Attributes:
        output: rows to emit, with the stage's output columns in any order.
        state: new state of some or all of the keys that were given, with key and state columns.
        delete: flags, one for each row of the ``state`` that was given: forget this key.
    """

    output: Frame | None = None
    state: Frame | None = None
    delete: npt.ArrayLike | None = None


@dataclass(slots=True)
class Context:
    """What a process function may depend on beside its rows and its state.

    Nothing else may go into its result (no clock, no random numbers of its own, no globals that
    change): Spark runs a batch again after a failure, and must get the same rows.

    Attributes:
        stage: the stage's name.
        input: the input that the rows came from.
        key_group: the key group.
        epoch: the stage's epoch: newest checkpoint it snapshotted + 1.
        time_ms: the micro-batch's time, ms since 1970 (UTC).
        key: names of the key columns.
        output: the declared output columns.
        key_of_row: for each row, the row of ``state`` that belongs to its key; int64.
        is_new: for each row of ``state``, whether the key has no state yet; bool.
        random: a generator that is seeded from stage, key group and batch.
    """

    stage: str
    input: str
    key_group: int
    epoch: int
    time_ms: int
    key: tuple[str, ...]
    output: pa.Schema
    key_of_row: npt.NDArray[np.int64]
    is_new: npt.NDArray[np.bool_]
    random: np.random.Generator


Process = Callable[[Any, Any, Context], Result]


class _Misfit(Exception):
    """What a process function returned is not what its stage declares."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a process function: where it stands, and what it must return."""

    stage: str
    input: str
    key_group: int
    epoch: int
    batch_id: int
    time_ms: int
    number: int
    key: tuple[str, ...]
    output: pa.Schema

    @property
    def seed(self) -> list[int]:
        """Equal for every execution of the same call, different for different calls."""
        return [zlib.crc32(self.stage.encode()), self.key_group, self.batch_id, self.number]

    def at(self, line: str) -> str:
        """How an error message begins; ``line`` is of the user's file."""
        return f"stage {self.stage!r}, input {self.input!r}, {line} (key group {self.key_group})"


@dataclass(frozen=True, slots=True)
class Processed:
    """The checked result of a call: rows to emit, and the key group's state after it."""

    output: pa.Table | None
    state: KeyedState


@dataclass(frozen=True, slots=True)
class _Given:
    """What the function is given: rows, their keys' state, and which belongs to which."""

    rows: pa.Table
    touched: Touched
    codes: npt.NDArray[np.int64]

    def only(self, start: int, stop: int) -> _Given:
        """The part that belongs to the keys numbered ``start`` to ``stop``."""
        inside = (self.codes >= start) & (self.codes < stop)
        touched = Touched(
            self.touched.table.slice(start, stop - start),
            self.touched.at[start:stop],
            self.touched.below[start:stop],
            self.touched.new[start:stop],
        )
        return _Given(self.rows.filter(pa.array(inside)), touched, self.codes[inside] - start)


def call(process: Process, made: Call, rows: pa.Table, state: KeyedState) -> Processed:
    """Run the user's function on ``rows`` and check what it returns.

    Args:
        process: the function.
        made: where this call stands.
        rows: all rows of one input and epoch, in order.
        state: the key group's state.

    Raises:
        ProcessError: the function raised. Nothing of the batch is committed.
        ResultError: its result does not fit its declaration.
    """
    codes, unique = factorize(rows.select(state.table.column_names[: state.keys]))
    given = _Given(rows, state.touched(unique), codes)
    try:
        result = _invoke(process, made, given)
    except Exception as error:
        bad = _first_bad(process, made, given)
        key = given.touched.table.select(unique.column_names).slice(bad, 1).to_pylist()[0]
        wrong = isinstance(error, ResultError)  # of a form that looks at each row's result
        said = str(error) if wrong else f"raised {type(error).__name__}: {error}"
        raise (ResultError if wrong else ProcessError)(
            f"{made.at(line_of_error(error, process))}: the process function {said}; the first bad "
            f"row has key {key}. The batch is not committed; mend the function or the row, and "
            f"start the job again\n{trace_of(error)}"
        ) from error
    try:
        return _checked(result, made, given.touched, state)
    except _Misfit as wrong:
        raise ResultError(f"{made.at(line_of(process))}: {wrong}") from wrong.__cause__


def _checked(result: object, made: Call, touched: Touched, state: KeyedState) -> Processed:
    """What a call has come to, once it is seen to fit what is declared."""
    if not isinstance(result, Result):
        raise _Misfit(
            f"the process function returned {type(result).__name__}, but an absflow.Result "
            "is expected; return Result(output=..., state=...), or say what else the function is: "
            'stage(..., form="per-key") or "per-row", or "pandas"'
        )
    after = _new_state(made.epoch, result, touched, state)
    if result.output is None:
        return Processed(None, after)
    return Processed(_conform(result.output, made.output, "output"), after)


def _invoke(process: Process, made: Call, given: _Given) -> Result:
    context = Context(
        stage=made.stage,
        input=made.input,
        key_group=made.key_group,
        epoch=made.epoch,
        time_ms=made.time_ms,
        key=made.key,
        output=made.output,
        key_of_row=given.codes,
        is_new=given.touched.new,
        random=np.random.Generator(np.random.Philox(made.seed)),
    )
    return process(given.rows, given.touched.table, context)


def _first_bad(process: Process, made: Call, given: _Given) -> int:
    """The first key whose rows alone make the function raise; bisection, on the error path only."""
    start, stop = 0, given.touched.table.num_rows
    while stop - start > 1:
        middle = (start + stop) // 2
        if _raises(process, made, given.only(start, middle)):
            stop = middle
        elif _raises(process, made, given.only(middle, stop)):
            start = middle
        else:
            break  # only both halves together are bad
    return start


def _raises(process: Process, made: Call, given: _Given) -> bool:
    try:
        _invoke(process, made, given)
    except Exception:
        return True
    return False


def _new_state(epoch: int, result: Result, touched: Touched, before: KeyedState) -> KeyedState:
    after = before
    given = touched.table.num_rows
    if result.state is not None:
        rows = _conform(result.state, touched.table.schema, "state")
        names = rows.column_names[: before.keys]
        keys, known = rows.select(names), touched.table.select(names)
        if rows.num_rows == given and keys.equals(known):
            which = np.arange(given)
        else:
            which = locate(keys, known)
            _check_keys(keys, which)
        after = after.changed(touched, rows, which, epoch)
    if result.delete is not None:
        flags = np.asarray(result.delete)
        if flags.dtype != np.bool_ or flags.shape != (given,):
            raise _Misfit(
                f"delete has dtype {flags.dtype} and shape {flags.shape}, but one bool for "
                f"each of the {given} rows of state is expected"
            )
        if flags.any():
            if result.state is not None:
                # Keys that are new in this very call must be found again to be deleted.
                touched = after.touched(touched.table.select(range(before.keys)))
            after = after.deleted(touched, np.flatnonzero(flags), epoch)
    return after


def _check_keys(keys: pa.Table, which: npt.NDArray[np.int64]) -> None:
    if (which < 0).any():
        stray = keys.slice(int(np.flatnonzero(which < 0)[0]), 1).to_pylist()[0]
        raise _Misfit(
            f"the process function returned state for key {stray}, which none of the rows "
            "has; only keys of the rows that were given can change"
        )
    if len(np.unique(which)) != len(which):
        values, counts = np.unique(which, return_counts=True)
        twice = int(np.flatnonzero(which == values[counts > 1][0])[0])
        raise _Misfit(
            f"the process function returned several state rows for key "
            f"{keys.slice(twice, 1).to_pylist()[0]}, but a key has one"
        )


def _conform(frame: Frame, schema: pa.Schema, what: str) -> pa.Table:
    """``frame`` as a table with exactly ``schema``, or an error that names the first difference."""
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    names = list(frame.columns) if isinstance(frame, pd.DataFrame) else None
    if isinstance(frame, pa.Table):
        names = frame.column_names
    if names is None:
        raise _Misfit(
            f"{what} is a {type(frame).__name__}, but a pyarrow Table or pandas DataFrame "
            "is expected"
        )
    if sorted(map(str, names)) != sorted(schema.names):
        missing = sorted(set(schema.names) - set(map(str, names)))
        extra = sorted(set(map(str, names)) - set(schema.names))
        raise _Misfit(
            f"{what} has columns {list(map(str, names))}, but {schema.names} are declared"
            + (f"; missing {missing}" if missing else "")
            + (f"; not declared {extra}" if extra else "")
        )
    columns = [_column(frame, declared, what) for declared in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(frame: Frame, declared: pa.Field, what: str) -> pa.Array:
    values = frame[declared.name]
    try:
        if isinstance(frame, pd.DataFrame):
            if values.dtype == object:
                check_whole(what, declared, values.tolist())
            # A NaN becomes null: pandas has it for a null, too.
            return pa.Array.from_pandas(values, type=declared.type)
        values = values if values.type == declared.type else values.cast(declared.type)
        if pa.types.is_decimal(declared.type):
            # Arrow's product of decimals outgrows its type, and a file would keep a part of it.
            values.validate(full=True)
        return values
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        seen = values.dtype if isinstance(frame, pd.DataFrame) else values.type
        raise _Misfit(
            f"{what} column {declared.name!r} has type {seen}, but {declared.type} is "
            f"declared and its values do not fit ({error})"
        ) from error


_WHOLE = {int, type(None)}


def check_whole(what: str, field: pa.Field, values: Sequence[Any]) -> None:
    """Refuse a fraction in a column of integers: Arrow would keep what is before its point.

    Raises:
        TypeError: naming the column and the value.
    """
    if not pa.types.is_integer(field.type) or set(map(type, values)) <= _WHOLE:
        return
    for value in values:
        # A decimal, too; and what is no number Arrow refuses itself.
        if isinstance(value, float | Decimal | np.floating) and value != value // 1:
            raise TypeError(
                f"{what} has {value!r} in column {field.name!r}, but an integer is declared "
                f"({field.type}); round it, or declare the column as double"
            )
