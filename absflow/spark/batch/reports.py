"""What one stage of a query says of a micro-batch: its alignment, its snapshots, its report.

The REPORT pages of a batch hold what each key group met and did. Put together they give the
alignment after the batch, which is saved for the replay of the next, and a report to the
coordinator for each snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from absflow.columnar.pages import PageKind
from absflow.columnar.stage import StageSpec
from absflow.errors import FencedError, ProtocolViolation
from absflow.facts.fence import Fence
from absflow.protocol import alignment_state
from absflow.protocol.checkpoints import FailureReason, StageReport
from absflow.protocol.coordinator.messages import (
    CheckpointFailed,
    Event,
    HeldTooMuch,
    StageReported,
)
from absflow.spark.batch import snapshots
from absflow.spark.batch.alignment_log import AlignmentLog, Arrived
from absflow.spark.batch.outcome import BatchTimes, StageOutcome
from absflow.spark.batch.snapshots import SnapshotAppender
from absflow.spark.batch.stops import is_stop
from absflow.spark.model import source_index
from absflow.spark.sources.positions import SourceLogs
from absflow.storage.delta import transactions
from absflow.storage.delta.data_files import PlainTable
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["StageReports"]


class StageReports:
    """Of one stage, from one start of its query on."""

    def __init__(
        self,
        spec: StageSpec,
        layout: Layout,
        attempt: int,
        files: Files,
        *,
        restored: int,
        appender: SnapshotAppender,
        max_held_bytes: int,
        fence: Fence,
        tell: Callable[[Event], None],
    ) -> None:
        """Take up the stage.

        Args:
            spec: the stage.
            layout: where things lie.
            attempt: the job's attempt.
            files: for the alignment log and those of the sources.
            restored: the checkpoint that the attempt began with; 0 if none.
            appender: takes the snapshots.
            max_held_bytes: ``alignment.max-held``.
            fence: asked before each write.
            tell: puts an event into the coordinator's queue.
        """
        self.spec = spec
        self.alignment = spec.start(restored)
        self._log = AlignmentLog(files, layout.alignment(spec.name, attempt), self.alignment)
        self._staging = layout.staging(spec.name, attempt)
        self._source_logs = SourceLogs(files, layout, spec, attempt)
        self._appender = appender
        self._max_held_bytes = max_held_bytes
        self._fence = fence
        self._tell = tell
        self._arrived: dict[int, Arrived] = {}
        self._held: dict[int, tuple[int, int]] = {}
        self._told_held: set[int] = set()
        # Since the last snapshot. Rows that go on within the chain are seen by executors only.
        self._rows_out: int | None = None

    def load(self, batch_id: int) -> None:
        """Go on where the last batch before ``batch_id`` left the stage."""
        self.alignment, self._arrived = self._log.load(batch_id)

    def count_emitted(self, rows: int) -> None:
        """Note what a batch has emitted."""
        self._rows_out = (self._rows_out or 0) + rows

    def note_arrivals(
        self, control: StageOutcome, offsets: Callable[[], Sequence[str]], started_ms: int
    ) -> None:
        """Keep what a later batch's snapshot needs of this batch's barriers.

        Args:
            control: of the batch.
            offsets: the end offsets of the sources of the batch.
            started_ms: when the batch began.
        """
        roots = [given.name for given in self.spec.inputs if given.root]
        for name, checkpoint_id, triggered_ms in control.arrived:
            note = self._arrived.setdefault(checkpoint_id, Arrived(started_ms, triggered_ms))
            if name in roots:
                self._keep_position(note, name, offsets)
        for checkpoint_id in control.snapshots:
            note = self._arrived.setdefault(checkpoint_id, Arrived(started_ms, started_ms))
            for name in roots:  # a root input that ended before brought no barrier
                self._keep_position(note, name, offsets)
        self._note_held(control)

    def _note_held(self, control: StageOutcome) -> None:
        self._held.update(control.held)
        rows, size = (sum(h[i] for h in self._held.values()) for i in (0, 1))
        for checkpoint_id in control.after.blocking & self._arrived.keys():
            note = self._arrived[checkpoint_id]
            note.held_rows = max(note.held_rows, rows)
            note.held_bytes = max(note.held_bytes, size)
            if size > self._max_held_bytes and checkpoint_id not in self._told_held:
                self._told_held.add(checkpoint_id)
                cause = f"stage {self.spec.name} holds {size} bytes"
                self._tell(HeldTooMuch(checkpoint_id, cause))

    def _keep_position(
        self, note: Arrived, name: str, offsets: Callable[[], Sequence[str]]
    ) -> None:
        if name not in note.positions:
            position = offsets()[source_index(self.spec, name)]
            self._fence.check()
            self._source_logs.keep(name, position)
            note.positions[name] = position

    def stage(self, pages: DataFrame, control: StageOutcome) -> dict[int, str]:
        """Put large snapshots aside as files, so that the operator never runs again for them.

        Returns:
            The directory of each snapshot that changed anything; none if all are small, and what
            was put aside before is in the history: :meth:`append` is for these.
        """
        size = sum(changed for _, changed, *_ in control.snapshots.values())
        if size <= snapshots.SMALL and self._appender.idle:
            return {}
        return {n: self._stage(pages, n) for n in control.changed}

    def _stage(self, pages: DataFrame, checkpoint_id: int) -> str:
        path = f"{self._staging}/{checkpoint_id}"
        self._fence.check()
        self._state(pages, checkpoint_id).write.mode("overwrite").parquet(path)
        return path

    def written(
        self, control: StageOutcome, table: PlainTable, adds: Mapping[int, list[dict[str, Any]]]
    ) -> dict[int, transactions.UncommittedFiles]:
        """The snapshots whose files the workers have written.

        Args:
            control: of the batch.
            table: the state history as it was then.
            adds: by checkpoint the actions that add the files.

        Raises:
            ProtocolViolation: they have not all rows that the key groups told of.
        """
        for checkpoint_id in control.changed:
            files = [action["add"] for action in adds.get(checkpoint_id, ())]
            rows = sum(json.loads(file["stats"])["numRecords"] for file in files)
            if rows != control.snapshots[checkpoint_id][0]:
                raise ProtocolViolation(
                    f"stage {self.spec.name!r}: snapshot {checkpoint_id} has "
                    f"{control.snapshots[checkpoint_id][0]} rows, but its files have {rows}"
                )
        return {n: self._appender.written(table, adds[n]) for n in control.changed}

    def history(self) -> tuple[PlainTable, pa.Schema] | None:
        """Of :meth:`absflow.spark.batch.snapshots.SnapshotAppender.history`."""
        return self._appender.history()

    def append(self, pages: DataFrame, control: StageOutcome) -> dict[int, Event]:
        """Append small snapshots to the state history.

        Returns:
            What became of each that changed anything, to be told behind its report.
        """
        return {n: self._append(pages, n) for n in control.changed}

    def _append(self, pages: DataFrame, checkpoint_id: int) -> Event:
        try:
            return self._appender.append(checkpoint_id, self._state(pages, checkpoint_id))
        except Exception as error:
            # A snapshot that fails is no reason to stop the stream; who is told to stop must.
            if isinstance(error, FencedError) or is_stop(error):
                raise
            return self._appender.failed(checkpoint_id, error)

    def _state(self, pages: DataFrame, checkpoint_id: int) -> DataFrame:
        """The pages that hold a snapshot of this stage."""
        return pages.where(
            (F.col("kind") == PageKind.STATE.value)
            & (F.col("input") == self.spec.name)
            & (F.col("checkpoint_id") == checkpoint_id)
        )

    def save(self, batch_id: int, control: StageOutcome) -> None:
        """Make the alignment after the batch durable."""
        if control.after != self.alignment:
            self._fence.check()
            self._log.save(batch_id, control.after, self._arrived)
            self.alignment = control.after

    def report(
        self,
        control: StageOutcome,
        taken: Mapping[int, str | transactions.UncommittedFiles | Event],
        batch_id: int,
        offsets: Callable[[], Sequence[str]],
        times: BatchTimes,
    ) -> None:
        """Tell the coordinator of the batch's snapshots, and hand them over.

        Args:
            control: of the batch.
            taken: what :meth:`stage`, :meth:`append` or :meth:`written` gave.
            batch_id: the batch.
            offsets: the end offsets of the sources of the batch.
            times: of the batch.
        """
        for checkpoint_id, totals in sorted(control.snapshots.items()):
            note = self._arrived[checkpoint_id]
            report = StageReport(
                stage=self.spec.name,
                checkpoint_id=checkpoint_id,
                batch_id=batch_id,
                positions=note.positions,
                in_flight={
                    given.name: offsets()[source_index(self.spec, given.name)]
                    for given in self.spec.inputs
                    if given.channel
                    and alignment_state.in_flight(control.after, given.name, checkpoint_id)
                },
                rows_changed=totals[0],
                bytes_changed=totals[1],
                keys_total=totals[2],
                bytes_total=totals[3],
                rows_out=self._rows_out,
                held_rows=note.held_rows,
                held_bytes=note.held_bytes,
                start_delay_ms=max(0, note.at_ms - note.triggered_ms),
                alignment_ms=max(0, times.started_ms - note.at_ms),
                sync_ms=times.sync_ms,
                commit_ms=times.commit_ms,
            )
            if self._rows_out is not None:
                self._rows_out = 0
            self._tell(StageReported(report))
            match taken.get(checkpoint_id):
                case str() | transactions.UncommittedFiles() | None as handed:
                    self._appender.submit(checkpoint_id, handed)
                case told:
                    self._tell(told)
        for checkpoint_id in sorted(control.skipped):
            cause = f"stage {self.spec.name}"
            self._tell(CheckpointFailed(checkpoint_id, FailureReason.DECLINED, cause))
        settled = control.after.snapshot
        self._arrived = {n: note for n, note in self._arrived.items() if n > settled}
        self._told_held = {n for n in self._told_held if n > settled}
