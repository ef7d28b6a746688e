"""One micro-batch of a query on the driver: commit its rows, hand over snapshots, report.

Order of the writes of batch b, and what a kill between two of them leaves behind:

1. rows to the channel (``txnVersion`` 2b): the only action that runs the stateful operator; its
   pages are persisted and everything else is read from there;
2. rows to the sinks, one commit per epoch;
3. if the batch met a control row: STATE pages to staging files, if they are large; barriers to the
   channel (``txnVersion`` 2b + 1), a commit of their own because a Delta reader never passes a
   version before it has read all of it; the alignment after the batch; STATE pages to the state
   history, if they are small (``txnVersion`` is the checkpoint's id);
4. the report to the coordinator, then Spark's own commit of the batch.

A query runs a chain of stages (:mod:`absflow.spark.plan`). Only the rows of the last are committed;
3 and 4 are done for each that met a control row.

Whatever is missing after a kill is done by the replay of b, which runs the operator again on the
state before b and gets the same pages; what is there already is skipped by its transaction id.
Delta skips such a write without running its plan, so the first batch after a start is materialised
by an action of its own before it is written. Before each write the fence is asked whether a newer
driver has started.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation
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
from absflow.sinks import DeltaSink, Sink, SinkWrite
from absflow.spark.backpressure import Backpressure
from absflow.spark.drain import Drain
from absflow.spark.plan import settle, tell_alignments
from absflow.spark.reports import Control, StageReports, Times, merge
from absflow.spark.stops import StoppedError, is_stop
from absflow.storage import tables
from absflow.storage.fence import Fence
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
        tell_alignments(frame.sparkSession, {s.spec.name: s.alignment for s in self._stages})
        pages = frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            self._batch(pages, batch_id, tables.now_ms())
        finally:
            pages.unpersist()

    def _batch(self, pages: DataFrame, batch_id: int, started_ms: int) -> None:
        epoch = self._last.alignment.epoch
        seen = self._write_first(pages, batch_id, epoch)
        controls = self._controls(pages) if seen["reports"] else {}
        epochs = [epoch]
        if (last := controls.get(self._last)) is not None:
            epochs += [n + 1 for n in sorted(last.snapshots)]
        self._write_sinks(pages, batch_id, [e for e in epochs if e <= (seen["epoch"] or 0)])
        self._last.count_emitted(seen["rows"] or 0)
        commit_ms = tables.now_ms() - started_ms
        if controls:
            self._snapshot(pages, controls, batch_id, started_ms, commit_ms)

    def _snapshot(
        self,
        pages: DataFrame,
        controls: Mapping[StageReports, Control],
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
        staged = {stage: stage.stage(pages, control) for stage, control in controls.items()}
        forward_ms = self._forward(pages, batch_id)
        for stage, control in controls.items():
            stage.save(batch_id, control)
        # Behind the barriers: the stages that wait for them need not wait for this.
        taken = {s: staged[s] or s.append(pages, control) for s, control in controls.items()}
        sync_ms = tables.now_ms() - started_ms - commit_ms - forward_ms
        times = Times(started_ms, sync_ms, commit_ms + forward_ms)
        for stage, control in controls.items():
            stage.report(control, taken[stage], batch_id, offsets, times)

    # -- rows ---------------------------------------------------------------------------------

    def _write_first(self, pages: DataFrame, batch_id: int, epoch: int) -> dict[str, Any]:
        """The write that runs the operator; what it saw comes with it, without another action."""
        if self._first:
            seen = pages.agg(*_seen()).collect()[0].asDict()
            if self._channel is not None and not self._replayed(pages, batch_id):
                self._write_channel(pages, batch_id)
            return seen
        observation = Observation()
        observed = pages.observe(observation, *_seen())
        if self._channel is not None:
            self._write_channel(observed, batch_id)
        elif self._first_sink is not None:
            self._write_sink(observed, self._first_sink, batch_id, epoch)
        else:
            return pages.agg(*_seen()).collect()[0].asDict()
        return dict(observation.get)

    def _write_channel(self, pages: DataFrame, batch_id: int) -> None:
        assert self._channel is not None
        note = {"rows": "rows", "stage": self._last.spec.name, "batch": batch_id}
        rows = self._rows(pages, batch_id)
        self._fence.check()
        tables.append_once(rows, self._channel, self._channel_app, 2 * batch_id, note)

    def _rows(self, pages: DataFrame, batch_id: int | None) -> tables.ArrowRows:
        output = self._last.spec.output
        schema = output if batch_id is None else channel_schema(output)

        def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            settle()
            return unpack(batches, output, batch_id)

        data = pages.where(F.col("kind") == PageKind.DATA.value)
        return tables.ArrowRows(data, rows, schema)

    def _write_sinks(self, pages: DataFrame, batch_id: int, epochs: list[int]) -> None:
        """Write what :meth:`_write_first` has not: epochs in order, sink by sink."""
        for name in self._sinks:
            done = not self._first and self._channel is None and name == self._first_sink
            for epoch in epochs:
                if not (done and epoch == self._last.alignment.epoch):
                    self._write_sink(pages, name, batch_id, epoch)

    def _write_sink(self, pages: DataFrame, name: str, batch_id: int, epoch: int) -> None:
        made = SinkWrite(self._job, self._last.spec.name, name, self._attempt, batch_id, epoch)
        rows = self._rows(pages.where(F.col("checkpoint_id") == epoch), None)
        self._fence.check()
        sink = self._sinks[name]
        if type(sink) is DeltaSink:
            sink.write(rows, made)
        else:  # also a class derived of it may look at the rows
            sink.write(rows.frame(), made)

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
        seen = _digest(self._rows(pages, batch_id).frame())
        if seen != due:
            raise ReplayMismatchError(
                f"stage {self._last.spec.name!r}, batch {batch_id}: the replay gave {seen[0]} rows "
                f"with digest {seen[1]}, but its channel has {due[0]} with {due[1]}. The process "
                "function must depend on nothing but rows, state and context (no clock, no random "
                "numbers of its own). Restore from a checkpoint"
            )
        return True

    # -- control rows -------------------------------------------------------------------------

    def _controls(self, pages: DataFrame) -> dict[StageReports, Control]:
        """Of each stage that reports anything, upstream first."""
        reports = (
            pages.where(F.col("kind") == PageKind.REPORT.value)
            .select("input", "key_group", "payload")
            .collect()
        )
        mine = {s: [r for r in reports if r["input"] == s.spec.name] for s in self._stages}
        return {stage: merge(stage.spec, rows) for stage, rows in mine.items() if rows}

    def _offsets(self, batch_id: int) -> list[str]:
        """The end offsets of the batch's sources, as Spark has written them before the batch."""
        path = f"{self._spark_checkpoint}/offsets/{batch_id}"
        text = self._files.read(path)
        if text is None:
            raise StorageError(f"{path!r} is gone while its batch runs; restore the job")
        return text.splitlines()[2:]

    def _forward(self, pages: DataFrame, batch_id: int) -> int:
        """Commit the batch's barriers to the channel; the time it took in ms."""
        started = tables.now_ms()
        if self._channel is None:
            return 0
        kinds = [kind.value for kind in FORWARDED]
        rows = pages.where(F.col("kind").isin(kinds) & (F.col("key_group") == 0)).collect()
        if not rows:
            return 0
        control = [Page.from_row(row) for row in rows]
        table = control_rows(control, self._last.spec.output, batch_id)
        told = tables.DriverRows(pages.sparkSession, table)
        words = [f"{page.kind.value.lower()} {page.checkpoint_id}" for page in control]
        note = {"rows": ", ".join(words), "stage": self._last.spec.name, "batch": batch_id}
        self._fence.check()
        tables.append_once(told, self._channel, self._channel_app, 2 * batch_id + 1, note)
        return tables.now_ms() - started

    @property
    def _channel_app(self) -> str:
        return f"{self._job}/{self._last.spec.name}/attempt={self._attempt}/channel"


def _is(kind: PageKind) -> Any:
    return F.col("kind") == kind.value


def _seen() -> list[Any]:
    """What every batch tells about its pages, at no cost of its own."""
    return [
        F.sum(F.when(_is(PageKind.DATA), F.col("rows")).otherwise(0)).alias("rows"),
        F.max(F.when(_is(PageKind.DATA), F.col("checkpoint_id"))).alias("epoch"),
        F.count(F.when(_is(PageKind.REPORT), 1)).alias("reports"),
    ]


def _digest(rows: DataFrame) -> tuple[int, int]:
    """Count and sum of row hashes: equal for equal bags of rows, in whatever files they lie."""
    columns = [F.col(name) for name in rows.columns if name != "_barrier"]
    # The sum of hashes would overflow a long under ANSI rules.
    hashed = F.sum(F.xxhash64(*columns).cast("decimal(38,0)"))
    row = rows.agg(F.count("*").alias("rows"), hashed.alias("digest")).collect()[0]
    return int(row["rows"]), int(row["digest"] or 0)
