"""One micro-batch of a query on the driver: the order of its writes.

Batch b of a chain of stages makes these writes, in this order. Only the rows of the last stage are
committed; 3 to 6 are done for each stage that met a control row.

1. rows to the channel (``txnVersion`` 2b). This action alone runs the stateful operators; the pages
   are persisted, and everything else reads those. The workers that run the operators write the
   batch's snapshots into files of the state histories, too, which no version names yet;
2. rows to the sinks, one commit for each epoch; late rows to their tables;
3. snapshots whose files no worker wrote: their STATE pages to staging files;
4. barriers to the channel (``txnVersion`` 2b + 1);
5. the alignment after the batch;
6. the report to the coordinator, and the snapshots to the thread of
   :mod:`absflow.spark.batch.snapshots`, which commits them (``txnVersion`` is the checkpoint's id).

Then Spark commits the batch.

A kill between two of them leaves the rest to the replay of b. That runs the operators again on the
state before b and gets the same pages; Delta skips what is there already by its transaction id,
without running its plan. So the first batch behind a start runs the operators in an action of its
own. Files that were written of it before are named by no version; ``VACUUM`` deletes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from absflow.columnar.pages import SentTime
from absflow.columnar.spec import InputSpec
from absflow.errors import StorageError
from absflow.protocol.event_time import EventTime
from absflow.spark.batch.backpressure import Backpressure
from absflow.spark.batch.drain import Drain
from absflow.spark.batch.outcome import (
    BatchTimes,
    StageOutcome,
    channel_control_rows,
    merge_reports,
    split_reports,
)
from absflow.spark.batch.query import set_alignments, set_snapshots, set_times
from absflow.spark.batch.restored_rows import RestoredRows
from absflow.spark.batch.rows import RowWriter
from absflow.spark.batch.stage import ChainStage
from absflow.spark.batch.stops import FailedBatchError, StoppedError, is_stop, overflows
from absflow.spark.batch.worker_output import WorkerOutput
from absflow.storage import clock
from absflow.storage.delta.data_files import PlainTable
from absflow.storage.files import Files

__all__ = ["ChainBatches", "TimersLeft"]


@dataclass(frozen=True, slots=True)
class TimersLeft:
    """Timers of a stage are due, more than fire in one micro-batch: it wants another one."""

    stage: str


# For so many batches it is known how many control rows they have read.
_BATCHES_KNOWN = 16


class ChainBatches:
    """The ``foreachBatch`` of the query of a chain of stages, from one start of the query on.

    Attributes:
        control_rows: of the newest batches that have read any from channels, how many; replaced
            whole, for another thread reads it.
    """

    def __init__(
        self,
        stages: Sequence[ChainStage],
        rows: RowWriter,
        spark_checkpoint: str,
        files: Files,
        drain: Drain,
        backpressure: Backpressure,
        post: Callable[[TimersLeft], None],
        restored: RestoredRows | None = None,
    ) -> None:
        """Take up the stages where their last committed batch left them.

        Args:
            stages: the chain, upstream first.
            rows: writes what the last of them emits.
            spark_checkpoint: the query's checkpoint directory, for its offset log.
            files: reads that log.
            drain: may hold the chain.
            backpressure: may hold it, too.
            post: is given what the job's thread is to know.
            restored: what a restored attempt began with; None for one that began with nothing.
        """
        self._stages = stages
        self._last = stages[-1]
        self._rows = rows
        self._spark_checkpoint = spark_checkpoint
        self._files = files
        self._drain = drain
        self._backpressure = backpressure
        self._post = post
        self._restored = restored
        self._after_start = True
        self.control_rows: Mapping[int, int] = {}

    def event_time(self, stage: str) -> tuple[EventTime | None, int, int]:
        """How far a stage has come, and since the start its late rows, and those it has emitted.

        For another thread.
        """
        found = next(each for each in self._stages if each.spec.name == stage)
        return found.time, found.late_total, found.late_emitted_total

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Run one micro-batch; called by Spark on the thread of the query."""
        try:
            self._run(frame, batch_id)
        except Exception as error:
            if is_stop(error):
                raise StoppedError from None
            if overflows(error):
                raise FailedBatchError(error) from None
            raise
        self._after_start = False

    def _run(self, frame: DataFrame, batch_id: int) -> None:
        if self._restored is not None:
            self._restored.before(batch_id)
        if self._after_start:
            offsets = self._end_offsets(batch_id)
            for stage in self._stages:
                stage.load(batch_id, offsets)
        snapshot = self._last.alignment.snapshot
        self._backpressure.wait(self._last.spec.name, batch_id, snapshot)
        if not self._drain.may_run(snapshot):
            raise StoppedError
        set_alignments(frame.sparkSession, {s.spec.name: s.alignment for s in self._stages})
        set_times(frame.sparkSession, {s.spec.name: s.time for s in self._stages})
        histories = self._histories()
        written = {s.spec.name: s.spec.name in histories for s in self._stages}
        set_snapshots(frame.sparkSession, written)
        pages = frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            self._write(pages, batch_id, histories)
        finally:
            pages.unpersist()
            for stage in self._stages:
                stage.ended(clock.steady_ms())

    def _write(self, pages: DataFrame, batch_id: int, histories: Mapping[str, PlainTable]) -> None:
        """The writes of a batch, in their order."""
        started_ms, begun_ms = clock.now_ms(), clock.steady_ms()
        epoch = self._last.alignment.epoch
        time = None if self._last.time is None else SentTime(self._last.time.stage.output)
        if self._after_start:
            totals, output = self._rows.write_after_start(pages, batch_id, epoch, time)
        else:
            totals, output = self._rows.write_first(pages, batch_id, epoch, time)
        outcomes, late = self._outcomes(output, begun_ms)
        for given in late:
            self._rows.write_late(pages, given, batch_id)
        epochs = self._epochs(epoch, outcomes)
        if self._after_start:
            self._rows.check_sinks(pages, batch_id, epochs)
        epochs = [e for e in epochs if e <= (totals.epoch or 0)]
        self._rows.write_sinks(pages, batch_id, epochs, after_start=self._after_start)
        self._last.count_emitted(totals.rows or 0)
        rows_ms = clock.steady_ms() - begun_ms
        if outcomes:
            self._note_control_rows(batch_id, outcomes)
            self._write_outcomes(pages, batch_id, outcomes, output, histories, started_ms, rows_ms)
        for stage in self._stages:
            if stage not in outcomes:
                stage.save(batch_id, None)

    def _outcomes(
        self, output: WorkerOutput, begun_ms: int
    ) -> tuple[dict[ChainStage, StageOutcome], list[InputSpec]]:
        """What control rows have come to in the batch; the inputs of which rows were late."""
        outcomes: dict[ChainStage, StageOutcome] = {}
        late: list[InputSpec] = []
        for stage in self._stages:
            control, time, left = split_reports(stage.spec, output.reports[stage.spec.name])
            if control:
                outcomes[stage] = merge_reports(stage.spec, control)
            if time is not None:
                stage.take_time(time, begun_ms)
                late += (stage.spec.input(name) for name, count in time.late.items() if count)
            if left:
                self._post(TimersLeft(stage.spec.name))
        return outcomes, late

    def _note_control_rows(
        self, batch_id: int, outcomes: Mapping[ChainStage, StageOutcome]
    ) -> None:
        first = self._stages[0]
        if first in outcomes:
            count = channel_control_rows(first.spec, first.alignment, outcomes[first])
            recent = {n: c for n, c in self.control_rows.items() if n > batch_id - _BATCHES_KNOWN}
            self.control_rows = {**recent, batch_id: count}

    def _write_outcomes(
        self,
        pages: DataFrame,
        batch_id: int,
        outcomes: Mapping[ChainStage, StageOutcome],
        output: WorkerOutput,
        histories: Mapping[str, PlainTable],
        started_ms: int,
        rows_ms: int,
    ) -> None:
        """The writes that the batch's control rows ask for, in their order.

        Its rows took ``rows_ms``.
        """
        begun_ms = clock.steady_ms()
        offsets = self._end_offsets(batch_id)
        for stage, outcome in outcomes.items():
            stage.note_arrivals(outcome, offsets, started_ms)
        snapshots = {
            stage: stage.hand_over(pages, outcome, output, histories.get(stage.spec.name))
            for stage, outcome in outcomes.items()
        }
        before_ms = clock.steady_ms()
        self._rows.forward_barriers(pages, batch_id, self._last.at)
        barriers_ms = clock.steady_ms() - before_ms
        for stage, outcome in outcomes.items():
            stage.save(batch_id, outcome)
        sync_ms = clock.steady_ms() - begun_ms - barriers_ms
        took = BatchTimes(started_ms, sync_ms, rows_ms + barriers_ms)
        for stage, outcome in outcomes.items():
            stage.report(outcome, snapshots[stage], batch_id, offsets, took)

    def _epochs(self, epoch: int, outcomes: Mapping[ChainStage, StageOutcome]) -> list[int]:
        """The epochs that the last stage may have emitted rows of in a batch, rising."""
        last = outcomes.get(self._last)
        return [epoch, *(n + 1 for n in sorted(last.snapshots))] if last else [epoch]

    def _histories(self) -> dict[str, PlainTable]:
        """Where workers may write the snapshots of a batch, by stage."""
        found = {stage.spec.name: stage.history() for stage in self._stages}
        return {name: history for name, history in found.items() if history is not None}

    def _end_offsets(self, batch_id: int) -> Callable[[], list[str]]:
        """The end offsets of the batch's sources, as Spark wrote them before it; read once."""

        @cache
        def offsets() -> list[str]:
            path = f"{self._spark_checkpoint}/offsets/{batch_id}"
            text = self._files.read(path)
            if text is None:
                raise StorageError(f"{path!r} is gone while its batch runs; restore the job")
            return text.splitlines()[2:]

        return offsets
