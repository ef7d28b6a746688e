"""What a process function returns, and whether it is what its stage declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from absflow.columnar.expiry import TOUCHED, touched_times
from absflow.columnar.keys import locate
from absflow.columnar.pages import TIME_TYPE
from absflow.columnar.pieces import replaced
from absflow.columnar.state import HIDDEN_COLUMNS, KeyedState, Touched
from absflow.columnar.timers import NEVER, TIMER_COLUMNS, Domain, Timers

__all__ = ["Frame", "Misfit", "Result", "Touching", "check_whole", "conform", "new_state"]

Frame: TypeAlias = "pa.Table | pd.DataFrame"


@dataclass(frozen=True, slots=True)
class Result:
    """What a process function returns; each part may be left out.

    Attributes:
        output: rows to emit, with the stage's output columns in any order.
        state: new state of some or all of the keys that were given, with key and state columns.
        delete: flags, one for each row of the ``state`` that was given: forget this key, and its
            timers.
        timers: timers to set, for keys that were given: the key columns, ``time`` (a timestamp)
            and, if they have names, ``name``; for timers in processing time, a column ``domain``
            that says "processing" (for others "event"). A key with a timer has state.
        delete_timers: timers to delete, with the same columns.
    """

    output: Frame | None = None
    state: Frame | None = None
    delete: npt.ArrayLike | None = None
    timers: Frame | None = None
    delete_timers: Frame | None = None


@dataclass(frozen=True, slots=True)
class Touching:
    """What a call does to the times at which its keys were touched.

    Attributes:
        times: for each key when the call touches it, microseconds; -``NEVER`` leaves it alone.
        on_read: it touches also what it does not write.
    """

    times: npt.NDArray[np.int64]
    on_read: bool


class Misfit(Exception):
    """What a process function returned is not what its stage declares."""


def new_state(
    result: Result,
    touched: Touched,
    before: KeyedState,
    epoch: int,
    past: Mapping[Domain, npt.NDArray[np.int64]],
    touching: Touching | None = None,
    *,
    fired: bool,
) -> KeyedState:
    """The state of a key group after a call.

    Args:
        result: what the function has returned.
        touched: the state of the keys that it was given, in which timers that have fired are no
            more.
        before: the state of the key group.
        epoch: the stage's epoch.
        past: by domain, for each key the time that a timer must be later than; ``NEVER`` where
            there is no such time.
        touching: when the call touches its keys; None if the state does not expire.
        fired: the function was called for timers, so the state of every key has changed.

    Raises:
        Misfit: it is not what the stage declares.
    """
    given = touched.table.num_rows
    hidden = [name for name in HIDDEN_COLUMNS if name in touched.table.column_names]
    visible = touched.table.drop_columns(hidden) if hidden else touched.table
    keys = touched.table.select(range(before.keys))
    if result.state is None:
        rows, which = visible.slice(0, 0), np.empty(0, dtype=np.int64)
    else:
        rows = conform(result.state, visible.schema, "state")
        named = rows.select(range(before.keys))
        which = _whose(named, keys, "state")
        _check_once(named, which)
    gone, written = _flags(result.delete, given), which
    if TIMER_COLUMNS[0] in hidden:
        columns, changed = _with_timers(result, touched.table, keys, past, gone)
        changed[which] = True
        which_now = np.arange(given) if fired else np.flatnonzero(changed)
        rows = replaced(visible, rows, which)
        for name, column in columns.items():
            rows = rows.append_column(touched.table.schema.field(name), column)
        rows, which = rows.take(pa.array(which_now)), which_now
    elif result.timers is not None or result.delete_timers is not None:
        raise Misfit(
            "the process function returned timers, but the stage has no function for them; declare "
            "stage(..., on_timer=...)"
        )
    if touching is not None:
        rows, which = _with_times(touched, touching, rows, which, written, gone)
    after = before.changed(touched, rows, which, epoch)
    if gone.any():
        if rows.num_rows:
            # Keys that are new in this very call must be found again to be deleted.
            touched = after.touched(keys)
        after = after.deleted(touched, np.flatnonzero(gone), epoch)
    return after


def _with_times(
    touched: Touched,
    touching: Touching,
    rows: pa.Table,
    which: npt.NDArray[np.int64],
    written: npt.NDArray[np.int64],
    gone: npt.NDArray[np.bool_],
) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The rows of state, with the times at which their keys were touched last.

    Args:
        touched: the state of the keys before.
        touching: when the call touches them.
        rows: of the keys ``which``, without that column.
        which: numbers of keys.
        written: the keys of which the function has returned state.
        gone: the keys that it deletes.

    Returns:
        Also rows of keys of which nothing but that time changes.
    """
    old = touched_times(touched.table[TOUCHED.name], -NEVER)
    moves = touched.new | touching.on_read
    moves[written] = True
    times = np.where(moves, np.maximum(old, touching.times), old)
    rest = (times > old) & ~touched.new & ~gone
    rest[which] = False
    if rest.any():
        others = np.flatnonzero(rest)
        same = touched.table.drop_columns([TOUCHED.name]).take(pa.array(others))
        rows, which = pa.concat_tables([rows, same]), np.r_[which, others]
    column = pa.array(times[which], pa.int64()).cast(TOUCHED.type)
    return rows.append_column(TOUCHED, column), which


