"""Process functions written for Spark's ``applyInPandasWithState``, run unchanged.

Such a function is called once per key, with the key, an iterator of pandas frames and a
``GroupState``, and returns an iterable of frames::

    def count(key, frames, state):
        n = sum(len(frame) for frame in frames) + (state.get[0] if state.exists else 0)
        state.update((n,))
        yield pd.DataFrame({"word": [key[0]], "n": [n]})

It is given the :class:`~absflow.columnar.process.Context`, too, if it has a fourth parameter.

Spark pays about a millisecond for each key of each batch around it: rows are cut, state is written
as JSON and pickled, key by key. Here both are converted once for all keys of a key group, by
Spark's own conversions, so that the function meets the very values that it is used to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import update_wrapper
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.conversion import ArrowTableToRowsConversion, LocalDataToArrowConversion
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

from absflow.columnar.forms import state_rows, takes_context
from absflow.columnar.pieces import replaced
from absflow.columnar.process import Context, Process, Result, check_whole
from absflow.columnar.timers import TIMEOUT_FIELDS, Piece, in_pieces
from absflow.spark.worker.frames import (
    by_key,
    checked_frames,
    fitting,
    frames_of,
    keys_of,
    output_of,
)
from absflow.spark.worker.group_state import GroupStateOfKey, timeout_timers

__all__ = ["KeyFunction", "per_key", "per_key_timeout"]

_Key: TypeAlias = "tuple[Any, ...]"
_Frames: TypeAlias = "Iterator[pd.DataFrame]"
KeyFunction: TypeAlias = (
    "Callable[[_Key, _Frames, GroupState], Iterable[pd.DataFrame]] "
    "| Callable[[_Key, _Frames, GroupState, Context], Iterable[pd.DataFrame]]"
)


def per_key(function: KeyFunction, time_zone: str, timeout: str = "NoTimeout") -> Process:
    """A columnar process function that calls ``function`` for every key.

    Args:
        function: as for ``applyInPandasWithState``. It gets
            one frame with all rows of the key that came in this micro-batch on this input between
            two barriers, all columns, index from 0 on. One that needs a fourth argument is given
            the context, which the keys of a key group have in common.
        time_zone: the session's; timestamps in frames are local times of it, as in Spark.
        timeout: Spark's ``GroupStateTimeout``; with one, the state has :data:`TIMEOUT_FIELDS`, too.
    """
    calls = _Calls(function, time_zone, timeout)

    def process(rows: pa.Table, state: pa.Table, context: Context) -> Result:
        ordered, ends = by_key(rows, context.key_of_row, state.num_rows)
        frames = frames_of(ordered, ends, time_zone)
        return calls.result((iter((frame,)) for frame in frames), state, context, timed_out=False)

    return update_wrapper(process, function, assigned=(), updated=())


def per_key_timeout(
    function: KeyFunction, time_zone: str, timeout: str, columns: Sequence[str]
) -> Process:
    """The function for timers of such a stage: it calls ``function`` for every key that timed out.

    Args:
        function: as for :func:`per_key`. As in Spark it gets one frame without rows, and a state of
            which ``hasTimedOut`` is true.
        time_zone: the session's.
        timeout: Spark's ``GroupStateTimeout``.
        columns: of the input.
    """
    calls = _Calls(function, time_zone, timeout)

    def on_timer(rows: pa.Table, state: pa.Table, context: Context) -> Result:
        frames = ([pd.DataFrame(columns=list(columns))] for _ in range(rows.num_rows))
        return calls.result(frames, state, context, timed_out=True)

    return in_pieces(update_wrapper(on_timer, function, assigned=(), updated=()), Piece.PER_KEY)


class _Calls:
    """Calls a function for keys, and puts together what it has made of them."""

    def __init__(self, function: KeyFunction, time_zone: str, timeout: str) -> None:
        self._function: Callable[..., Any] = function
        self._time_zone = time_zone
        self._timeout = timeout
        self._wants_context = takes_context(function, 3)

    def result(
        self,
        frames: Iterable[Iterable[pd.DataFrame]],
        state: pa.Table,
        context: Context,
        *,
        timed_out: bool,
    ) -> Result:
        """The result of one call for each row of ``state``, with the frames of its key."""
        timed = self._timeout != GroupStateTimeout.NoTimeout
        own = [field.name for field in TIMEOUT_FIELDS] if timed else []
        columns = state.drop_columns([*context.key, *own])
        schema = from_arrow_schema(columns.schema)
        values = ArrowTableToRowsConversion.convert(columns, schema)
        gone = context.is_new
        if timed:
            gone = gone | ~pc.fill_null(state["_exists"], False).to_numpy()
        there = [None if none else v for none, v in zip(gone.tolist(), values, strict=True)]
        states = [
            GroupStateOfKey(value, schema, context, self._timeout, timed_out=timed_out)
            for value in there
        ]
        output: list[pd.DataFrame] = []
        more = (context,) if self._wants_context else ()
        keys = keys_of(state.select(list(context.key)), self._time_zone)
        # A function may write to its frame, which pandas would warn of, for it is part of another.
        with pd.option_context("mode.chained_assignment", None):
            for key, given, of_key in zip(keys, frames, states, strict=True):
                emitted = self._function(key, given, of_key, *more)
                output.extend(checked_frames(emitted, context.output))
        emitted_rows = output_of(output, context.output, self._time_zone)
        if timed:
            return self._with_timeouts(emitted_rows, state, states, context)
        return Result(
            output=emitted_rows,
            state=_updated(state, states, schema),
            delete=np.array([of_key.removed for of_key in states], dtype=bool),
        )

    def _with_timeouts(
        self,
        output: pa.Table | None,
        state: pa.Table,
        states: list[GroupStateOfKey],
        context: Context,
    ) -> Result:
        """Each call has cleared the key's timeout, unless it has set another (Spark)."""
        own = [field.name for field in TIMEOUT_FIELDS]
        rows = state.drop_columns(own)
        schema = from_arrow_schema(rows.drop_columns(list(context.key)).schema)
        updated = _updated(rows, states, schema)
        if updated is not None:
            which = np.flatnonzero([of_key.updated for of_key in states])
            rows = replaced(rows, updated, which)
        exists = np.array([of_key.exists for of_key in states], dtype=bool)
        timeouts = [of_key.timeout_ms for of_key in states]
        before = state["_timeout_ms"].to_pylist()
        rows = rows.append_column(TIMEOUT_FIELDS[0], pa.array(exists))
        rows = rows.append_column(TIMEOUT_FIELDS[1], pa.array(timeouts, pa.int64()))
        kept = exists | np.array([at is not None for at in timeouts], dtype=bool)
        changed = [
            keeps and (of_key.updated or of_key.removed or now != then)
            for keeps, of_key, now, then in zip(kept, states, timeouts, before, strict=True)
        ]
        keys = state.select(list(context.key))
        domain = "event" if self._timeout == GroupStateTimeout.EventTimeTimeout else "processing"
        # The engine has taken the timer that has fired; to delete it again does nothing.
        return Result(
            output=output,
            state=rows.filter(pa.array(changed, pa.bool_())),
            delete=~kept,
            timers=timeout_timers(
                keys, [now if k else None for now, k in zip(timeouts, kept, strict=True)], domain
            ),
            delete_timers=timeout_timers(keys, before, domain),
        )


def _updated(state: pa.Table, states: list[GroupStateOfKey], schema: StructType) -> pa.Table | None:
    """The rows of state of the keys that were updated."""
    changed = [at for at, of_key in enumerate(states) if of_key.updated]
    if not changed:
        return None
    new = [states[at].value for at in changed]
    with fitting():
        values = LocalDataToArrowConversion.convert(new, schema, False)
        for field, column in zip(values.schema, zip(*new, strict=True), strict=True):
            check_whole("state", field, column)
    return state_rows(state, changed, values)
