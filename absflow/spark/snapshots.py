"""The asynchronous part of a snapshot: from staged pages to the stage's state history.

One thread per stage takes the staged snapshots in id order and appends each to the history table in
one commit, while the stream goes on. It says HistoryFound only after it has seen the commit in the
table's log. State goes from executors to storage; the driver sees counts only.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.columnar.pages import PAGE_SCHEMA, decode, pages_of
from absflow.columnar.stage import StageSpec
from absflow.columnar.state import DELETED, snapshot_schema
from absflow.errors import StorageError
from absflow.protocol.checkpoints import FailureReason
from absflow.protocol.messages import CheckpointFailed, Event, HistoryFound
from absflow.storage import tables
from absflow.storage.delta_log import LogTail
from absflow.storage.fence import Fence
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
        self._waiting: queue.Queue[tuple[int, str | None, float] | None] = queue.Queue()
        self._thread = threading.Thread(
            target=self._run, name=f"absflow-history-{spec.name}", daemon=True
        )
        self._thread.start()

    def submit(self, checkpoint_id: int, staged: str | None) -> None:
        """Take over a snapshot.

        Args:
            checkpoint_id: its checkpoint; rises from call to call, but for replays.
            staged: the directory of its STATE pages; None if nothing changed.
        """
        self._waiting.put((checkpoint_id, staged, time.monotonic()))

    def close(self) -> None:
        """Finish what was submitted and end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)
        while (taken := self._waiting.get()) is not None:
            checkpoint_id, staged, since = taken
            try:
                if staged is not None:
                    self._append(checkpoint_id, staged)
                took = round((time.monotonic() - since) * 1000)
                self._tell(HistoryFound(checkpoint_id, self._spec.name, took if staged else 0))
            except Exception as error:  # whatever it is, it must abort the checkpoint, not hang it
                _LOG.exception("state history of %s, checkpoint %d", self._spec.name, checkpoint_id)
                cause = f"stage {self._spec.name}: {error}".splitlines()[0]
                self._tell(CheckpointFailed(checkpoint_id, FailureReason.SNAPSHOT_FAILED, cause))

    def _append(self, checkpoint_id: int, staged: str) -> None:
        pages = self._spark.read.schema(from_arrow_schema(PAGE_SCHEMA)).parquet(staged)
        note = {"stage": self._spec.name, "set": checkpoint_id}
        rows = _typed(pages, self._spec)
        self._fence.check()
        tables.append_once(rows, self._table, self._app_id, checkpoint_id, note)
        if not (self._log.find(self._app_id, checkpoint_id) or self._is_there(checkpoint_id)):
            raise StorageError(
                f"snapshot {checkpoint_id} of stage {self._spec.name!r} is not in the log of "
                f"{self._table!r} after its append returned"
            )
        self._files.delete(staged)

    def _is_there(self, checkpoint_id: int) -> bool:
        """Whether an earlier driver appended the set; a set is one commit, so one row tells."""
        table = tables.read(self._spark, self._table)
        return not table.where(F.col("set_id") == checkpoint_id).isEmpty()


def _typed(pages: DataFrame, spec: StageSpec) -> DataFrame:
    """The rows of the state history table in STATE pages."""
    schema = tables.history_columns(spec.keys, spec.state)
    inside = snapshot_schema(spec.keys, spec.state)
    stage = spec.name

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for page in pages_of(batch):
                what = f"snapshot {page.checkpoint_id} of stage {stage!r}, group {page.key_group}"
                changed = decode(page.payload, inside, what)
                yield _history_rows(changed, page.checkpoint_id, page.key_group, schema)

    return pages.mapInArrow(rows, from_arrow_schema(schema))


def _history_rows(
    changed: pa.RecordBatch, checkpoint_id: int, key_group: int, schema: pa.Schema
) -> pa.RecordBatch:
    count = changed.num_rows
    ids = pa.repeat(pa.scalar(checkpoint_id, pa.int64()), count)
    op = pc.if_else(changed.column(DELETED), "delete", "upsert")
    own: list[Any] = [ids, ids, pa.repeat(pa.scalar(key_group, pa.int32()), count), op]
    return pa.RecordBatch.from_arrays([*own, *changed.columns[:-1]], schema=schema)
