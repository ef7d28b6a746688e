"""Query progress as events: a listener that only puts things into a queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

__all__ = ["BatchDone", "QueryDied", "QueryIdle", "QueryListener", "batch_done", "exhausted"]

# What Spark names the time in which a trigger asked the sources what they have.
_ASKING = ("latestOffset", "getOffset")


@dataclass(frozen=True, slots=True)
class BatchDone:
    """A micro-batch of a stage is committed.

    Attributes:
        run_id: of the query.
        batch_id: the batch.
        rows: rows it read from each of the query's sources, control rows among them.
        start_ms: when its trigger began, ms since 1970 (UTC).
        end_ms: when it was over.
        ends: the position that it read each of the query's sources to; None for nothing so far.
        exhausted: the places of the query's sources that had nothing left when it was planned.
    """

    run_id: str
    batch_id: int
    rows: tuple[int, ...]
    start_ms: int
    end_ms: int
    ends: tuple[str | None, ...]
    exhausted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueryIdle:
    """A query has nothing to do: no source of it has anything new."""

    run_id: str


@dataclass(frozen=True, slots=True)
class QueryDied:
    """A query has ended; ``error`` is None if somebody stopped it."""

    run_id: str
    error: str | None


class QueryListener(StreamingQueryListener):
    """Translates the events of queries, and does nothing else."""

    def __init__(self, post: Callable[[BatchDone | QueryIdle | QueryDied], None]) -> None:
        """Use ``post`` to put an event into the queue; it must not block."""
        self._post = post
        jvm: Any = SparkContext._jvm
        wrapper = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
        self._jlistenerobj = wrapper(_AsText(self))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to do: who starts a query knows it."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """No source has had anything new for a while (``noDataProgressEventInterval``)."""
        self._post(QueryIdle(str(event.runId)))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch is done; as :meth:`progressed`."""
        self.progressed(event.progress.json)

    def progressed(self, text: str) -> None:
        """A batch is done."""
        self._post(batch_done(json.loads(text)))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """A query is gone."""
        self._post(QueryDied(str(event.runId), event.exception))


def batch_done(progress: Mapping[str, Any]) -> BatchDone:
    """The micro-batch that progress is of.

    Spark also makes progress of a trigger that found nothing to do; it has the id of the batch that
    comes next, and the batch meant is the one before it.
    """
    begin = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00"))
    start_ms = round(begin.timestamp() * 1000)
    ran = "addBatch" in progress["durationMs"]
    ends = (source["endOffset"] for source in progress["sources"])
    return BatchDone(
        run_id=progress["runId"],
        batch_id=progress["batchId"] if ran else progress["batchId"] - 1,
        rows=tuple(source["numInputRows"] for source in progress["sources"]),
        start_ms=start_ms,
        end_ms=start_ms + progress["durationMs"]["triggerExecution"],
        ends=tuple(None if end is None else json.dumps(end) for end in ends),
        exhausted=exhausted(progress),
    )


def exhausted(progress: Mapping[str, Any]) -> tuple[int, ...]:
    """The places of a query's sources that had nothing left when its trigger asked them.

    Such a source ends where it began, also if that is nowhere: it has not given anything yet. But
    one may let rows wait until there are more of them (``minOffsetsPerTrigger``); such a source
    says which is the newest that it has. A batch that a start found begun asks no source.
    """
    if progress["durationMs"].keys().isdisjoint(_ASKING):
        return ()
    return tuple(
        place
        for place, source in enumerate(progress["sources"])
        if source["endOffset"] == source["startOffset"]
        and source["latestOffset"] in (None, source["endOffset"])
    )


class _AsText(JStreamingQueryListener):
    """Takes progress as the one string that is read of it.

    PySpark's own would fetch each of its numbers and maps from the JVM first, a call for each.
    """

    pylistener: QueryListener

    def onQueryProgress(self, jevent: Any) -> None:
        self.pylistener.progressed(jevent.progress().json())