def _whose(named: pa.Table, keys: pa.Table, what: str) -> npt.NDArray[np.int64]:
    """Which of the given keys each row names."""
    if named.num_rows == keys.num_rows and named.equals(keys):
        return np.arange(keys.num_rows)
    which = locate(named, keys)
    if (which < 0).any():
        stray = named.slice(int(np.flatnonzero(which < 0)[0]), 1).to_pylist()[0]
        raise Misfit(
            f"the process function returned {what} for key {stray}, which none of the rows "
            "has; only keys of the rows that were given can change"
        )
    return which


def _check_once(named: pa.Table, which: npt.NDArray[np.int64]) -> None:
    counts = np.bincount(which)
    if counts.max(initial=0) > 1:
        twice = int(np.flatnonzero(which == counts.argmax())[0])
        raise Misfit(
            f"the process function returned several state rows for key "
            f"{named.slice(twice, 1).to_pylist()[0]}, but a key has one"
        )


def _flags(delete: npt.ArrayLike | None, given: int) -> npt.NDArray[np.bool_]:
    if delete is None:
        return np.zeros(given, dtype=bool)
    flags = np.asarray(delete)
    if flags.dtype != np.bool_ or flags.shape != (given,):
        raise Misfit(
            f"delete has dtype {flags.dtype} and shape {flags.shape}, but one bool for "
            f"each of the {given} rows of state is expected"
        )
    return flags


def _with_timers(
    result: Result,
    table: pa.Table,
    keys: pa.Table,
    past: Mapping[Domain, npt.NDArray[np.int64]],
    gone: npt.NDArray[np.bool_],
) -> tuple[dict[str, pa.ChunkedArray], npt.NDArray[np.bool_]]:
    """The timer columns after a call, and of which keys they may have changed."""
    added = _timers(result.timers, "timers", keys)
    removed = _timers(result.delete_timers, "delete_timers", keys)
    columns, changed = {}, np.zeros(keys.num_rows, dtype=bool)
    for domain in Domain:
        column, new, old = table[domain.column], added[domain], removed[domain]
        _check_future(new, past[domain], keys, domain)
        if gone[new.key].any():
            key = keys.slice(int(new.key[gone[new.key]][0]), 1).to_pylist()[0]
            raise Misfit(
                f"the process function deletes key {key} and sets a timer for it, but a key "
                "without state has no timers; leave out one of the two"
            )
        if len(new.key) or len(old.key):
            column = Timers.read(column).changed(new, old).column(keys.num_rows)
            changed[new.key] = changed[old.key] = True
        columns[domain.column] = column
    return columns, changed


