"""From a snapshot that was handed over to a set of the stage's state history.

One thread for each stage commits snapshots to the history table beside the stream, in id order,
each in one commit; Delta skips the lower ids of a writer, so no snapshot may pass another. Nearly
always the workers that ran the stage have written the set's files, too
(:class:`~absflow.spark.worker.snapshot_files.SnapshotFiles`), and a commit that names them is all
that is left. Where workers may not write them, the thread makes the set of staged pages.

HistoryFound is posted only after the commit was seen in the table's log. State goes from executors
to storage; the driver sees counts only.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.columnar.pages import PAGE_SCHEMA, pages_of
from absflow.columnar.spec import StageSpec
from absflow.columnar.state import snapshot_schema
from absflow.errors import StorageError
from absflow.facts.fence import Fence
from absflow.protocol.checkpoints import FailureReason
from absflow.protocol.coordinator.messages import CheckpointFailed, Event, HistoryFound
from absflow.spark.batch.handover import SnapshotHandover, StagedPages
from absflow.spark.worker.set_digests import read_digests
from absflow.spark.worker.snapshot_files import history_rows
from absflow.storage import state_history
from absflow.storage.delta import tables, transactions
from absflow.storage.delta.data_files import PlainTable
from absflow.storage.delta.log import LogTail
from absflow.storage.delta.transactions import UncommittedFiles
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["SnapshotAppender"]

_LOG = logging.getLogger(__name__)
_POOL = "absflow-history"


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
        post: Callable[[Event], None],
    ) -> None:
        """Start the thread, which appends to the state history ``table``.

        What a dead driver left in the staging directory is dropped: its checkpoints were aborted,
        and if a batch is replayed it stages its snapshot anew.
        """
        self._spark = spark
        self._spec = spec
        self._files = files
        self._fence = fence
        self._post = post
        self._table = layout.state(table)
        self._app_id = f"{job}/{spec.name}/attempt={attempt}/state"
        self._log = LogTail(files.read, files.names, self._table)
        files.delete_folder(layout.staging(spec.name, attempt))
        self._history: PlainTable | None = None
        self._in_doubt = False
        self._tasks: queue.SimpleQueue[tuple[SnapshotHandover, float] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, name=f"absflow-history-{spec.name}", daemon=True
        )
        self._thread.start()

    def describe(self) -> PlainTable | None:
        """The state history for a query that starts; None if no worker may write its files."""
        self._in_doubt = False
        self._history = self._described()
        return self._history

    def history(self) -> PlainTable | None:
        """What the query was started with, while the table is still that."""
        if self._in_doubt:
            self._in_doubt = False
            before, now = self._history, self._described()
            if before is not None and (
                now is None or (now.protocol, now.metadata) != (before.protocol, before.metadata)
            ):
                self._history = None
        return self._history

    def _described(self) -> PlainTable | None:
        if not self._spec.keys:
            return None  # a stage without state has no such table
        schema = state_history.history_columns(self._spec.keys, self._spec.state)
        return transactions.plain_table(self._spark, self._table, schema)

    def uncommitted(self, table: PlainTable, adds: list[dict[str, Any]]) -> UncommittedFiles:
        """The files of a snapshot that the workers have written.

        Args:
            table: the state history as it was when they were written.
            adds: the actions that add them.
        """
        return UncommittedFiles(self._spark, table, adds)

    def submit(self, snapshot: SnapshotHandover) -> None:
        """Take over a snapshot; what became of it is posted.

        Ids rise from call to call, but for replays.
        """
        self._tasks.put((snapshot, time.monotonic()))

    def close(self) -> None:
        """Finish what was submitted and end the thread."""
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)
        while (task := self._tasks.get()) is not None:
            snapshot, since = task
            try:
                event = self._commit(snapshot, since)
            except Exception as error:  # whatever it is, it must abort the checkpoint, not hang it
                self._in_doubt = True  # the table may have been changed
                event = self._failed(snapshot.checkpoint_id, error)
                if isinstance(snapshot.content, StagedPages):
                    with suppress(StorageError):  # the next start tries again
                        self._files.delete_folder(snapshot.content.path)
            self._post(event)

    def _commit(self, snapshot: SnapshotHandover, since: float) -> Event:
        checkpoint_id, took_ms, digest = snapshot.checkpoint_id, 0, snapshot.digest
        match snapshot.content:
            case UncommittedFiles() as files:
                self._write(checkpoint_id, files)
            case StagedPages(path):
                rows = _set_of(self._staged(path), self._spec)
                digest = read_digests(rows.frame())[checkpoint_id]
                self._write(checkpoint_id, rows)
                self._files.delete_folder(path)
        if snapshot.content is not None:
            took_ms = round((time.monotonic() - since) * 1000)
        return HistoryFound(checkpoint_id, self._spec.name, took_ms, digest)

    def _failed(self, checkpoint_id: int, error: Exception) -> Event:
        stage = self._spec.name
        _LOG.error("state history of %s, checkpoint %d", stage, checkpoint_id, exc_info=error)
        cause = f"stage {stage}: {error}".splitlines()[0]
        return CheckpointFailed(checkpoint_id, FailureReason.SNAPSHOT_FAILED, cause)

    def _staged(self, path: str) -> DataFrame:
        return self._spark.read.schema(from_arrow_schema(PAGE_SCHEMA)).parquet(path)

    def _write(self, checkpoint_id: int, rows: transactions.ArrowRows | UncommittedFiles) -> None:
        note = {"stage": self._spec.name, "set": checkpoint_id}
        self._fence.check()
        transactions.append_once(rows, self._table, self._app_id, checkpoint_id, note)
        if not (self._log.find(self._app_id, checkpoint_id) or self._is_there(checkpoint_id)):
            raise StorageError(
                f"snapshot {checkpoint_id} of stage {self._spec.name!r} is not in the log of "
                f"{self._table!r} after its append returned"
            )

    def _is_there(self, checkpoint_id: int) -> bool:
        """Whether an earlier driver appended the set; a set is one commit, so one row is enough."""
        table = tables.read(self._spark, self._table)
        return not table.where(F.col("set_id") == checkpoint_id).isEmpty()


def _set_of(pages: DataFrame, spec: StageSpec) -> transactions.ArrowRows:
    """The rows of the state history table in STATE pages."""
    schema = state_history.history_columns(spec.keys, spec.state)
    inside = snapshot_schema(spec.keys, spec.state)
    stage = spec.name

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from history_rows(pages_of(batch), stage, inside, schema)

    return transactions.ArrowRows(pages, rows, schema)
