"""Process functions that the kit is tried on."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import absflow
from absflow.testing import Input, Stage


def at(minute: int, second: int = 0) -> datetime:
    """A moment of the first hour of 2026."""
    return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(minutes=minute, seconds=second)


def count(rows, state, context):
    """A row for each key and micro-batch."""
    before = state["n"].fill_null(0).to_numpy()
    now = before + np.bincount(context.key_of_row, minlength=state.num_rows)
    table = pa.table({"k": state["k"], "n": now})
    return absflow.Result(output=table, state=table)


def count_pandas(rows, state, context):
    counts = rows.groupby(context.key_of_row).size().to_numpy()
    state = state.assign(n=state["n"].fillna(0) + counts)
    return absflow.Result(output=state, state=state)


def number(state, row):
    """A row for each row."""
    n = (state[0] if state else 0) + 1
    return (n,), [(row[0], n)]


def per_key(key, frames, state):
    (n,) = state.getOption or (0,)
    n += sum(len(frame) for frame in frames)
    state.update((n,))
    yield pd.DataFrame({"k": [key[0]], "n": [n]})


class Counter(StatefulProcessor):
    """Counts, and begins with what it is given."""

    def init(self, handle):
        self.n = handle.getValueState("seen", "n long")

    def handleInitialState(self, key, initialState, timerValues):
        self.n.update((initialState.n,))

    def handleInputRows(self, key, rows, timerValues):
        (n,) = self.n.get() or (0,)
        n += sum(1 for _ in rows)
        self.n.update((n,))
        yield Row(k=key[0], n=n)


def stage(process=count, form="arrow", **more):
    """A stage that counts the rows of each key."""
    given = {"inputs": "k string", "key": "k", "state": "n long", "output": "k string, n long"}
    return Stage(process, form=form, **{**given, **more})


def processor(**more):
    return stage(Counter(), "stateful-processor", state=None, **more)


def window(state, row, context):
    """Counts a key until a minute after its row."""
    context.timers.set(row[1] + timedelta(minutes=1))
    return ((state[0] if state else 0) + 1,), None


def close(timer, state):
    return None, [(timer.key[0], timer.time, state[0])]


def windows(**more):
    """A stage with a timer in event time for each row."""
    given = {
        "inputs": Input("k string, at timestamp", event_time="at"),
        "output": "k string, at timestamp, n long",
        "on_timer": close,
    }
    return stage(window, "per-row", **{**given, **more})


def count_in_window(state, row, context):
    context.timers.set(row[2] + timedelta(minutes=1))
    return ((state[0] if state else 0) + 1,), None


def close_window(timer, state):
    return None, [(*timer.key, state[0])]


def tumbling(**more):
    """Windows of a minute, which are part of the key: no row of one comes when it has closed."""
    given = {
        "inputs": Input("k string, at timestamp, w timestamp", event_time="at"),
        "key": ["k", "w"],
        "output": "k string, w timestamp, n long",
        "on_timer": close_window,
    }
    return stage(count_in_window, "per-row", **{**given, **more})


def click(key, minute, second=0):
    """A row of :func:`tumbling`."""
    return (key, at(minute, second), at(minute))
