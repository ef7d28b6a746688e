"""Delta's own classes in the JVM; none of them is a public interface.

:mod:`absflow.spark.versions` says which version they are of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

__all__ = ["delta_classes"]


@cache  # each step from package to package asks the JVM for a class of that name, in every jar
def delta_classes(jvm: Any) -> DeltaClasses:
    """Delta's classes in this JVM."""
    return DeltaClasses(jvm)


class DeltaClasses:
    """Delta's classes, and Scala's values as the JVM wants them."""

    def __init__(self, jvm: Any) -> None:
        delta = jvm.org.apache.spark.sql.delta
        self._session = jvm.org.apache.spark.sql.classic.SparkSession
        self._utils = jvm.PythonUtils
        self._action = getattr(getattr(delta.actions, "Action$"), "MODULE$")
        self._metrics = jvm.org.apache.spark.sql.execution.metric.SQLMetrics
        self.delta_log = delta.DeltaLog
        self.options = delta.DeltaOptions
        self.write = delta.commands.WriteIntoDelta
        self.operation = delta.DeltaOperations.Write
        self.delete = delta.DeltaOperations.Delete
        self.append = jvm.org.apache.spark.sql.SaveMode.Append
        self.none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        self.some = jvm.scala.Some
        self.nothing = self._utils.toSeq(jvm.java.util.ArrayList())

    @contextmanager
    def active(self, session: Any) -> Iterator[None]:
        """Delta asks its thread: one begun in Python has none, a query has its own."""
        kept = self._session.getActiveSession()
        self._session.setActiveSession(session)
        try:
            yield
        finally:
            if kept.isDefined():
                self._session.setActiveSession(kept.get())
            else:
                self._session.clearActiveSession()

    def adds(self, actions: Any) -> bool:
        """Whether a file is among them."""
        every = (actions.apply(place) for place in range(actions.size()))
        return any(action.getClass().getSimpleName() == "AddFile" for action in every)

    def actions(self, given: list[dict[str, Any]]) -> Any:
        """Delta's actions of their JSON, as it is in the log."""
        return self._utils.toSeq([self._action.fromJson(json.dumps(action)) for action in given])

    def added(self, session: Any, adds: list[dict[str, Any]]) -> Any:
        """What the history of the table says of files that were added."""
        files = [action["add"] for action in adds]
        rows = sum(json.loads(file["stats"])["numRecords"] for file in files)
        size = sum(file["size"] for file in files)
        counts = {"numFiles": len(files), "numOutputRows": rows, "numOutputBytes": size}
        return self.metrics(session, counts)

    def metrics(self, session: Any, counts: Mapping[str, int]) -> Any:
        """What the history of the table says of a commit, by Delta's names."""
        metrics = {}
        for name, count in counts.items():
            metrics[name] = self._metrics.createMetric(session.sparkContext(), name)
            metrics[name].add(count)
        return self._utils.toScalaMap(metrics)

    def map(self, given: Mapping[str, str]) -> Any:
        return self._utils.toScalaMap(given)
