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

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.columnar.pages import PAGE_SCHEMA, pages_of
from absflow.columnar.stage import StageSpec
from absflow.columnar.state import snapshot_schema
from absflow.errors import StorageError
from absflow.facts.fence import Fence
from absflow.protocol.checkpoints import FailureReason
from absflow.protocol.coordinator.messages import CheckpointFailed, Event, HistoryFound
from absflow.spark.worker.snapshot_files import history_rows_of_pages
from absflow.storage import state_history
from absflow.storage.delta import tables, transactions
from absflow.storage.delta.data_files import PlainTable
from absflow.storage.delta.log import LogTail
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["SMALL", "SnapshotAppender"]

_LOG = logging.getLogger(__name__)


_POOL = "absflow-history"


# A snapshot on its way to the history: the directory where it is staged, or its files; or none.
Taken: TypeAlias = str | transactions.UncommittedFiles | None


# Bytes of STATE pages that are not worth a Spark job of their own to stage them: to write so many
# into the history takes as long as that job's fixed cost (docs/internals/decisions, 53).
SMALL = 1 << 20


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
            schema = state_history.history_columns(self._spec.keys, self._spec.state)
            self._plain = transactions.plain_table(self._spark, self._table, schema)
        if self._plain is None:
            return None
        return self._plain, snapshot_schema(self._spec.keys, self._spec.state)

    def written(
        self, table: PlainTable, adds: list[dict[str, Any]]
    ) -> transactions.UncommittedFiles:
        """A snapshot that :class:`SnapshotFiles` has written, for :meth:`submit`."""
        return transactions.UncommittedFiles(self._spark, table, adds)

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

    def _write(
        self, checkpoint_id: int, rows: transactions.ArrowRows | transactions.UncommittedFiles
    ) -> None:
        note = {"stage": self._spec.name, "set": checkpoint_id}
        self._fence.check()
        transactions.append_once(rows, self._table, self._app_id, checkpoint_id, note)
        if not (self._log.find(self._app_id, checkpoint_id) or self._is_there(checkpoint_id)):
            raise StorageError(
                f"snapshot {checkpoint_id} of stage {self._spec.name!r} is not in the log of "
                f"{self._table!r} after its append returned"
            )

    def _is_there(self, checkpoint_id: int) -> bool:
        """Whether an earlier driver appended the set; a set is one commit, so one row tells."""
        table = tables.read(self._spark, self._table)
        return not table.where(F.col("set_id") == checkpoint_id).isEmpty()


def _typed(pages: DataFrame, spec: StageSpec) -> transactions.ArrowRows:
    """The rows of the state history table in STATE pages."""
    schema = state_history.history_columns(spec.keys, spec.state)
    inside = snapshot_schema(spec.keys, spec.state)
    stage = spec.name

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from history_rows_of_pages(pages_of(batch), stage, inside, schema)

    return transactions.ArrowRows(pages, rows, schema)
