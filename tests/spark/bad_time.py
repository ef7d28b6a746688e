"""Functions that set timers which cannot be, for test_bad_time; importable by Spark's workers."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

import absflow

BAD = 13
_TIME = pa.timestamp("us", tz="UTC")


def passed_on(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """All rows, and a timer for each at its own time."""
    timers = rows.select(["k", "ts"]).rename_columns(["k", "time"])
    return absflow.Result(output=rows.select(["k", "ts", "v"]), state=state, timers=timers)


def into_the_past(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Likewise, but one row's timer is at the begin of time."""
    result = passed_on(rows, state, context)
    begin = pa.scalar(0, pa.int64()).cast(_TIME)
    time = pc.if_else(pc.equal(rows["v"], BAD), begin, rows["ts"])
    timers = pa.table({"k": rows["k"], "time": time})
    return absflow.Result(output=result.output, state=state, timers=timers)


def nothing(timers: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """A timer that does nothing."""
    return absflow.Result()


def again(timers: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """A timer that sets itself for a microsecond later, for ever."""
    time = pc.add(timers["time"].cast(pa.int64()), 1).cast(_TIME)
    return absflow.Result(timers=pa.table({"k": timers["k"], "time": time}))
