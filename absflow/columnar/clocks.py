"""What waits for processing time, moved: a restore from long ago would find all of it overdue."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.expiry import TOUCHED
from absflow.columnar.timers import TIMEOUT_FIELDS, Domain, Timers

__all__ = ["moved"]


def moved(state: pa.Table, by_us: int, *, touched: bool) -> pa.Table:
    """Rows of state in which what waits for processing time waits for a later one.

    Args:
        state: rows, with whatever columns of absflow's own their stage has.
        by_us: how much later, microseconds.
        touched: also when a key was touched, for its state expires in processing time.
    """
    column = Domain.PROCESSING.column
    if column in state.column_names:
        timers = Timers.read(state[column])
        later = replace(timers, time=timers.time + by_us).column(state.num_rows)
        waits = np.zeros(state.num_rows, dtype=bool)
        waits[timers.key] = True
        state = _with(state, column, later)
        timeout = TIMEOUT_FIELDS[1].name
        if timeout in state.column_names:  # those of event time have no such timer
            times = pc.add(state[timeout], by_us // 1_000)
            state = _with(state, timeout, pc.if_else(pa.array(waits), times, state[timeout]))
    if touched:
        times = pc.add(state[TOUCHED.name].cast(pa.int64()), by_us)
        state = _with(state, TOUCHED.name, times.cast(TOUCHED.type))
    return state


def _with(state: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    return state.set_column(state.column_names.index(name), state.schema.field(name), column)
