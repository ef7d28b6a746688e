"""The user's process function: what it is given, what it returns, and how its errors are named.

A columnar function is called once per key group, input and epoch of a micro-batch with all rows at
once, never once per row or key::

    def process(rows, state, context):
        totals = np.bincount(context.key_of_row, weights=rows["v"], minlength=state.num_rows)
        ...
        return Result(output=..., state=...)

A function of timers, ``on_timer``, is called with ``rows`` that have the key, ``time`` and ``name``
of timers that are due, one for each key; in every other way it is such a function, too.

``state`` has one row for every distinct key in ``rows``, in the order in which the keys first
appear; ``context.key_of_row`` says for each row of ``rows`` which one is its own. So sums, counts,
first and last values need no join.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.expiry import Expiry, touched_times
from absflow.columnar.keys import factorize
from absflow.columnar.result import (
    Frame,
    Misfit,
    Result,
    Touching,
    check_whole,
    conform,
    new_state,
)
from absflow.columnar.state import HIDDEN_COLUMNS, KeyedState, Touched
from absflow.columnar.timers import NEVER, TIMER_COLUMNS, Domain
from absflow.columnar.whereabouts import line_of, line_of_error, trace_of
from absflow.errors import ProcessError, ResultError
from absflow.protocol.event_time import to_datetime

__all__ = [
    "Call",
    "Context",
    "Frame",
    "Process",
    "Processed",
    "Result",
    "call",
    "call_timers",
    "check_whole",
]


@dataclass(slots=True)
class Context:
    """What a process function may depend on beside its rows and its state.

    Nothing else may go into its result (no clock, no random numbers of its own, no globals that
    change): Spark runs a batch again after a failure, and must get the same rows.

    Attributes:
        stage: the stage's name.
        input: the input that the rows came from; "" for timers.
        key_group: the key group.
        epoch: the stage's epoch: newest checkpoint it snapshotted + 1.
        time_ms: the micro-batch's time, ms since 1970 (UTC).
        key: names of the key columns.
        output: the declared output columns.
        key_of_row: for each row, the row of ``state`` that belongs to its key; int64.
        is_new: for each row of ``state``, whether the key has no state yet, or none any more; bool.
        random: a generator that is seeded from stage, key group and batch.
        watermark: the stage's watermark, a datetime in UTC: no row with an event time up
            to it comes any more. None if there is none yet, or no input has event time.
        timed: whether any input of the stage has event time.
        late: for each row, whether it came late (sources with ``late="process"``); bool.
        timers: by domain ("event", "processing"), for each row of ``state`` the timers of its key
            that wait: a list of ``time`` and ``name``. Empty if the stage has no ``on_timer``. In
            functions of form "per-row", the :class:`KeyTimers` of the row's key.
        domain: of the timers that fire, "event" or "processing"; "" for rows.
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
    watermark: datetime | None = None
    timed: bool = False
    late: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    timers: Any = field(default_factory=dict)
    domain: str = ""


