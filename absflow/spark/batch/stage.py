"""What a micro-batch leaves of one stage: its alignment, its snapshots, its reports.

The outcome of a batch (:mod:`absflow.spark.batch.outcome`) gives the alignment after it, which is
saved for the replay of the next, and a report to the coordinator for each snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from absflow.columnar.event_time import TimeReport
from absflow.columnar.pages import PageKind
from absflow.columnar.spec import StageSpec
from absflow.errors import ProtocolViolation
from absflow.facts.fence import Fence
from absflow.protocol import alignment_state, event_time
from absflow.protocol.checkpoints import FailureReason, StageReport
from absflow.protocol.coordinator.messages import (
    CheckpointFailed,
    Event,
    HeldTooMuch,
    StageReported,
)
from absflow.protocol.event_time import EventTime
from absflow.protocol.watermarks import StageTime
from absflow.settings.reading import Settings
from absflow.spark.batch.alignment_log import AlignmentLog, Arrived
from absflow.spark.batch.handover import SnapshotHandover, StagedPages
from absflow.spark.batch.outcome import BatchTimes, StageOutcome
from absflow.spark.batch.pages import is_kind
from absflow.spark.batch.snapshots import SnapshotAppender
from absflow.spark.batch.worker_output import WorkerOutput
from absflow.spark.model import source_index
from absflow.spark.sources.kafka import partitions_in
from absflow.spark.sources.positions import SourceLogs
from absflow.spark.stream.pages import write_pages
from absflow.storage.delta.data_files import PlainTable
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["ChainStage"]


class ChainStage:
    """One stage of a chain, from one start of its query on."""

    def __init__(
        self,
        spec: StageSpec,
        layout: Layout,
        attempt: int,
        files: Files,
        *,
        restored: int,
        time: EventTime | None,
        appender: SnapshotAppender,
        settings: Settings,
        fence: Fence,
        post: Callable[[Event], None],
    ) -> None:
        """Take up the stage.

        Args:
            spec: the stage.
            layout: where things lie.
            attempt: the job's attempt.
            files: for the alignment log and those of the sources.
            restored: the checkpoint that the attempt began with; 0 if none.
            time: the event time that it began with; None if the stage has none.
            appender: takes the snapshots.
            settings: the job's.
            fence: asked before each write.
            post: puts an event into the coordinator's queue.
        """
        self.spec = spec
        self.alignment = spec.start(restored)
        self.time = self._saved_time = time
        directory = layout.alignment(spec.name, attempt)
        self._log = AlignmentLog(files, directory, self.alignment, time)
        self._staging = layout.staging(spec.name, attempt)
        self._source_logs = SourceLogs(files, layout, spec, attempt)
        self._appender = appender
        self._settings = settings
        self._fence = fence
        self._post = post
        self._arrived: dict[int, Arrived] = {}
        self._held: dict[int, tuple[int, int]] = {}
        self._too_much: set[int] = set()
        # Since the last snapshot. Rows that go on within the chain are seen by executors only.
        self._rows_out: int | None = None
        self._late_rows = self.late_total = 0
        self._late_emitted = self.late_emitted_total = 0
        self._ended_ms: int | None = None
        # Event time at the snapshots of the batch under way.
        self.at: Mapping[int, StageTime] = {}

    def load(self, batch_id: int, offsets: Callable[[], Sequence[str]]) -> None:
        """Go on where the last batch before ``batch_id`` left the stage.

        Args:
            batch_id: the first batch of this start of the query.
            offsets: the end offsets of its sources.
        """
        self.alignment, self.time, self._arrived = self._log.load(batch_id)
        self._saved_time = self.time
        if self.time is not None:
            # How long a partition has said nothing is counted anew; the delay may be another.
            own = replace(self.time.stage, delay=self.spec.watermark_delay)
            self.time = replace(self.time, stage=own, quiet_ms={})
        if self._log.began:
            for name in self._ordered_sources():
                self._know_partitions(name, offsets()[source_index(self.spec, name)])

    def _ordered_sources(self) -> list[str]:
        """The sources that say in a position which partitions there are: those of Kafka."""
        return [
            given.name
            for given in self.spec.inputs
            if given.event_time is not None and given.event_time.ordered
        ]

    def _know_partitions(self, name: str, position: str) -> None:
        """Partitions count from when they are known, though none of their rows has come.

        That must be the same when a batch is run again: the first one of the attempt, and each
        that brings a barrier.
        """
        if self.time is not None:
            known = {name: partitions_in(position)}
            self.time = event_time.with_partitions(self.time, known)

    def count_emitted(self, rows: int) -> None:
        """Note what a batch has emitted."""
        self._rows_out = (self._rows_out or 0) + rows

    def take_time(self, report: TimeReport, started_ms: int) -> None:
        """Go on from the event time that a batch has come to.

        Args:
            report: what the key groups say.
            started_ms: when the batch began, by the steady clock.
        """
        waited_ms = 0 if self._ended_ms is None else max(0, started_ms - self._ended_ms)
        idle = {
            given.name: given.event_time.idle_ms
            for given in self.spec.inputs
            if given.event_time is not None and given.event_time.idle_ms is not None
        }
        if self.time is not None:  # else nothing would be reported
            report = report.held_back(self.time.stage)
        self.time = event_time.counted_idle(report.time, waited_ms, report.brought, idle)
        self.at = report.at
        late = sum(report.late.values())
        self._late_rows += late
        self.late_total += late
        self._late_emitted += report.late_emitted
        self.late_emitted_total += report.late_emitted

    def ended(self, now_ms: int) -> None:
        """A batch is over, by the steady clock: from now on its query waits for rows."""
        self._ended_ms = now_ms

    def note_arrivals(
        self, outcome: StageOutcome, offsets: Callable[[], Sequence[str]], started_ms: int
    ) -> None:
        """Keep what a later batch's snapshot needs of this batch's barriers.

        Args:
            outcome: of the batch.
            offsets: the end offsets of the sources of the batch.
            started_ms: when the batch began.
        """
        roots = [given.name for given in self.spec.inputs if given.root]
        for name, checkpoint_id, triggered_ms in outcome.arrived:
            note = self._arrived.setdefault(checkpoint_id, Arrived(started_ms, triggered_ms))
            if name in roots:
                self._keep_position(note, name, offsets)
        for checkpoint_id in outcome.snapshots:
            note = self._arrived.setdefault(checkpoint_id, Arrived(started_ms, started_ms))
            for name in roots:  # a root input that ended before brought no barrier
                self._keep_position(note, name, offsets)
        self._note_held(outcome)
        for checkpoint_id, note in self._arrived.items():
            note.early_rows += outcome.early_rows(checkpoint_id)

    def _note_held(self, outcome: StageOutcome) -> None:
        self._held.update(outcome.held)
        rows, size = (sum(h[i] for h in self._held.values()) for i in (0, 1))
        for checkpoint_id in outcome.after.blocking & self._arrived.keys():
            note = self._arrived[checkpoint_id]
            note.held_rows = max(note.held_rows, rows)
            note.held_bytes = max(note.held_bytes, size)
            most = self._settings.alignment_max_held_bytes
            if size > most and checkpoint_id not in self._too_much:
                self._too_much.add(checkpoint_id)
                cause = f"stage {self.spec.name} holds {size} bytes"
                self._post(HeldTooMuch(checkpoint_id, cause))

    def _keep_position(
        self, note: Arrived, name: str, offsets: Callable[[], Sequence[str]]
    ) -> None:
        if name not in note.positions:
            position = offsets()[source_index(self.spec, name)]
            self._fence.check()
            self._source_logs.keep(name, position)
            note.positions[name] = position
            if name in self._ordered_sources():
                self._know_partitions(name, position)
        if self.time is not None and name in self.time.sources:
            note.newest.setdefault(name, dict(self.time.sources[name].newest))

    def history(self) -> PlainTable | None:
        """Of :meth:`absflow.spark.batch.snapshots.SnapshotAppender.history`."""
        return self._appender.history()

    def hand_over(
        self,
        pages: DataFrame,
        outcome: StageOutcome,
        output: WorkerOutput,
        history: PlainTable | None,
    ) -> dict[int, SnapshotHandover]:
        """The batch's snapshots by checkpoint, so that the operator never runs again for them.

        What no worker has written is staged now, in a Spark job for each snapshot that changed
        anything.

        Args:
            pages: the batch's pages, persisted.
            outcome: of the batch.
            output: what the workers sent.
            history: the table that they have written files for; None if they have not.

        Raises:
            ProtocolViolation: files have not all rows that the key groups reported.
        """
        handed = {n: SnapshotHandover(n) for n in outcome.snapshots}
        for n in outcome.changed:
            if history is None:
                handed[n] = SnapshotHandover(n, self._stage_pages(pages, n))
            else:
                adds = output.adds[self.spec.name].get(n, [])
                self._check_rows(n, outcome, adds)
                files = self._appender.uncommitted(history, adds)
                handed[n] = SnapshotHandover(n, files, output.digests[self.spec.name][n])
        return handed

    def _check_rows(
        self, checkpoint_id: int, outcome: StageOutcome, adds: Sequence[Mapping[str, Any]]
    ) -> None:
        expected = outcome.snapshots[checkpoint_id][0]
        rows = sum(json.loads(action["add"]["stats"])["numRecords"] for action in adds)
        if rows != expected:
            raise ProtocolViolation(
                f"stage {self.spec.name!r}: snapshot {checkpoint_id} has {expected} rows, but its "
                f"files have {rows}"
            )

    def _stage_pages(self, pages: DataFrame, checkpoint_id: int) -> StagedPages:
        path = f"{self._staging}/{checkpoint_id}"
        self._fence.check()
        mine = pages.where(
            is_kind(PageKind.STATE)
            & (F.col("input") == self.spec.name)
            & (F.col("checkpoint_id") == checkpoint_id)
        )
        write_pages(mine, path, "overwrite", self._settings.page_max_bytes)
        return StagedPages(path)

    def save(self, batch_id: int, outcome: StageOutcome | None) -> None:
        """Make the alignment and the event time after the batch durable.

        Args:
            batch_id: the batch.
            outcome: of the batch; None if no control row has come.
        """
        after = self.alignment if outcome is None else outcome.after
        if after != self.alignment or self.time != self._saved_time:
            self._fence.check()
            self._log.save(batch_id, after, self.time, self._arrived)
            self.alignment, self._saved_time = after, self.time

    def report(
        self,
        outcome: StageOutcome,
        snapshots: Mapping[int, SnapshotHandover],
        batch_id: int,
        offsets: Callable[[], Sequence[str]],
        times: BatchTimes,
    ) -> None:
        """Report the batch's snapshots to the coordinator, and hand them to their thread.

        Args:
            outcome: of the batch.
            snapshots: what :meth:`hand_over` gave.
            batch_id: the batch.
            offsets: the end offsets of the sources of the batch.
            times: of the batch.
        """
        for checkpoint_id in sorted(outcome.snapshots):
            self._post(
                StageReported(self._report(checkpoint_id, outcome, batch_id, offsets, times))
            )
            self._appender.submit(snapshots[checkpoint_id])
        for checkpoint_id in sorted(outcome.skipped):
            cause = f"stage {self.spec.name}"
            self._post(CheckpointFailed(checkpoint_id, FailureReason.DECLINED, cause))
        settled = outcome.after.snapshot
        self._arrived = {n: note for n, note in self._arrived.items() if n > settled}
        self._too_much = {n for n in self._too_much if n > settled}

    def _time_at(self, checkpoint_id: int) -> EventTime | None:
        """Event time at a snapshot; of its root inputs as it was where their barriers came."""
        if self.time is None:
            return None
        newest = self._arrived[checkpoint_id].newest
        sources = {
            name: replace(source, newest=newest.get(name, source.newest))
            for name, source in self.time.sources.items()
        }
        return EventTime(self.at.get(checkpoint_id, self.time.stage), sources)

    def _report(
        self,
        checkpoint_id: int,
        outcome: StageOutcome,
        batch_id: int,
        offsets: Callable[[], Sequence[str]],
        times: BatchTimes,
    ) -> StageReport:
        note, totals = self._arrived[checkpoint_id], outcome.snapshots[checkpoint_id]
        rows_out = self._rows_out
        if rows_out is not None:
            self._rows_out = 0
        late_rows, self._late_rows = self._late_rows, 0
        late_emitted, self._late_emitted = self._late_emitted, 0
        return StageReport(
            stage=self.spec.name,
            checkpoint_id=checkpoint_id,
            batch_id=batch_id,
            positions=note.positions,
            in_flight={
                given.name: offsets()[source_index(self.spec, given.name)]
                for given in self.spec.inputs
                if given.channel
                and alignment_state.in_flight(outcome.after, given.name, checkpoint_id)
            },
            rows_changed=totals[0],
            bytes_changed=totals[1],
            keys_total=totals[2],
            bytes_total=totals[3],
            rows_out=rows_out,
            held_rows=note.held_rows,
            held_bytes=note.held_bytes,
            start_delay_ms=max(0, note.at_ms - note.triggered_ms),
            alignment_ms=max(0, times.started_ms - note.at_ms),
            sync_ms=times.sync_ms,
            commit_ms=times.commit_ms,
            late_rows=late_rows,
            late_emitted=late_emitted,
            early_rows=note.early_rows if self.spec.at_least_once else None,
            expired_upto=outcome.expired_upto.get(checkpoint_id),
            time=self._time_at(checkpoint_id),
        )
