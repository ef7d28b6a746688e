"""Requests from outside of the driver: rows of the ``requests`` table.

The command line writes that table and the driver only reads it, for two processes must not write
one table on a local file system. A row that wants a savepoint names the driver that it is for, so
no later one triggers it; its answer is a row of ``checkpoints``. A row that wants checkpoints
deleted is for every driver, and goes to retention.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from absflow.protocol.retention.deletion import Deletion
from absflow.storage.delta import tables
from absflow.storage.delta.log import LogTail
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["Requests", "SavepointRequest", "deletions"]


@dataclass(frozen=True, slots=True)
class SavepointRequest:
    """A savepoint is wanted.

    Attributes:
        request: names it.
        stop: the job is to stop with it.
        drain: no stage is to go on behind it.
        fire_timers: for event time, every source is to end with it.
    """

    request: str
    stop: bool = False
    drain: bool = False
    fire_timers: bool = False


def deletions(spark: SparkSession, files: Files, layout: Layout) -> list[Deletion]:
    """Every deletion that was ever asked for, answered or not, in their order."""
    if not files.names(f"{layout.requests}/_delta_log"):
        return []
    table = tables.read(spark, layout.requests)
    if "delete" not in table.columns:
        return []  # as an earlier version has left it
    wanted = table.where(F.col("delete").isNotNull()).orderBy("requested_at")
    with tables.reading(layout.requests):
        rows = wanted.select("request", "delete").toArrow().to_pylist()
    return [Deletion(row["request"], tuple(row["delete"])) for row in rows]


class Requests:
    """The requests to one driver, and those to any."""

    def __init__(self, spark: SparkSession, files: Files, layout: Layout, incarnation: int) -> None:
        """Follow the table; it need not be there yet."""
        self._spark = spark
        self._path = layout.requests
        self._incarnation = incarnation
        self._log = LogTail(files.read, files.names, self._path)
        # What stands since before this driver may be in no commit behind the log's checkpoint.
        self._news = self._log.version >= 0
        self._seen: set[str] = set()

    def poll(self) -> list[SavepointRequest | Deletion]:
        """What is new, in its order; costs one look for a file if nothing is."""
        self._news = bool(self._log.advance()) or self._news
        if not self._news:
            return []
        table = tables.read(self._spark, self._path)
        mine = F.col("incarnation") == self._incarnation
        if "delete" in table.columns:
            mine |= F.col("delete").isNotNull()
        found = table.where(mine).orderBy("requested_at").toArrow().to_pylist()
        rows = [row for row in found if row["request"] not in self._seen]
        self._seen.update(row["request"] for row in rows)
        self._news = False  # not before: a read that fails is made again
        return [
            Deletion(row["request"], tuple(row["delete"]))
            if row.get("delete") is not None
            else SavepointRequest(
                row["request"],
                bool(row["stop"]),
                bool(row["drain"]),
                bool(row.get("fire_timers")),
            )
            for row in rows
        ]
