"""From the STATE pages of a micro-batch to the stage's state history.

Snapshots go to the history table in id order, each in one commit. The workers that write the rows
of a micro-batch write the files of its snapshots, too (:class:`SnapshotFiles`); what is left is to
name them in the table's log, which one thread per stage does while the stream goes on.

Where workers may not write files, and in the first batch of a start, whose rows may be there
already, a large snapshot is staged in files by its micro-batch, and the thread appends it; a small
one is appended by its micro-batch from the pages at hand, if that thread has nothing to do: it
takes hardly longer than to stage it, and nothing is left to do beside the stream.

HistoryFound is said only after the commit was seen in the table's log. State goes from executors to
storage; the driver sees counts only.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.columnar.pages import PAGE_SCHEMA, Page, PageKind, decode, pages_of
from absflow.columnar.stage import StageSpec
from absflow.columnar.state import DELETED, snapshot_schema
from absflow.errors import StorageError
from absflow.protocol.checkpoints import FailureReason
from absflow.protocol.messages import CheckpointFailed, Event, HistoryFound
from absflow.storage import tables
from absflow.storage.data_files import PlainTable
from absflow.storage.delta_log import LogTail
from absflow.storage.fence import Fence
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["SMALL", "Histories", "SnapshotAppender", "SnapshotFiles"]

_LOG = logging.getLogger(__name__)
_POOL = "absflow-history"

# Of stages by their name: the history table, and what is in their STATE pages.
Histories: TypeAlias = Mapping[str, tuple[PlainTable, pa.Schema]]
# A snapshot on its way to the history: the directory where it is staged, or its files; or none.
Taken: TypeAlias = str | tables.Written | None

# Bytes of STATE pages that are not worth a Spark job of their own to stage them: to write so many
# into the history takes as long as that job's fixed cost (docs/internals/decisions, 53).
SMALL = 1 << 20
# Bytes of STATE pages that a worker gathers before it writes them into files.
_GATHERED = 32 << 20


class SnapshotFiles:
    """In a worker: writes STATE pages into files, and tells of them and of REPORT pages.

    What it tells are JSON objects: ``{"report": [stage, key group, payload]}``, and ``{"state":
    [stage, checkpoint, action that adds a file]}``.
    """

    def __init__(self, histories: Histories) -> None:
        """Of these stages; pages of others are passed over."""
        self._histories = histories
        self._told: list[str] = []
        self._pages: list[Page] = []
        self._bytes = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Take what is of these stages and kinds; the rest is passed over."""
        kinds = pa.array([PageKind.REPORT.value, PageKind.STATE.value])
        for page in pages_of(batch.filter(pc.is_in(batch.column("kind"), kinds))):
            if page.kind is PageKind.REPORT:
                told = [page.input, page.key_group, page.payload.decode()]
                self._told.append(json.dumps({"report": told}))
            elif page.input in self._histories:
                self._pages.append(page)
                self._bytes += len(page.payload)
                if self._bytes >= _GATHERED:
                    self._write()

    def told(self) -> list[str]:
        """All of it, when no more pages come."""
        self._write()
        return self._told

    def _write(self) -> None:
        for stage, (table, inside) in self._histories.items():
            pages = [page for page in self._pages if page.input == stage]
            for action in table.write(_rows(pages, stage, inside, table.schema)):
                checkpoint_id = int(action["add"]["partitionValues"]["set_id"])
                self._told.append(json.dumps({"state": [stage, checkpoint_id, action]}))
        self._pages, self._bytes = [], 0


