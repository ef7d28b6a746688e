"""Measures a query that goes on, by the progress of its micro-batches."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import Any

from _housekeeping import Housekeeping, housekeeping
from _periods import RUN_S, Runs, runs_of
from _quick import QUICK
from pyspark.sql import SparkSession

# Into the folder that is given; gives what can be stopped.
Start = Callable[[str], Any]
# Of when each micro-batch began and its rows: when runs may begin, None if that is not known yet.
Warm = Callable[[list[tuple[float, int]]], "float | None"]
STORES = "org.apache.spark.sql.execution.streaming.state"
# As Spark's guide advises for much state; a count of its rows would cost a lookup for each write.
ROCKS = {
    "spark.sql.streaming.stateStore.providerClass": f"{STORES}.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}
_PATIENCE_S = 1800


class FailedError(Exception):
    """What was to be measured ended by itself, or does not get there."""


def measured(
    spark: SparkSession,
    start: Start,
    conf: Mapping[str, str],
    warm: Warm,
    runs: int,
    *,
    does: Collection[str] | None = None,
) -> Runs:
    """Rows per second of each run, and the longest time in it from one micro-batch to the next.

    Args:
        spark: the session; nothing else may stream in it.
        start: starts the query.
        conf: of the session, meanwhile.
        warm: says from when on it counts.
        runs: how many; of absflow's long ones so many that they take as long.
        does: of absflow, what retention must have done meanwhile; a run has a plan of it then,
            but for ``QUICK=1``.

    Raises:
        FailedError: it could not be measured.
    """
    conf = {**conf, "spark.sql.streaming.numRecentProgressUpdates": "10000"}
    with ExitStack() as stack:
        for name, value in conf.items():
            spark.conf.set(name, value)
            stack.callback(spark.conf.unset, name)
        # The stop of a query may leave a task that still writes.
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        root = stack.enter_context(folder)
        seen = stack.enter_context(housekeeping()) if does is not None else None
        running = start(root)
        stack.callback(running.stop)
        (query,) = spark.streams.active
        found = _runs(query, warm, runs, seen)
        if seen is not None:
            print(f"absflow: {seen}", flush=True)
            if not QUICK and (missing := seen.missing(does or ())):
                raise FailedError(f"{missing} while it was measured")
        return found


def _runs(query: Any, warm: Warm, runs: int, seen: Housekeeping | None) -> Runs:
    begun = time.monotonic()
    due = begun + RUN_S
    while time.monotonic() < begun + _PATIENCE_S:
        if not query.isActive:
            raise FailedError(query.exception())
        # The progress of every micro-batch, asked for again and again, would cost the query time.
        if time.monotonic() > due:
            moments = [(_at(progress), progress.numInputRows) for progress in query.recentProgress]
            if (since := warm(moments)) is not None:
                if seen and not QUICK:
                    found = seen.runs(moments, since, runs)
                    # They are longer than those of others.
                    enough = bool(found[0]) and moments[-1][0] > since + runs * RUN_S
                else:
                    found = runs_of(moments, (at for at, _ in moments if at >= since), runs)
                    enough = False
                if enough or len(found[0]) == runs:
                    return found
            due = time.monotonic() + RUN_S / 2
        time.sleep(0.2)
    raise FailedError(f"{runs} runs did not fit into {_PATIENCE_S} s")


def _at(progress: Any) -> float:
    return datetime.fromisoformat(progress.timestamp).timestamp()