def _check_future(new: Timers, past: npt.NDArray[np.int64], keys: pa.Table, domain: Domain) -> None:
    early = new.time <= past[new.key]
    if early.any():
        at = int(np.flatnonzero(early)[0])
        key = keys.slice(int(new.key[at]), 1).to_pylist()[0]
        if past[new.key[at]] == NEVER:
            raise Misfit(
                f"timers has an event time for key {key}, but no input of the stage has event "
                "time, so it would never fire; declare job.source(..., event_time=...), or set the "
                'timer with domain "processing"'
            )
        times = pa.array([new.time[at], past[new.key[at]]], pa.int64()).cast(TIME_TYPE)
        wanted, reached = (time.isoformat() for time in times.to_pylist())
        raise Misfit(
            f"timers has the {domain.value} time {wanted} for key {key}, but that key has come to "
            f"{reached}; a timer must be set for later. Of what is late already, emit the result "
            "at once"
        )


def _timers(frame: Frame | None, what: str, keys: pa.Table) -> dict[Domain, Timers]:
    """What a table of timers says, by domain; the keys by number."""
    none = Timers(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, object))
    if frame is None:
        return dict.fromkeys(Domain, none)
    given = [str(name) for name in getattr(frame, "column_names", getattr(frame, "columns", ()))]
    optional = [name for name in ("name", "domain") if name in given]
    if "time" in given:
        _check_timestamps(frame["time"], what)
    fields = [*keys.schema, pa.field("time", TIME_TYPE)]
    rows = conform(frame, pa.schema([*fields, *(pa.field(n, pa.string()) for n in optional)]), what)
    if not rows.num_rows:
        return dict.fromkeys(Domain, none)
    if rows["time"].null_count:
        at = int(np.flatnonzero(rows["time"].is_null().to_numpy())[0])
        key = rows.select(keys.column_names).slice(at, 1).to_pylist()[0]
        raise Misfit(f"{what} has no time for key {key}; a timer waits for one")
    whose = _whose(rows.select(keys.column_names), keys, what)
    times = rows["time"].cast(pa.int64()).to_numpy()
    names, domains = _texts(rows, "name", ""), _texts(rows, "domain", Domain.EVENT.value)
    known = [domain.value for domain in Domain]
    if stray := sorted({*domains} - {*known}):
        raise Misfit(f"{what} has the domain {stray[0]!r}, must be one of {known}")
    found = {}
    for domain in Domain:
        mine = domains == domain.value
        found[domain] = Timers.of(whose[mine], times[mine], names[mine])
    return found


def _check_timestamps(times: Any, what: str) -> None:
    """Refuse numbers: Arrow would take them for microseconds, and people mean anything."""
    if isinstance(times, pd.Series) and times.dtype.kind == "M":
        return  # as it mostly is, without a look at the values
    column = pa.Array.from_pandas(times) if isinstance(times, pd.Series) else times
    if len(column) and not (pa.types.is_timestamp(column.type) or pa.types.is_null(column.type)):
        raise Misfit(
            f'{what} has a column "time" of type {column.type}, but a timestamp is expected '
            "(without a zone it is UTC); convert it, as by "
            'pandas.to_datetime(..., unit="ms", utc=True)'
        )


def _texts(rows: pa.Table, name: str, default: str) -> npt.NDArray[np.object_]:
    if name not in rows.column_names:
        return np.full(rows.num_rows, default, dtype=object)
    texts: npt.NDArray[np.object_] = rows[name].fill_null(default).to_numpy()
    return texts


def conform(frame: Frame, schema: pa.Schema, what: str) -> pa.Table:
    """``frame`` as a table with exactly ``schema``, or an error that names the first difference."""
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    names = list(frame.columns) if isinstance(frame, pd.DataFrame) else None
    if isinstance(frame, pa.Table):
        names = frame.column_names
    if names is None:
        raise Misfit(
            f"{what} is a {type(frame).__name__}, but a pyarrow Table or pandas DataFrame "
            "is expected"
        )
    if sorted(map(str, names)) != sorted(schema.names):
        missing = sorted(set(schema.names) - set(map(str, names)))
        extra = sorted(set(map(str, names)) - set(schema.names))
        raise Misfit(
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
        raise Misfit(
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
