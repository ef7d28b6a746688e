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

from collections.abc import Callable, Iterable, Iterator
from functools import update_wrapper
from typing import Any, NoReturn, TypeAlias, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.conversion import (
    ArrowBatchTransformer,
    ArrowTableToRowsConversion,
    LocalDataToArrowConversion,
    PandasToArrowConversion,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import Row, StructType

from absflow.columnar.forms import state_rows, takes_context
from absflow.columnar.process import Context, Process, Result, check_whole

__all__ = ["KeyFunction", "per_key"]

_Key: TypeAlias = "tuple[Any, ...]"
_Frames: TypeAlias = "Iterator[pd.DataFrame]"
KeyFunction: TypeAlias = (
    "Callable[[_Key, _Frames, GroupState], Iterable[pd.DataFrame]] "
    "| Callable[[_Key, _Frames, GroupState, Context], Iterable[pd.DataFrame]]"
)


class _State(GroupState):
    """The state of one key, during one call."""

    def __init__(self, value: Row | None, time_ms: int, schema: StructType) -> None:
        super().__init__(
            optionalValue=value,  # type: ignore[arg-type]  # None is what Spark gives, too
            batchProcessingTimeMs=time_ms,
            eventTimeWatermarkMs=GroupState.NO_TIMESTAMP,
            timeoutConf=GroupStateTimeout.NoTimeout,
            hasTimedOut=False,
            watermarkPresent=False,
            defined=value is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=GroupState.NO_TIMESTAMP,
            keyAsUnsafe=b"",
            valueSchema=schema,
        )

    @property
    def value(self) -> Row:
        """What the key has from now on; of use if it was updated."""
        return self._value

    @property
    def updated(self) -> bool:
        """Whether ``update`` was called last."""
        return self._updated

    @property
    def removed(self) -> bool:
        """Whether ``remove`` was called last."""
        return self._removed

    def setTimeoutDuration(self, durationMs: int) -> NoReturn:
        raise NotImplementedError(_NO_TIMERS.format("setTimeoutDuration"))

    def setTimeoutTimestamp(self, timestampMs: int) -> NoReturn:
        raise NotImplementedError(_NO_TIMERS.format("setTimeoutTimestamp"))

    def getCurrentWatermarkMs(self) -> NoReturn:
        raise NotImplementedError(_NO_WATERMARK)


_NO_TIMERS = (
    "{} was called, but absflow has no timers yet, so no key can time out; keep the time in the "
    "state, and compare it with getCurrentProcessingTimeMs() when the key's next row comes"
)
_NO_WATERMARK = (
    "getCurrentWatermarkMs was called, but absflow has no event time yet, so there is no "
    "watermark; keep the greatest event time in the state, or use getCurrentProcessingTimeMs()"
)


def per_key(function: KeyFunction, time_zone: str) -> Process:
    """A columnar process function that calls ``function`` for every key.

    Args:
        function: as for ``applyInPandasWithState`` with ``GroupStateTimeout.NoTimeout``. It gets
            one frame with all rows of the key that came in this micro-batch on this input between
            two barriers, all columns, index from 0 on. One that needs a fourth argument is given
            the context, which the keys of a key group have in common.
        time_zone: the session's; timestamps in frames are local times of it, as in Spark.
    """
    called: Callable[..., Any] = function
    wants_context = takes_context(function, 3)

    def process(rows: pa.Table, state: pa.Table, context: Context) -> Result:
        order = np.argsort(context.key_of_row, kind="stable")
        ends = np.cumsum(np.bincount(context.key_of_row, minlength=state.num_rows)).tolist()
        frames = _frames(rows.take(pa.array(order)), ends, time_zone)
        columns = state.drop_columns(list(context.key))
        schema = from_arrow_schema(columns.schema)
        values = ArrowTableToRowsConversion.convert(columns, schema)
        states = [
            _State(None if new else value, context.time_ms, schema)
            for new, value in zip(context.is_new.tolist(), values, strict=True)
        ]
        output: list[pd.DataFrame] = []
        more = (context,) if wants_context else ()
        # A function may write to its frame, which pandas would warn of, for it is part of another.
        with pd.option_context("mode.chained_assignment", None):
            for key, frame, of_key in zip(
                _keys(state.select(list(context.key)), time_zone), frames, states, strict=True
            ):
                emitted = called(key, iter((frame,)), of_key, *more)
                output.extend(_checked(emitted, context.output))
        return Result(
            output=_output(output, context.output, time_zone),
            state=_updated(state, states, schema),
            delete=np.array([of_key.removed for of_key in states], dtype=bool),
        )

    return update_wrapper(process, function, assigned=(), updated=())


def _localized(table: pa.Table, time_zone: str) -> pa.Table:
    """With timestamps of the session's time zone, as Spark ships them to its workers."""
    schema = [
        f.with_type(pa.timestamp("us", tz=time_zone))
        if pa.types.is_timestamp(f.type) and f.type.tz
        else f
        for f in table.schema
    ]
    return table.cast(pa.schema(schema))


def _series(table: pa.Table, time_zone: str) -> list[pd.Series]:
    made = ArrowBatchTransformer.to_pandas(_localized(table, time_zone), timezone=time_zone)
    return cast("list[pd.Series]", made)


def _depends_on_nulls(column: pa.ChunkedArray) -> bool:
    """Whether pandas gives the values another type for a null among them.

    Spark converts the rows of each key alone, so such a column has one type for a key with a null
    and another for one without.
    """
    number = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    return bool(column.null_count) and number


def _filled(table: pa.Table) -> pa.Table:
    """With values in the place of such nulls."""
    for place, name in enumerate(table.column_names):
        if _depends_on_nulls(table[name]):
            values = pc.fill_null(table[name], pa.scalar(0).cast(table[name].type))
            table = table.set_column(place, name, values)
    return table


def _keys(keys: pa.Table, time_zone: str) -> list[tuple[Any, ...]]:
    """The keys as Spark hands them over: numpy's and pandas' scalars."""
    columns = []
    filled = _series(_filled(keys), time_zone)
    for name, series in zip(keys.column_names, filled, strict=True):
        # Item by item the same, at a tenth of the time of `series.iloc`.
        values = list(series.array if series.dtype.kind in "mM" else series.to_numpy())
        if _depends_on_nulls(keys[name]):
            nulls = np.flatnonzero(keys[name].is_null())
            null = _series(keys.select([name]).slice(nulls[0], 1), time_zone)[0].iloc[0]
            for at in nulls:
                values[at] = null
        columns.append(values)
    return list(zip(*columns, strict=True))


def _frames(rows: pa.Table, ends: list[int], time_zone: str) -> Iterator[pd.DataFrame]:
    """The frame of each key; ``ends`` says where it ends in ``rows``."""
    names = [name for name in rows.column_names if _depends_on_nulls(rows[name])]
    nulls = {name: np.r_[0, np.cumsum(rows[name].is_null())] for name in names}
    other = dict(zip(names, _series(rows.select(names), time_zone), strict=True)) if names else {}
    frame = pd.concat(_series(_filled(rows), time_zone), axis=1)
    start = 0
    for end in ends:
        part = frame.iloc[start:end]
        for name, counted in nulls.items():
            if counted[end] > counted[start]:
                part = part.assign(**{name: other[name].iloc[start:end]})
        part.index = pd.RangeIndex(end - start)
        yield part
        start = end


def _checked(made: object, output: pa.Schema) -> Iterator[pd.DataFrame]:
    """What the function returned, each frame of it, but for empty ones."""
    if isinstance(made, pd.DataFrame) or not isinstance(made, Iterable):
        raise TypeError(
            f"it returned {type(made).__name__}, but an iterable of pandas DataFrames is expected; "
            "yield the frame"
        )
    for frame in made:
        if not isinstance(frame, pd.DataFrame):
            raise TypeError(f"it emitted {type(frame).__name__}, but a DataFrame is expected")
        if frame.empty:
            continue
        names = frame.columns.tolist()
        if names != output.names:
            named = any(isinstance(name, str) for name in names)
            if len(names) != len(output) or (named and set(names) != set(output.names)):
                raise TypeError(f"it emitted columns {names}, but {output.names} are declared")
            if not named:  # they go by place, also when those of another key have names
                yield frame.set_axis(output.names, axis=1)
                continue
        yield frame


def _updated(state: pa.Table, states: list[_State], schema: StructType) -> pa.Table | None:
    """The rows of state of the keys that were updated."""
    changed = [at for at, of_key in enumerate(states) if of_key.updated]
    if not changed:
        return None
    new = [states[at].value for at in changed]
    values = LocalDataToArrowConversion.convert(new, schema, False)
    for field, column in zip(values.schema, zip(*new, strict=True), strict=True):
        check_whole("state", field, column)
    return state_rows(state, changed, values)


def _output(frames: list[pd.DataFrame], schema: pa.Schema, time_zone: str) -> pa.Table | None:
    """The frames as one table; columns go by name."""
    if not frames:
        return None

    def converted(frame: pd.DataFrame) -> pa.Table:
        batch = PandasToArrowConversion.convert(
            frame,
            from_arrow_schema(schema),
            timezone=time_zone,
            arrow_cast=True,
            assign_cols_by_name=True,
        )
        return pa.Table.from_batches([batch]).cast(schema)

    merged = pd.concat(frames, ignore_index=True)
    if any(pd.api.types.is_float_dtype(type_) for type_ in merged.dtypes):
        # A null in one frame would round the large integers of the others.
        types = {tuple(frame.dtypes) for frame in frames}
        if len(types) > 1:
            return pa.concat_tables(converted(frame) for frame in frames)
    return converted(merged)
