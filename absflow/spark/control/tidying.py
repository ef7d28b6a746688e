"""The files of the job's tables: small ones are put together, those that nobody needs go.

When files go. A DELETE has taken their rows out of a table; a reader that had opened it before can
end, so they go with a later VACUUM: of a channel, which only its stages read, after ten minutes, of
other tables after a day (``delta.deletedFileRetentionDuration``, set at creation; another RETAIN
than 0 would be ignored). The VACUUM is a LITE one, which takes only files that the log says were
removed, so never those of an append that is not committed yet. Those of an append that never will
be are taken by a sweep behind it (:mod:`absflow.spark.control.sweep`), which needs the lock of the
storage root; so are those that a log does not know any more. Without the lock a full VACUUM takes
these, which spares what is younger than the same time. Tables of facts have few files, and get a
full VACUUM always, for a LITE one wants a log that goes back as far.

Then the oldest commits of the logs go (:mod:`absflow.spark.control.old_logs`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from absflow.facts.inventory import JobInventory
from absflow.facts.lock import RootLock
from absflow.protocol.retention.leftovers import epochs_over, sets_over
from absflow.spark.control.old_logs import OldLogs
from absflow.spark.control.sweep import Sweep
from absflow.spark.model import JobSpec
from absflow.spark.sources.copies import merge
from absflow.storage import sql
from absflow.storage.delta import tables
from absflow.storage.files import Files
from absflow.storage.root import StorageRoot

__all__ = ["WHOLE_BYTES", "Tidying"]

# Behind each VACUUM; tests let files go at once.
RETAIN = ""
# Seconds from one VACUUM of a table to the next.
VACUUM_EVERY = 1200.0
# Files of a table of facts, one or more for each commit, at which they are put together.
MANY_FILES = 200
# Of a file that is left as it is then, so that old facts are not written again and again. It has
# those of one time, so that who asks for some ids need not open the others.
WHOLE_BYTES = 16_000_000


class Tidying:
    """What is due to be tidied, for retention's thread to try."""

    def __init__(
        self,
        spark: SparkSession,
        root: StorageRoot,
        job: JobSpec,
        lock: RootLock,
        await_writer: Callable[[], None],
    ) -> None:
        """Tidy with ``spark``.

        Args:
            spark: the session, of retention's own.
            root: the storage root.
            job: the job.
            lock: of the storage root.
            await_writer: returns when whoever writes the facts has ended what it was writing.
        """
        self._spark = spark
        self._files = files = Files(spark)
        self._layout = root.layout
        self._sources = [
            (name, given.name)
            for name, spec in job.graph.stages.items()
            for given in spec.inputs
            if given.files
        ]
        self._lock = lock
        self._await_writer = await_writer
        self._sweep = Sweep(spark, files)
        self._logs = OldLogs(spark, files, root.layout, job)
        self._started = time.monotonic()
        self._done: dict[str, float] = {}

    def due(self, found: JobInventory) -> Iterator[tuple[str, Callable[[], object]]]:
        """What is to be done now, each in words and as a call; errors are whatever is raised."""
        layout, there = self._layout, found.inventory
        for stage, source in self._sources:
            copies = layout.source_log(stage, source, there.attempt)
            yield f"merging of the copies of source {source}", partial(merge, self._files, copies)
        for table in (layout.attempts, layout.barriers, layout.overtakes, layout.checkpoints):
            sweep: Callable[[], object] = partial(self._sweep.facts, table, self._await_writer)
            yield from self._table(table, sweep, merge=True)
        sets = sets_over(there)
        for table in (layout.state(name) for by_name in found.sets.values() for name in by_name):
            sweep = partial(self._sweep.partitions, table, "set_id", sets)
            yield from self._table(table, sweep)
        for channel in there.channels:
            if channel.attempt == there.attempt:
                table = layout.channel(channel.stage, channel.attempt)
                sweep = partial(self._sweep.partitions, table, "_epoch", epochs_over(channel))
                yield from self._table(table, sweep)
        yield from self._logs.due(found)

    def _table(
        self, table: str, sweep: Callable[[], object], *, merge: bool = False
    ) -> Iterator[tuple[str, Callable[[], object]]]:
        if time.monotonic() >= self._done.get(table, self._started) + VACUUM_EVERY:
            what = f"VACUUM of {table.removeprefix(self._layout.root).lstrip('/')}"
            yield what, partial(self._tidy, table, sweep, merge=merge)

    def _tidy(self, table: str, sweep: Callable[[], object], *, merge: bool) -> None:
        began = time.monotonic()
        if merge:
            if len(tables.read(self._spark, table).inputFiles()) > MANY_FILES:
                # Streams read on over this: it changes no row, and Delta says so in its log.
                self._spark.sql(f"OPTIMIZE {sql.table(table)}")
            self._spark.sql(f"VACUUM {sql.table(table)} FULL")
        else:
            self._vacuum(table)
        if self._lock.held:
            sweep()
        self._done[table] = began

    def _vacuum(self, table: str) -> None:
        try:
            self._spark.sql(f"VACUUM {sql.table(table)} LITE {RETAIN}")
        except PySparkException as error:
            if error.getCondition() != "DELTA_CANNOT_VACUUM_LITE":
                raise
            if not self._lock.held:
                self._spark.sql(f"VACUUM {sql.table(table)} FULL {RETAIN}")