class SnapshotAppender:
    """The background thread of one stage; lives as long as the driver's run of the job."""

    def __init__(
        self,
        spark: SparkSession,
        job: str,
        spec: StageSpec,
        layout: Layout,
        table: str,
        attempt: int,
        files: Files,
        fence: Fence,
        tell: Callable[[Event], None],
    ) -> None:
        """Start the thread, which appends to the state history ``table``.

        What a dead driver left in the staging directory is dropped: its checkpoints were aborted,
        and if a batch is replayed it stages its snapshot anew.
        """
        self._spark = spark
        self._spec = spec
        self._files = files
        self._fence = fence
        self._tell = tell
        self._table = layout.state(table)
        self._app_id = f"{job}/{spec.name}/attempt={attempt}/state"
        self._log = LogTail(files.read, files.names, self._table)
        files.delete(layout.staging(spec.name, attempt))
        self._plain: PlainTable | None = None
        self._looked = False
        self._tasks: queue.Queue[tuple[int, Taken, float] | None] = queue.Queue()
        self._thread = threading.Thread(
            target=self._run, name=f"absflow-history-{spec.name}", daemon=True
        )
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether everything that was submitted is in the history, or has failed."""
        return not self._tasks.unfinished_tasks

    def history(self) -> tuple[PlainTable, pa.Schema] | None:
        """For :class:`SnapshotFiles`; None if workers may not write the table's files."""
        if not self._spec.keys:
            return None  # a stage without state has no such table
        if not self._looked:  # also if the answer is None: every batch asks
            self._looked = True
            schema = tables.history_columns(self._spec.keys, self._spec.state)
            self._plain = tables.plain_table(self._spark, self._table, schema)
        if self._plain is None:
            return None
        return self._plain, snapshot_schema(self._spec.keys, self._spec.state)

    def written(self, table: PlainTable, adds: list[dict[str, Any]]) -> tables.Written:
        """A snapshot that :class:`SnapshotFiles` has written, for :meth:`submit`."""
        return tables.Written(self._spark, table, adds)

    def submit(self, checkpoint_id: int, taken: Taken) -> None:
        """Take over a snapshot; what became of it is told.

        Args:
            checkpoint_id: its checkpoint; rises from call to call, but for replays.
            taken: the directory of its STATE pages, or its files; None if nothing changed.
        """
        self._tasks.put((checkpoint_id, taken, time.monotonic()))

    def append(self, checkpoint_id: int, pages: DataFrame) -> Event:
        """Append a small snapshot on the caller's thread; only while :attr:`idle`.

        Args:
            checkpoint_id: its checkpoint.
            pages: its STATE pages, persisted.

        Returns:
            HistoryFound.

        Raises:
            Exception: whatever Spark raises; nothing was appended, or not all that was due.
        """
        # One task, so one file: a task and a file for each shuffle partition cost more.
        self._write(checkpoint_id, _typed(pages.coalesce(1), self._spec))
        return HistoryFound(checkpoint_id, self._spec.name)

    def failed(self, checkpoint_id: int, error: Exception) -> Event:
        """What there is to tell of a snapshot that could not be appended."""
        stage = self._spec.name
        _LOG.error("state history of %s, checkpoint %d", stage, checkpoint_id, exc_info=error)
        cause = f"stage {stage}: {error}".splitlines()[0]
        return CheckpointFailed(checkpoint_id, FailureReason.SNAPSHOT_FAILED, cause)

    def close(self) -> None:
        """Finish what was submitted and end the thread."""
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)
        while (task := self._tasks.get()) is not None:
            checkpoint_id, taken, since = task
            took = 0
            try:
                if isinstance(taken, str):
                    self._write(checkpoint_id, _typed(self._staged(taken), self._spec))
                    self._files.delete(taken)
                elif taken is not None:
                    self._write(checkpoint_id, taken)
                if taken is not None:
                    took = round((time.monotonic() - since) * 1000)
                event: Event = HistoryFound(checkpoint_id, self._spec.name, took)
            except Exception as error:  # whatever it is, it must abort the checkpoint, not hang it
                self._looked = False  # the table may have been changed
                event = self.failed(checkpoint_id, error)
            self._tasks.task_done()
            self._tell(event)

    def _staged(self, path: str) -> DataFrame:
        return self._spark.read.schema(from_arrow_schema(PAGE_SCHEMA)).parquet(path)

    def _write(self, checkpoint_id: int, rows: tables.ArrowRows | tables.Written) -> None:
        note = {"stage": self._spec.name, "set": checkpoint_id}
        self._fence.check()
        tables.append_once(rows, self._table, self._app_id, checkpoint_id, note)
        if not (self._log.find(self._app_id, checkpoint_id) or self._is_there(checkpoint_id)):
            raise StorageError(
                f"snapshot {checkpoint_id} of stage {self._spec.name!r} is not in the log of "
                f"{self._table!r} after its append returned"
            )

    def _is_there(self, checkpoint_id: int) -> bool:
        """Whether an earlier driver appended the set; a set is one commit, so one row tells."""
        table = tables.read(self._spark, self._table)
        return not table.where(F.col("set_id") == checkpoint_id).isEmpty()


def _typed(pages: DataFrame, spec: StageSpec) -> tables.ArrowRows:
    """The rows of the state history table in STATE pages."""
    schema = tables.history_columns(spec.keys, spec.state)
    inside = snapshot_schema(spec.keys, spec.state)
    stage = spec.name

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from _rows(pages_of(batch), stage, inside, schema)

    return tables.ArrowRows(pages, rows, schema)


def _rows(
    pages: Sequence[Page], stage: str, inside: pa.Schema, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for page in pages:
        what = f"snapshot {page.checkpoint_id} of stage {stage!r}, group {page.key_group}"
        changed = decode(page.payload, inside, what)
        yield _history_rows(changed, page.checkpoint_id, page.key_group, schema)


def _history_rows(
    changed: pa.RecordBatch, checkpoint_id: int, key_group: int, schema: pa.Schema
) -> pa.RecordBatch:
    count = changed.num_rows
    ids = pa.repeat(pa.scalar(checkpoint_id, pa.int64()), count)
    op = pc.if_else(changed.column(DELETED), "delete", "upsert")
    own: list[Any] = [ids, ids, pa.repeat(pa.scalar(key_group, pa.int32()), count), op]
    return pa.RecordBatch.from_arrays([*own, *changed.columns[:-1]], schema=schema)
