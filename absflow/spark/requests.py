"""Wishes from outside of the driver: rows of the ``requests`` table.

The command line writes them and the driver only reads, for two processes must not write one table
on a local file system. A row names the driver that it is for, so no later one obeys it; its answer
is a row of ``checkpoints``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from absflow.storage import tables
from absflow.storage.delta_log import LogTail
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["Request", "Requests"]


@dataclass(frozen=True, slots=True)
class Request:
    """A savepoint is wanted; ``stop``: the job is to end with it; ``drain``: see the design."""

    request: str
    stop: bool = False
    drain: bool = False


class Requests:
    """The requests to one driver."""

    def __init__(self, spark: SparkSession, files: Files, layout: Layout, incarnation: int) -> None:
        """Follow the table; it need not be there yet."""
        self._spark = spark
        self._path = layout.requests
        self._incarnation = incarnation
        self._log = LogTail(files.read, self._path)
        self._told: set[str] = set()

    def poll(self) -> list[Request]:
        """What is new; costs one look for a file if nothing is."""
        if not self._log.advance():
            return []
        mine = tables.read(self._spark, self._path).where(F.col("incarnation") == self._incarnation)
        rows = [r for r in mine.collect() if r["request"] not in self._told]
        self._told.update(row["request"] for row in rows)
        return [Request(row["request"], bool(row["stop"]), bool(row["drain"])) for row in rows]
