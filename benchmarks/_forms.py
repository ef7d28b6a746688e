"""The workloads of ``_workloads.py`` for what runs on Spark: as columns, in SQL, and per key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from _workloads import Workload
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState

import absflow


def sums(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Count, sum and last value."""
    code, values = context.key_of_row, rows["v"].to_numpy()
    n, total, last = (state[name].fill_null(0).to_numpy().copy() for name in state.column_names[1:])
    n += np.bincount(code, minlength=len(n))
    np.add.at(total, code, values)
    last[code] = values
    table = pa.table({"k": state["k"], "n": n, "total": total, "last": last})
    return absflow.Result(output=table, state=table)


def query_17(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Counts by price, least, greatest and total price."""
    code, price = context.key_of_row, rows["price"].to_numpy()
    names = state.column_names[2:]
    old = {name: state[name].fill_null(0).to_numpy().copy() for name in names}
    old["least"][context.is_new] = np.iinfo(np.int64).max
    np.minimum.at(old["least"], code, price)
    np.maximum.at(old["most"], code, price)
    np.add.at(old["total"], code, price)
    rank = np.searchsorted([10_000, 1_000_000], price, side="right")
    for place, name in enumerate(("low", "middle", "high")):
        old[name] += np.bincount(code[rank == place], minlength=state.num_rows)
    old["n"] += np.bincount(code, minlength=state.num_rows)
    table = pa.table({"auction": state["auction"], "day": state["day"], **old})
    return absflow.Result(output=table, state=table)


def query_18(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """The last bid."""
    code, price, at = context.key_of_row, rows["price"].to_numpy(), rows["at"].to_numpy()
    order = np.argsort(at, kind="stable")
    newest = np.empty(state.num_rows, dtype=np.int64)
    newest[code[order]] = order
    keep = pc.greater(state["at"], at[newest]).fill_null(False)
    table = pa.table(
        {
            "bidder": state["bidder"],
            "auction": state["auction"],
            "price": pc.if_else(keep, state["price"], price[newest]),
            "at": pc.if_else(keep, state["at"], at[newest]),
        }
    )
    return absflow.Result(output=table, state=table)


Columnar = Callable[[pa.Table, pa.Table, absflow.Context], absflow.Result]


def columnar(workload: Workload) -> Columnar:
    """The workload, all keys at once."""
    if workload.keys == 1:
        return sums
    return query_17 if "day" in workload.key else query_18


def aggregates(workload: Workload) -> list[Column]:
    """The workload in SQL."""
    v, price, at = F.col("v"), F.col("price"), F.col("at")
    if workload.keys == 1:
        return [F.count(v).alias("n"), F.sum(v).alias("total"), F.last(v).alias("last")]
    if "day" not in workload.key:
        return [F.max_by(price, at).alias("price"), F.max(at).alias("at")]
    low, high = price < 10_000, price >= 1_000_000
    return [
        F.count(price).alias("n"),
        F.count_if(low).alias("low"),
        F.count_if(~low & ~high).alias("middle"),
        F.count_if(high).alias("high"),
        F.min(price).alias("least"),
        F.max(price).alias("most"),
        F.sum(price).alias("total"),
    ]


class OneKey:
    """The workload, one key at a time."""

    def __init__(self, workload: Workload) -> None:
        """Of this workload."""
        self.update = workload.update
        self.given = [column.split()[0] for column in workload.rows.split(", ")]
        self.made = [column.split()[0] for column in workload.output.split(", ")]

    def folded(
        self, key: tuple[Any, ...], state: Any, frames: Iterator[pd.DataFrame]
    ) -> tuple[Any, pd.DataFrame]:
        """A key's new state, and the row of it."""
        for frame in frames:
            for row in zip(*(frame[name].tolist() for name in self.given), strict=True):
                state = self.update(state, row)
        return state, pd.DataFrame([(*key, *state)], columns=self.made)

    def __call__(
        self, key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """For ``applyInPandasWithState``."""
        new, made = self.folded(key, state.getOption, frames)
        state.update(new)
        yield made


class Processor(StatefulProcessor):
    """One key, for transformWithStateInPandas."""

    def __init__(self, workload: Workload) -> None:
        """Of this workload."""
        self._one, self._state = OneKey(workload), workload.state

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._value = handle.getValueState("value", self._state)

    def handleInputRows(  # type: ignore[override]  # this one is given frames
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Fold them."""
        new, made = self._one.folded(key, self._value.get(), rows)
        self._value.update(new)
        yield made

    def close(self) -> None:
        """Nothing to let go."""