Process = Callable[[Any, Any, Context], Result]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a process function: where it stands, and what it must return.

    ``expiry`` says when the stage's state expires; ``event_column`` which column of the rows has
    their event times, if any does, and ``output_time`` which one of the rows that it emits;
    ``domain`` of which timers it is, "" of rows.
    """

    stage: str
    input: str
    key_group: int
    epoch: int
    batch_id: int
    time_ms: int
    number: int
    key: tuple[str, ...]
    output: pa.Schema
    watermark: int | None = None
    timed: bool = False
    expiry: Expiry | None = None
    event_column: str | None = None
    output_time: str | None = None
    domain: str = ""

    @property
    def reached(self) -> int:
        """What a timer in event time must be later than; ``NEVER`` if the stage has no event time.

        Without event time there is no watermark, and such a timer would wait for ever.
        """
        if not self.timed:
            return NEVER
        return -NEVER if self.watermark is None else self.watermark

    @property
    def expired_upto(self) -> int | None:
        """State that was touched last up to then has expired; None if none has."""
        return None if self.expiry is None else self.expiry.upto(self.watermark, self.time_ms)

    @property
    def seed(self) -> list[int]:
        """Equal for every execution of the same call, different for different calls."""
        return [zlib.crc32(self.stage.encode()), self.key_group, self.batch_id, self.number]

    def at(self, line: str) -> str:
        """How an error message begins; ``line`` is of the user's file."""
        where = f"input {self.input!r}" if self.input else "on_timer"
        return f"stage {self.stage!r}, {where}, {line} (key group {self.key_group})"


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
    late: npt.NDArray[np.bool_]

    @property
    def state(self) -> pa.Table:
        """The keys' state, as the function sees it."""
        names = self.touched.table.column_names
        own = [name for name in HIDDEN_COLUMNS if name in names]
        return self.touched.table.drop_columns(own) if own else self.touched.table

    @property
    def timers(self) -> dict[str, pa.ChunkedArray]:
        """The keys' timers, by domain."""
        table = self.touched.table
        if TIMER_COLUMNS[0] not in table.column_names:
            return {}
        return {domain.value: table[domain.column] for domain in Domain}

    def only(self, start: int, stop: int) -> _Given:
        """The part that belongs to the keys numbered ``start`` to ``stop``."""
        inside = (self.codes >= start) & (self.codes < stop)
        touched = Touched(
            self.touched.table.slice(start, stop - start),
            self.touched.at[start:stop],
            self.touched.below[start:stop],
            self.touched.new[start:stop],
        )
        rows = self.rows.filter(pa.array(inside))
        return _Given(rows, touched, self.codes[inside] - start, self.late[inside])


def call(
    process: Process,
    made: Call,
    rows: pa.Table,
    state: KeyedState,
    late: npt.NDArray[np.bool_] | None = None,
) -> Processed:
    """Run the user's function on ``rows`` and check what it returns.

    Args:
        process: the function.
        made: where this call stands.
        rows: all rows of one input and epoch, in order.
        state: the key group's state.
        late: of each row, whether it came late; None if none did.

    Raises:
        ProcessError: the function raised. Nothing of the batch is committed.
        ResultError: its result does not fit its declaration.
    """
    codes, unique = factorize(rows.select(state.table.column_names[: state.keys]))
    none = np.zeros(rows.num_rows, dtype=bool)
    touched = state.touched(unique, made.expired_upto)
    given = _Given(rows, touched, codes, none if late is None else late)
    times: dict[Domain, npt.NDArray[np.int64]] = {}
    if TIMER_COLUMNS[0] in state.table.column_names:
        past = {Domain.EVENT: made.reached, Domain.PROCESSING: -NEVER}
        times = {domain: np.full(unique.num_rows, time) for domain, time in past.items()}
    at = None if made.expiry is None else _touched_by_rows(made, made.expiry, given)
    return _called(process, made, given, state, times, at, fired=False)


def call_timers(
    on_timer: Process,
    made: Call,
    domain: Domain,
    due: pa.Table,
    popped: Touched,
    state: KeyedState,
) -> Processed:
    """Run the user's function for timers that are due, one for each of some keys.

    Args:
        on_timer: the function.
        made: where this call stands.
        domain: of the timers.
        due: the keys, ``time`` and ``name``.
        popped: the state of these keys, without the timers that are due.
        state: the key group's state.

    Raises:
        ProcessError: as of :func:`call`.
    """
    count = due.num_rows
    given = _Given(due, popped, np.arange(count), np.zeros(count, dtype=bool))
    times = due["time"].cast(pa.int64()).to_numpy()
    past = {Domain.EVENT: np.full(count, made.reached), Domain.PROCESSING: np.full(count, -NEVER)}
    past[domain] = times - 1  # at its own time it may set another, or itself again
    at = None
    if made.expiry is not None:
        at = Touching(_touched_by_timers(made, made.expiry, domain, times), made.expiry.on_read)
    made = replace(made, domain=domain.value)
    return _called(on_timer, made, given, state, past, at, fired=True)


