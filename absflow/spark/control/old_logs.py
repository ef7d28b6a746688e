"""The oldest commits of the logs of a job's tables, once nobody asks for them any more.

Delta lists the whole directory of a log for each read of the table, each append to it and each
micro-batch of a stream of it, so a log that only grows slows its job down, a channel's with each
micro-batch. What goes is older than some minutes, lies before the last checkpoint of the log, and
before what the last LITE VACUUM has looked at, where the next one begins. Of a table that queries
stream, what one of them may still ask for stays; and of a channel, what a pending checkpoint may,
which finds its rows in flight there: from where a reader of the channel stood when it overtook.
That was behind where it stood before the checkpoint was triggered. So how far the readers have come
is looked up first, and counts as soon as all checkpoints have ended that were triggered by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from absflow.facts.inventory import JobInventory
from absflow.spark.model import JobSpec
from absflow.storage import clock
from absflow.storage.delta import tables
from absflow.storage.delta.log_trim import asks_from, trim, vacuumed
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["OldLogs"]

# Seconds between two trims of the logs that no query streams.
TRIM_EVERY = 300.0
# A commit stays so long, ms: who has just read the log's last checkpoint goes on with what follows.
KEPT_MS = 300_000


@dataclass(slots=True)
class _Seen:
    """How far the readers of a table had come.

    Attributes:
        version: what any of them may still ask for begins here.
        triggered: the newest checkpoint that was triggered until then; None: not looked up yet.
    """

    version: int
    triggered: int | None = None


class OldLogs:
    """What is old in the logs, for retention's thread to delete."""

    def __init__(self, spark: SparkSession, files: Files, layout: Layout, job: JobSpec) -> None:
        """Look with these; the job says which queries stream which tables."""
        self._spark = spark
        self._files = files
        self._layout = layout
        chains = [(chain[0], job.graph.stages[chain[0]].inputs) for chain in job.graph.chains]
        self._all = [name for name, _ in chains]
        self._roots = [name for name, inputs in chains if any(given.root for given in inputs)]
        self._readers: dict[str, list[str]] = {}
        for name, inputs in chains:
            for given in inputs:
                if given.channel:
                    self._readers.setdefault(given.name, []).append(name)
        self._ids: dict[str, str] = {}
        self._seen: dict[str, _Seen] = {}
        self._due = 0.0

    def due(self, found: JobInventory) -> Iterator[tuple[str, Callable[[], object]]]:
        """What is to be done now, each in words and as a call; errors are whatever is raised."""
        layout, attempt = self._layout, found.inventory.attempt
        streamed = {layout.barriers: self._roots, layout.overtakes: self._all}
        for channel in found.inventory.channels:
            if channel.attempt == attempt and channel.stage in self._readers:
                streamed[layout.channel(channel.stage, attempt)] = self._readers[channel.stage]
        for table, readers in streamed.items():
            yield self._words(table), partial(self._trim_streamed, table, readers, found)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + TRIM_EVERY
            names = (name for by_name in found.sets.values() for name in by_name)
            for table in (layout.checkpoints, *map(layout.state, names)):
                yield self._words(table), partial(self._trim, table, None)

    def _words(self, table: str) -> str:
        return f"trimming of the log of {table.removeprefix(self._layout.root).lstrip('/')}"

    def _trim_streamed(self, table: str, readers: Sequence[str], found: JobInventory) -> None:
        seen = self._seen.setdefault(table, _Seen(-1, 0))
        if seen.triggered is None:
            seen.triggered = found.known.triggered
        if any(t.barrier.checkpoint_id <= seen.triggered for t in found.known.pending):
            return
        self._trim(table, seen.version)
        self._seen[table] = _Seen(self._asked(table, readers, found.inventory.attempt))

    def _trim(self, table: str, asked: int | None) -> None:
        files, layout = self._files, self._layout
        bounds = [] if asked is None else [asked]
        if table not in (layout.barriers, layout.overtakes, layout.checkpoints):
            bounds.append(vacuumed(files.read, table))
        upto = min(bounds, default=None)
        trim(files.read, files.names, files.delete, table, upto, clock.now_ms() - KEPT_MS)

    def _asked(self, table: str, readers: Sequence[str], attempt: int) -> int:
        files = self._files
        if table not in self._ids:
            self._ids[table] = tables.table_id(self._spark, table)
        places = [self._layout.spark_checkpoint(name, attempt) for name in readers]
        asked = [asks_from(files.read, files.names, place, self._ids[table]) for place in places]
        return min(-1 if version is None else version for version in asked)
