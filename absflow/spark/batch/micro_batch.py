"""One micro-batch of a query on the driver: commit its rows, hand over snapshots, report.

Order of the writes of batch b, and what a kill between two of them leaves behind:

1. rows to the channel (``txnVersion`` 2b): the only action that runs the stateful operator; its
   pages are persisted and everything else is read from there;
2. rows to the sinks, one commit per epoch;
3. if the batch met a control row: barriers to the channel (``txnVersion`` 2b + 1), a commit of
   their own because a Delta reader never passes a version before it has read all of it; the
   alignment after the batch;
4. the report to the coordinator, then Spark's own commit of the batch.

The workers that write the rows in 1 write the batch's snapshots into files of the state history,
too, which a thread of :mod:`absflow.spark.batch.snapshots` commits behind 4 (``txnVersion`` is the
checkpoint's id). Where they may not, or the write of 1 was another's: STATE pages go to staging
files before 3, if they are large, and to the state history behind it, if they are small.

A query runs a chain of stages (:mod:`absflow.spark.stream.chain`). Only the rows of the last are committed;
3 and 4 are done for each that met a control row.

Whatever is missing after a kill is done by the replay of b, which runs the operator again on the
state before b and gets the same pages; what is there already is skipped by its transaction id.
Delta skips such a write without running its plan, so the first batch after a start is materialised
by an action of its own before it is written. Before each write the fence is asked whether a newer
driver has started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from absflow.columnar.pages import (
    FORWARDED,
    SEQ_BITS,
    Page,
    PageKind,
    channel_schema,
    control_rows,
    unpack,
)
from absflow.errors import ReplayMismatchError, StorageError
from absflow.facts.fence import Fence
from absflow.sinks import DeltaSink, Sink, SinkWrite
from absflow.spark.batch.backpressure import Backpressure
from absflow.spark.batch.drain import Drain
from absflow.spark.batch.outcome import BatchTimes, StageOutcome, merge_reports
from absflow.spark.batch.query import set_alignments
from absflow.spark.batch.replay import _digest
from absflow.spark.batch.reports import StageReports
from absflow.spark.batch.rows import batch_totals, is_kind
from absflow.spark.batch.stops import StoppedError, is_stop
from absflow.spark.batch.worker_output import WorkerOutput
from absflow.spark.worker.snapshot_files import Histories, SnapshotFiles
from absflow.spark.worker.stage_call import freeze_loaded_modules
from absflow.storage import clock
from absflow.storage.delta import tables, transactions
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["ChainBatches"]


class ChainBatches:
    """The ``foreachBatch`` of the query of a chain of stages, from one start of the query on."""

    def __init__(
        self,
        job: str,
        stages: Sequence[StageReports],
        layout: Layout,
        attempt: int,
        files: Files,
        *,
        channel: bool,
        sinks: dict[str, Sink],
        drain: Drain,
        backpressure: Backpressure,
        fence: Fence,
    ) -> None:
        """Take up the stages where their last committed batch left them.

        Args:
            job: the job's name.
            stages: the chain, upstream first.
            layout: where things lie.
            attempt: the job's attempt.
            files: for Spark's offset log.
            channel: whether another query reads the last stage.
            sinks: the last stage's sinks by name.
            drain: may hold the chain.
            backpressure: may hold it, too.
            fence: asked before each write.
        """
        self._job = job
        self._stages = stages
        self._last = stages[-1]
        self._attempt = attempt
        self._files = files
        self._spark_checkpoint = layout.spark_checkpoint(stages[0].spec.name, attempt)
        self._channel = layout.channel(self._last.spec.name, attempt) if channel else None
        self._sinks = sinks
        self._first_sink = next((name for name, sink in sinks.items() if sink.reads_all), None)
        self._drain = drain
        self._backpressure = backpressure
        self._fence = fence
        self._first = True

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Run one micro-batch; called by Spark on the thread of the query."""
        try:
            self._run(frame, batch_id)
        except Exception as error:
            if is_stop(error):
                raise StoppedError from None
            raise
        self._first = False

    def _run(self, frame: DataFrame, batch_id: int) -> None:
        if self._first:
            for stage in self._stages:
                stage.load(batch_id)
        snapshot = self._last.alignment.snapshot
        self._backpressure.wait(self._last.spec.name, batch_id, snapshot)
        if not self._drain.may_run(snapshot):
            raise StoppedError
        set_alignments(frame.sparkSession, {s.spec.name: s.alignment for s in self._stages})
        pages = frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            self._batch(pages, batch_id, clock.now_ms())
        finally:
            pages.unpersist()

    def _batch(self, pages: DataFrame, batch_id: int, started_ms: int) -> None:
        epoch = self._last.alignment.epoch
        histories = {} if self._first else self._histories()
        seen, told = self._write_first(pages, batch_id, epoch, histories)
        heard = WorkerOutput({} if told is None else histories)
        for text in told or ():
            heard.hear(text)
        if told is None and seen["reports"]:
            self._hear_reports(pages, heard)
        controls = {
            stage: merge_reports(stage.spec, reports)
            for stage in self._stages
            if (reports := heard.reports[stage.spec.name])
        }
        epochs = [epoch]
        if (last := controls.get(self._last)) is not None:
            epochs += [n + 1 for n in sorted(last.snapshots)]
        self._write_sinks(pages, batch_id, [e for e in epochs if e <= (seen["epoch"] or 0)])
        self._last.count_emitted(seen["rows"] or 0)
        commit_ms = clock.now_ms() - started_ms
        if controls:
            self._snapshot(pages, controls, heard, batch_id, started_ms, commit_ms)

    def _snapshot(
        self,
        pages: DataFrame,
        controls: Mapping[StageReports, StageOutcome],
        heard: WorkerOutput,
        batch_id: int,
        started_ms: int,
        commit_ms: int,
    ) -> None:
        """What the batch's control rows ask for; ``commit_ms`` is what its rows have taken."""

        @cache
        def offsets() -> list[str]:
            return self._offsets(batch_id)

        for stage, control in controls.items():
            stage.note_arrivals(control, offsets, started_ms)
        staged: dict[StageReports, Mapping[int, str | transactions.UncommittedFiles]] = {}
        for stage, control in controls.items():
            name = stage.spec.name
            if name in heard.histories:
                table, _ = heard.histories[name]
                staged[stage] = stage.written(control, table, heard.adds[name])
            else:
                staged[stage] = stage.stage(pages, control)
        forward_ms = self._forward(pages, batch_id)
        for stage, control in controls.items():
            stage.save(batch_id, control)
        # Behind the barriers: the stages that wait for them need not wait for this.
        taken = {s: staged[s] or s.append(pages, control) for s, control in controls.items()}
        sync_ms = clock.now_ms() - started_ms - commit_ms - forward_ms
        times = BatchTimes(started_ms, sync_ms, commit_ms + forward_ms)
        for stage, control in controls.items():
            stage.report(control, taken[stage], batch_id, offsets, times)

    # -- rows ---------------------------------------------------------------------------------

    def _histories(self) -> Histories:
        """Where workers may write the snapshots of a batch, by stage."""
        found = {stage.spec.name: stage.history() for stage in self._stages}
        return {name: history for name, history in found.items() if history is not None}

    def _write_first(
        self, pages: DataFrame, batch_id: int, epoch: int, histories: Histories
    ) -> tuple[dict[str, Any], list[str] | None]:
        """The write that runs the operator; what it saw comes with it, without another action.

        And what :class:`SnapshotFiles` told; None if the rows were not written by workers.
        """
        if self._first:
            seen = pages.agg(*batch_totals()).collect()[0].asDict()
            if self._channel is not None and not self._replayed(pages, batch_id):
                self._write_channel(pages, batch_id, None)
            return seen, None
        observation, told = Observation(), None
        observed = pages.observe(observation, *batch_totals())
        beside = partial(SnapshotFiles, histories)
        if self._channel is not None:
            told = self._write_channel(observed, batch_id, beside)
        elif self._first_sink is not None:
            told = self._write_sink(observed, self._first_sink, batch_id, epoch, beside)
        else:
            return pages.agg(*batch_totals()).collect()[0].asDict(), None
        return dict(observation.get), told

    def _write_channel(
        self, pages: DataFrame, batch_id: int, beside: Callable[[], SnapshotFiles] | None
    ) -> list[str] | None:
        assert self._channel is not None
        note = {"rows": "rows", "stage": self._last.spec.name, "batch": batch_id}
        rows = self._rows(pages, batch_id, is_kind(PageKind.DATA), beside)
        self._fence.check()
        return transactions.append_once(rows, self._channel, self._channel_app, 2 * batch_id, note)

    def _rows(
        self,
        pages: DataFrame,
        batch_id: int | None,
        wanted: Column,
        beside: Callable[[], SnapshotFiles] | None = None,
    ) -> transactions.ArrowRows:
        output = self._last.spec.output
        schema = output if batch_id is None else channel_schema(output)

        def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            freeze_loaded_modules()
            return unpack(batches, output, batch_id)

        if beside is not None:
            wanted |= is_kind(PageKind.REPORT) | is_kind(PageKind.STATE)
        return transactions.ArrowRows(pages.where(wanted), rows, schema, beside)

    def _write_sinks(self, pages: DataFrame, batch_id: int, epochs: list[int]) -> None:
        """Write what :meth:`_write_first` has not: epochs in order, sink by sink."""
        for name in self._sinks:
            done = not self._first and self._channel is None and name == self._first_sink
            for epoch in epochs:
                if not (done and epoch == self._last.alignment.epoch):
                    self._write_sink(pages, name, batch_id, epoch)

    def _write_sink(
        self,
        pages: DataFrame,
        name: str,
        batch_id: int,
        epoch: int,
        beside: Callable[[], SnapshotFiles] | None = None,
    ) -> list[str] | None:
        made = SinkWrite(self._job, self._last.spec.name, name, self._attempt, batch_id, epoch)
        wanted = is_kind(PageKind.DATA) & (F.col("checkpoint_id") == epoch)
        self._fence.check()
        sink = self._sinks[name]
        if type(sink) is DeltaSink:
            return sink.append(self._rows(pages, None, wanted, beside), made)
        # Also a class derived of it may look at the rows.
        sink.write(self._rows(pages, None, wanted).frame(), made)
        return None

    # -- replay -------------------------------------------------------------------------------

    def _replayed(self, pages: DataFrame, batch_id: int) -> bool:
        """Whether the channel has the rows of this batch already; they must be the same rows."""
        assert self._channel is not None
        there = tables.read(pages.sparkSession, self._channel).where(
            (F.col("_epoch") >= self._last.alignment.epoch)  # the partitions to look into
            & (F.col("_seq") >= batch_id << SEQ_BITS)
            & (F.col("_seq") < batch_id + 1 << SEQ_BITS)
            & (F.col("_kind") == PageKind.DATA.value)
        )
        due = _digest(there)
        if due == (0, 0):
            return False  # or it had no rows, and will have none now
        seen = _digest(self._rows(pages, batch_id, is_kind(PageKind.DATA)).frame())
        if seen != due:
            raise ReplayMismatchError(
                f"stage {self._last.spec.name!r}, batch {batch_id}: the replay gave {seen[0]} rows "
                f"with digest {seen[1]}, but its channel has {due[0]} with {due[1]}. The process "
                "function must depend on nothing but rows, state and context (no clock, no random "
                "numbers of its own). Restore from a checkpoint"
            )
        return True

    # -- control rows -------------------------------------------------------------------------

    def _hear_reports(self, pages: DataFrame, heard: WorkerOutput) -> None:
        """Those that nobody has told of."""
        reports = pages.where(is_kind(PageKind.REPORT)).select("input", "key_group", "payload")
        for stage, key_group, payload in reports.collect():
            heard.reports[stage].append((key_group, payload.decode()))

    def _offsets(self, batch_id: int) -> list[str]:
        """The end offsets of the batch's sources, as Spark has written them before the batch."""
        path = f"{self._spark_checkpoint}/offsets/{batch_id}"
        text = self._files.read(path)
        if text is None:
            raise StorageError(f"{path!r} is gone while its batch runs; restore the job")
        return text.splitlines()[2:]

    def _forward(self, pages: DataFrame, batch_id: int) -> int:
        """Commit the batch's barriers to the channel; the time it took in ms."""
        started = clock.now_ms()
        if self._channel is None:
            return 0
        kinds = [kind.value for kind in FORWARDED]
        rows = pages.where(F.col("kind").isin(kinds) & (F.col("key_group") == 0)).collect()
        if not rows:
            return 0
        control = [Page.from_row(row) for row in rows]
        table = control_rows(control, self._last.spec.output, batch_id)
        told = transactions.DriverRows(pages.sparkSession, table)
        words = [f"{page.kind.value.lower()} {page.checkpoint_id}" for page in control]
        note = {"rows": ", ".join(words), "stage": self._last.spec.name, "batch": batch_id}
        self._fence.check()
        transactions.append_once(told, self._channel, self._channel_app, 2 * batch_id + 1, note)
        return clock.now_ms() - started

    @property
    def _channel_app(self) -> str:
        return f"{self._job}/{self._last.spec.name}/attempt={self._attempt}/channel"
