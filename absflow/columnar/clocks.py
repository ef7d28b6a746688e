"""What waits for processing time, moved: a restore from long ago would find all of it overdue."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.expiry import TOUCHED
from absflow.columnar.timers import TIMEOUT_FIELDS, Domain, Timers

__all__ = ["UPDATED", "moved"]

# In a struct of the state, or in a list of such: when it was written, ms since 1970 (UTC). Values
# of a variable with a time to live have it, which is of processing time.
UPDATED = "_updated_ms"


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
    for field in state.schema:
        entry = field.type.value_type if pa.types.is_list(field.type) else field.type
        if pa.types.is_struct(entry) and entry.get_field_index(UPDATED) >= 0:
            chunks = [_updated_later(chunk, by_us // 1_000) for chunk in state[field.name].chunks]
            state = _with(state, field.name, pa.chunked_array(chunks, field.type))
    return state


def _updated_later(chunk: pa.Array, by_ms: int) -> pa.Array:
    if pa.types.is_list(chunk.type):
        lengths = pc.fill_null(pc.list_value_length(chunk), 0).to_numpy()
        offsets = pa.array(np.r_[0, np.cumsum(lengths)].astype(np.int32))
        values = _updated_later(chunk.flatten(), by_ms)
        return pa.ListArray.from_arrays(offsets, values, type=chunk.type, mask=chunk.is_null())
    columns, place = chunk.flatten(), chunk.type.get_field_index(UPDATED)
    columns[place] = pc.add(columns[place], by_ms)
    return pa.StructArray.from_arrays(columns, fields=list(chunk.type), mask=chunk.is_null())


def _with(state: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    return state.set_column(state.column_names.index(name), state.schema.field(name), column)
