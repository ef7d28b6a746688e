"""Spark's ``StatefulProcessor`` classes (``transformWithState``), run unchanged.

Spark asks the JVM for each variable of each key, by a socket, a pickled row at a time. Here the
state of all keys of a key group is converted at once, and a key's call finds it in memory
(:mod:`~absflow.spark.worker.processor_variables`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)

from absflow.columnar.firing import MAX_ROUNDS
from absflow.columnar.process import Context, Process, Result
from absflow.columnar.timers import Domain, Piece, in_pieces
from absflow.errors import ProcessError
from absflow.spark.worker.frames import by_key, checked_frames, frames_of, output_of, scalars_of
from absflow.spark.worker.group_state import spark_watermark_ms
from absflow.spark.worker.plain_rows import checked_rows, keys_of_rows, rows_of, table_of_rows
from absflow.spark.worker.processor_handle import Handle
from absflow.spark.worker.processor_timers import CallTimers, timer_ms
from absflow.spark.worker.processor_variables import Cells, Variable

__all__ = ["ProcessorFunction", "ProcessorStage"]

_DOMAINS = {"processingtime": Domain.PROCESSING, "eventtime": Domain.EVENT}


@dataclass(frozen=True, slots=True)
class _Way:
    """How a processor is given keys and rows, and what it emits."""

    keys: Callable[[pa.Table, str], Sequence[tuple[Any, ...]]]
    rows: Callable[[pa.Table, list[int], str], Iterator[Iterator[Any]]]
    checked: Callable[[object, pa.Schema], Iterable[Any]]
    output: Callable[[list[Any], pa.Schema, str], pa.Table | None]


def _one_frame(rows: pa.Table, ends: list[int], time_zone: str) -> Iterator[Iterator[Any]]:
    return (iter((frame,)) for frame in frames_of(_widened(rows), ends, time_zone))


def _widened(rows: pa.Table) -> pa.Table:
    """Numbers as Spark's ``transformWithStateInPandas`` has them: it makes frames of Python's."""
    widened = {
        **dict.fromkeys((pa.int8(), pa.int16(), pa.int32()), pa.int64()),
        pa.float32(): pa.float64(),
    }
    return rows.cast(pa.schema([f.with_type(widened.get(f.type, f.type)) for f in rows.schema]))


_PANDAS = _Way(scalars_of, _one_frame, checked_frames, output_of)
_ROWS = _Way(keys_of_rows, rows_of, checked_rows, table_of_rows)


class ProcessorStage:
    """The functions of a stage that a processor makes: for rows, and for timers.

    A task initialises the processor when it first calls it, and closes it at its end, as Spark
    does; both functions have it in common.
    """

    def __init__(
        self,
        stage: str,
        processor: StatefulProcessor,
        variables: Mapping[str, Variable],
        time_mode: str,
        time_zone: str,
        *,
        in_pandas: bool,
    ) -> None:
        """Of a processor as its author has made it.

        Args:
            stage: the stage's name.
            processor: not initialised.
            variables: what it asks for in ``init``.
            time_mode: "none", "processingtime" or "eventtime".
            time_zone: the session's.
            in_pandas: it is given frames, as by ``transformWithStateInPandas``, not rows.
        """
        self._stage = stage
        self._processor = processor
        self._variables = variables
        self._time_mode = time_mode
        self._time_zone = time_zone
        self._in_pandas = in_pandas
        self._handle: Handle | None = None
        self._cells: Mapping[str, Cells] = {}

    def functions(self) -> tuple[Process, Process | None]:
        """For rows, and for timers if there are any."""
        given = self._processor
        on_rows = _OnRows(self, given.handleInputRows)
        if self._time_mode not in _DOMAINS:
            return on_rows, None
        return on_rows, _OnTimer(self, given.handleExpiredTimer)

    def initial(self) -> Process:
        """The function for initial state."""
        return _OnInitial(self, self._processor.handleInitialState)

    @property
    def waits_for_event_time(self) -> bool:
        """Whether its timers need an input with event time."""
        return self._time_mode == "eventtime"

    def on_rows(self, rows: pa.Table, state: pa.Table, context: Context) -> Result:
        """What ``handleInputRows`` makes of the rows of some keys."""
        ordered, ends = by_key(rows, context.key_of_row, state.num_rows)
        given = self._way.rows(ordered, ends, self._time_zone)
        times = self._times(context)
        handle = self._begin(state, context)
        # What Spark's watermark has come to is due; an overdue processing time the engine finds.
        reached_ms = times.getCurrentWatermarkInMs() if self.waits_for_event_time else None

        def called(key: tuple[Any, ...]) -> Iterator[object]:
            yield self._processor.handleInputRows(key, next(given), times)
            yield from self._overdue(handle, key, times, reached_ms)

        return self._result(called, state, context)

    def on_timers(self, due: pa.Table, state: pa.Table, context: Context) -> Result:
        """What ``handleExpiredTimer`` makes of one timer of each of some keys."""
        times = self._times(context)
        handle = self._begin(state, context)
        due_ms = [timer_ms(time) for time in due["time"].cast(pa.int64()).to_pylist()]

        def called(key: tuple[Any, ...]) -> Iterator[object]:
            time_ms = due_ms[handle.at]
            yield from self._expired(handle, key, times, time_ms)
            yield from self._overdue(handle, key, times, time_ms)

        return self._result(called, state, context)

    def on_initial(self, rows: pa.Table, state: pa.Table, context: Context) -> Result:
        """What ``handleInitialState`` makes of the initial rows of some keys.

        It is given each Row by itself, and a frame with all rows of its key, as by Spark.
        """
        ordered, ends = by_key(rows, context.key_of_row, state.num_rows)
        given = self._way.rows(ordered, ends, self._time_zone)
        times = self._times(context)
        self._begin(state, context)

        def called(key: tuple[Any, ...]) -> Iterator[object]:
            for each in next(given):
                self._processor.handleInitialState(key, each, times)
            return iter(())

        return self._result(called, state, context)

    def close(self) -> None:
        """Close the processor if this task has initialised it.

        Raises:
            ProcessError: its ``close`` raised.
        """
        if self._handle is None:
            return
        self._handle = None
        try:
            self._processor.close()
        except Exception as error:
            raise ProcessError(
                f"stage {self._stage!r}: close of {type(self._processor).__name__} raised "
                f"{type(error).__name__}: {error}. The batch is not committed"
            ) from error

    @property
    def _way(self) -> _Way:
        return _PANDAS if self._in_pandas else _ROWS

    def _begin(self, state: pa.Table, context: Context) -> Handle:
        """The handle, with the state and the timers of the keys of a call."""
        if self._handle is None:
            handle = Handle(self._variables, self._time_mode)
            self._processor.init(handle)
            self._cells = handle.initialised()
            self._handle = handle
        for name, cells in self._cells.items():
            cells.begin(state[name], context.time_ms)
        if self._time_mode in _DOMAINS:
            self._handle.timers = CallTimers(context.timers[_DOMAINS[self._time_mode].value])
        return self._handle

    def _times(self, context: Context) -> TimerValues:
        if self._time_mode == "none":
            return TimerValues(-1, -1)
        watermark = context.watermark
        return TimerValues(
            context.time_ms, 0 if watermark is None else spark_watermark_ms(watermark)
        )

    def _expired(
        self, handle: Handle, key: tuple[Any, ...], times: TimerValues, time_ms: int
    ) -> Iterator[object]:
        """What the handler of one timer emits."""
        assert handle.timers is not None
        handle.timers.firing = time_ms
        yield self._processor.handleExpiredTimer(key, times, ExpiredTimerInfo(time_ms))
        handle.timers.firing = None

    def _overdue(
        self, handle: Handle, key: tuple[Any, ...], times: TimerValues, reached_ms: int | None
    ) -> Iterator[object]:
        """What the handlers emit of timers that the call has set for a time that has come."""
        if handle.timers is None or reached_ms is None:
            return
        for _ in range(MAX_ROUNDS):
            time_ms = handle.timers.overdue(handle.at, reached_ms)
            if time_ms is None:
                return
            yield from self._expired(handle, key, times, time_ms)
        raise ValueError(
            f"{MAX_ROUNDS} timers fired that were set for times up to {reached_ms}, and one more "
            "is; the handler sets one each time, so set it further ahead"
        )

    def _result(
        self,
        called: Callable[[tuple[Any, ...]], Iterator[object]],
        state: pa.Table,
        context: Context,
    ) -> Result:
        """Call the processor for each key, and put together what it has made of them."""
        way, handle = self._way, self._handle
        assert handle is not None
        keys = state.select(list(context.key))
        output: list[Any] = []
        try:
            with pd.option_context("mode.chained_assignment", None):
                for at, key in enumerate(way.keys(keys, self._time_zone)):
                    handle.at = at
                    for made in called(key):
                        output.extend(way.checked(made, context.output))
        finally:
            handle.leave()
        emitted = way.output(output, context.output, self._time_zone)
        there = np.zeros(state.num_rows, dtype=bool)
        for cells in self._cells.values():
            there |= cells.there()
        timers = delete_timers = None
        if handle.timers is not None:
            timers, delete_timers = handle.timers.set_by_call(keys, _DOMAINS[self._time_mode].value)
            for at in np.flatnonzero(~there).tolist():
                there[at] = handle.timers.any_of(at)
        return Result(
            output=emitted,
            state=self._changed(keys, there),
            delete=~there,
            timers=timers,
            delete_timers=delete_timers,
        )

    def _changed(self, keys: pa.Table, kept: npt.NDArray[np.bool_]) -> pa.Table | None:
        """The rows of the keys whose state the call has changed, but for those that go."""
        changed = np.zeros(keys.num_rows, dtype=bool)
        for cells in self._cells.values():
            changed[list(cells.changed)] = True
        which = np.flatnonzero(changed & kept)
        if not len(which):
            return None
        rows = keys.take(pa.array(which))
        for name, cells in self._cells.items():
            rows = rows.append_column(name, cells.rows(which))
        return rows


class ProcessorFunction:
    """One of the functions of a stage that a processor makes."""

    def __init__(self, stage: ProcessorStage, called: Callable[..., object]) -> None:
        """Of a stage; ``called`` is the author's method, where errors look for a line."""
        self.stage = stage
        self.waits_for_event_time = stage.waits_for_event_time
        self.__wrapped__ = called
        in_pieces(self, Piece.PER_KEY)

    def close(self) -> None:
        """Close the processor, if that has not been done; at the end of each task."""
        self.stage.close()


class _OnRows(ProcessorFunction):
    def __call__(self, rows: pa.Table, state: pa.Table, context: Context) -> Result:
        return self.stage.on_rows(rows, state, context)


class _OnTimer(ProcessorFunction):
    def __call__(self, due: pa.Table, state: pa.Table, context: Context) -> Result:
        return self.stage.on_timers(due, state, context)


class _OnInitial(ProcessorFunction):
    def __call__(self, rows: pa.Table, state: pa.Table, context: Context) -> Result:
        return self.stage.on_initial(rows, state, context)