def _touched_by_rows(made: Call, expiry: Expiry, given: _Given) -> Touching:
    """When rows touch their keys: at the greatest of their event times, or at that of the batch."""
    count = given.touched.table.num_rows
    if expiry.domain is Domain.PROCESSING:
        return Touching(np.full(count, made.time_ms * 1_000), expiry.on_read)
    times = touched_times(given.rows[made.event_column], -NEVER)
    latest = np.full(count, -NEVER)
    np.maximum.at(latest, given.codes, times)
    return Touching(latest, expiry.on_read)


def _touched_by_timers(
    made: Call, expiry: Expiry, domain: Domain, times: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """When timers touch their keys: at their own time, if it is the one by which state expires."""
    if expiry.domain is Domain.PROCESSING:
        return np.full(len(times), made.time_ms * 1_000)
    return times if domain is Domain.EVENT else np.full(len(times), -NEVER)


def _called(
    process: Process,
    made: Call,
    given: _Given,
    state: KeyedState,
    past: dict[Domain, npt.NDArray[np.int64]],
    at: Touching | None,
    *,
    fired: bool,
) -> Processed:
    try:
        result = _invoke(process, made, given)
    except Exception as error:
        bad = _first_bad(process, made, given)
        key = given.state.select(range(state.keys)).slice(bad, 1).to_pylist()[0]
        wrong = isinstance(error, ResultError)  # of a form that looks at each row's result
        said = str(error) if wrong else f"raised {type(error).__name__}: {error}{_hint(error)}"
        raise (ResultError if wrong else ProcessError)(
            f"{made.at(line_of_error(error, process))}: the process function {said}; the first bad "
            f"row has key {key}. The batch is not committed; mend the function or the row, and "
            f"start the job again\n{trace_of(error)}"
        ) from error
    try:
        if not isinstance(result, Result):
            raise Misfit(
                f"the process function returned {type(result).__name__}, but an absflow.Result "
                "is expected; return Result(output=..., state=...), or say what else the function "
                'is: stage(..., form="per-key") or "per-row", or "pandas"'
            )
        after = new_state(result, given.touched, state, made.epoch, past, at, fired=fired)
        if result.output is None:
            return Processed(None, after)
        output = conform(result.output, made.output, "output")
        _check_times(output, made.output_time)
        return Processed(output, after)
    except Misfit as wrong:
        raise ResultError(f"{made.at(line_of(process))}: {wrong}") from wrong.__cause__


def _hint(error: Exception) -> str:
    """Of a function for pandas that was given Arrow's tables, what to declare; else nothing."""
    if isinstance(error, AttributeError) and isinstance(error.obj, pa.Table | pa.ChunkedArray):
        return (
            " (it was given pyarrow Tables; if it is written for pandas, declare "
            'stage(..., form="pandas"))'
        )
    return ""


def _check_times(output: pa.Table, column: str | None) -> None:
    """Refuse rows without an event time, if they are to have one."""
    if column is not None and output[column].null_count:
        place = int(pc.index(output[column].is_null(), True).as_py())
        raise Misfit(
            f"output has no time in column {column!r}, which is declared as the event time of its "
            f"rows, in {output.slice(place, 1).to_pylist()[0]}; leave such rows out, or give them "
            "one"
        )


def _invoke(process: Process, made: Call, given: _Given) -> Result:
    context = Context(
        stage=made.stage,
        input=made.input,
        key_group=made.key_group,
        epoch=made.epoch,
        time_ms=made.time_ms,
        watermark=to_datetime(made.watermark),
        timed=made.timed,
        late=given.late,
        timers=given.timers,
        key=made.key,
        output=made.output,
        key_of_row=given.codes,
        is_new=given.touched.new,
        random=np.random.Generator(np.random.Philox(made.seed)),
        domain=made.domain,
    )
    return process(given.rows, given.state, context)


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
