"""The writes of a micro-batch's rows: to the channel, to the sinks, and its barriers behind them.

Each write is one Delta commit with a transaction id of attempt and batch, so a replay repeats none.
Before each the fence is asked whether a newer driver has started.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from absflow.columnar.event_time import late_table, late_unpacked, watermark_payload
from absflow.columnar.pages import (
    FORWARDED,
    Page,
    PageKind,
    SentTime,
    channel_schema,
    control_rows,
)
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.facts.fence import Fence
from absflow.protocol.watermarks import StageTime
from absflow.sinks import DeltaSink, Sink, SinkWrite
from absflow.spark.batch.pages import Totals, is_kind, totals_columns
from absflow.spark.batch.replay import check_sink, is_in_channel
from absflow.spark.batch.worker_output import WorkerOutput, read_sent
from absflow.spark.worker.output_rows import SENT, PageMessages, unpack_function
from absflow.storage.delta import tables, transactions
from absflow.storage.layout import Layout

__all__ = ["RowWriter"]


class RowWriter:
    """Writes what the last stage of a chain emits."""

    def __init__(
        self,
        job: str,
        stage: StageSpec,
        attempt: int,
        *,
        layout: Layout,
        channel: str | None,
        sinks: dict[str, Sink],
        fence: Fence,
    ) -> None:
        """Write for ``stage``.

        Args:
            job: the job's name.
            stage: the last stage of the chain.
            attempt: the job's attempt.
            layout: of the storage root, for the tables of late rows.
            channel: the stage's channel; None if no other query reads the stage.
            sinks: the stage's sinks by name.
            fence: asked before each write.
        """
        self._job = job
        self._stage = stage
        self._attempt = attempt
        self._layout = layout
        self._channel = channel
        self._channel_app = f"{job}/{stage.name}/attempt={attempt}/channel"
        self._sinks = sinks
        self._whole_sink = next((name for name, sink in sinks.items() if sink.reads_all), None)
        self._fence = fence

    def write_after_start(
        self, pages: DataFrame, batch_id: int, epoch: int, time: SentTime | None
    ) -> tuple[Totals, WorkerOutput]:
        """Write the channel's rows of the first batch behind a start, unless they are there.

        Delta skips a write that is there without running its plan, and the stateful operator must
        run, so an action of its own comes first.

        Args:
            pages: the batch's pages, persisted.
            batch_id: the batch.
            epoch: the stage's epoch before the batch.
            time: what it had said in event time before, if it has any.

        Raises:
            ReplayMismatchError: other rows are there.
        """
        totals = self._count(pages)
        if self._channel is not None:
            rows = self._rows(pages, batch_id, is_kind(PageKind.DATA), time=time).frame()
            if not is_in_channel(rows, self._channel, self._stage.name, batch_id, epoch):
                self._write_channel(pages, batch_id, None, time)
        return totals, self._reports(pages, totals)

    def write_first(
        self,
        pages: DataFrame,
        batch_id: int,
        epoch: int,
        time: SentTime | None,
    ) -> tuple[Totals, WorkerOutput]:
        """The write that runs the operator: to the channel, else to the first sink that reads all.

        Where workers write its files, they send the pages that are for the driver in the same Spark
        job; so a barrier needs no job of its own.
        """
        observation, messages = Observation(), None
        observed = pages.observe(observation, *totals_columns())
        if self._channel is not None:
            messages = self._write_channel(observed, batch_id, PageMessages, time)
        elif self._whole_sink is not None:
            messages = self._write_sink(observed, self._whole_sink, batch_id, epoch, PageMessages)
        else:
            totals = self._count(pages)
            return totals, self._reports(pages, totals)
        totals = Totals(**observation.get)
        if messages is None:
            return totals, self._reports(pages, totals)
        return totals, WorkerOutput(map(json.loads, messages))

    def check_sinks(self, pages: DataFrame, batch_id: int, epochs: list[int]) -> None:
        """See that what Delta sinks may have of the first batch behind a start is what it gives.

        Args:
            pages: the batch's pages, persisted.
            batch_id: the batch.
            epochs: those that may have rows.

        Raises:
            ReplayMismatchError: a sink has other rows of it.
        """
        for name, sink in self._sinks.items():
            if type(sink) is not DeltaSink:
                continue  # at least once, or it looks for itself
            for epoch in epochs:
                rows = self._rows(pages, None, _of_epoch(epoch)).frame()
                check_sink(rows, sink.path, self._made(name, batch_id, epoch))

    def write_sinks(
        self, pages: DataFrame, batch_id: int, epochs: list[int], *, after_start: bool
    ) -> None:
        """Write the rows of these epochs, rising, to each sink: one commit for each epoch.

        What :meth:`write_first` has written is left out.
        """
        written = None if after_start or self._channel is not None else self._whole_sink
        for name in self._sinks:
            for epoch in epochs:
                if not (name == written and epoch == epochs[0]):
                    self._write_sink(pages, name, batch_id, epoch, None)

    def forward_barriers(
        self, pages: DataFrame, batch_id: int, times: Mapping[int, StageTime]
    ) -> None:
        """Commit the batch's barriers to the channel, behind its rows, in a commit of their own.

        A Delta reader may stop between two files of a commit, but passes no version before it has
        read all of it.

        Args:
            pages: the batch's pages, persisted.
            batch_id: the batch.
            times: what the stage has of event time at each barrier, if it has any: a key group
                alone does not know what timers the others have left.
        """
        if self._channel is None:
            return
        rows = pages.where(is_kind(*FORWARDED) & (F.col("key_group") == 0)).collect()
        if not rows:
            return
        control = [_with_time(Page.from_row(row), times) for row in rows]
        table = control_rows(control, self._stage.output, batch_id, self._stage.timed)
        barriers = transactions.DriverRows(pages.sparkSession, table)
        words = [f"{page.kind.value.lower()} {page.checkpoint_id}" for page in control]
        note = {"rows": ", ".join(words), "stage": self._stage.name, "batch": batch_id}
        self._fence.check()
        version = 2 * batch_id + 1
        transactions.append_once(barriers, self._channel, self._channel_app, version, note)

    def write_late(self, pages: DataFrame, given: InputSpec, batch_id: int) -> None:
        """Append the late rows of a source to their table, if that is where they go.

        Args:
            pages: the batch's pages, persisted.
            given: the root input.
            batch_id: the batch.
        """
        if given.event_time is None or given.event_time.late != "table":
            return
        schema, name, attempt = given.schema, given.name, self._attempt
        path = self._layout.late(name)
        tables.create(pages.sparkSession, path, late_table(schema), ["_attempt"])

        def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return late_unpacked(batches, name, schema, attempt)

        rows = transactions.ArrowRows(
            pages.where(is_kind(PageKind.LATE)), unpacked, late_table(schema)
        )
        app = f"{self._job}/{name}/attempt={attempt}/late"
        self._fence.check()
        transactions.append_once(rows, path, app, batch_id, {"rows": "late", "source": name})

    def _write_channel(
        self,
        pages: DataFrame,
        batch_id: int,
        side_output: Callable[[], PageMessages] | None,
        time: SentTime | None,
    ) -> list[str] | None:
        assert self._channel is not None
        note = {"rows": "rows", "stage": self._stage.name, "batch": batch_id}
        rows = self._rows(pages, batch_id, is_kind(PageKind.DATA), side_output, time)
        self._fence.check()
        version = 2 * batch_id
        return transactions.append_once(rows, self._channel, self._channel_app, version, note)

    def _write_sink(
        self,
        pages: DataFrame,
        name: str,
        batch_id: int,
        epoch: int,
        side_output: Callable[[], PageMessages] | None,
    ) -> list[str] | None:
        made, wanted = self._made(name, batch_id, epoch), _of_epoch(epoch)
        self._fence.check()
        sink = self._sinks[name]
        if type(sink) is DeltaSink:
            return sink.append(self._rows(pages, None, wanted, side_output), made)
        # A class derived of it may look at the rows, too.
        sink.write(self._rows(pages, None, wanted).frame(), made)
        return None

    def _made(self, sink: str, batch_id: int, epoch: int) -> SinkWrite:
        return SinkWrite(self._job, self._stage.name, sink, self._attempt, batch_id, epoch)

    def _rows(
        self,
        pages: DataFrame,
        batch_id: int | None,
        wanted: Column,
        side_output: Callable[[], PageMessages] | None = None,
        time: SentTime | None = None,
    ) -> transactions.ArrowRows:
        output = self._stage.output
        schema = output if batch_id is None else channel_schema(output, time is not None)
        if side_output is not None:
            wanted |= is_kind(*SENT)
        make = unpack_function(output, batch_id, time)
        return transactions.ArrowRows(pages.where(wanted), make, schema, side_output)

    def _count(self, pages: DataFrame) -> Totals:
        return Totals(**pages.agg(*totals_columns()).collect()[0].asDict())

    def _reports(self, pages: DataFrame, totals: Totals) -> WorkerOutput:
        return read_sent(pages) if totals.reports else WorkerOutput()


def _with_time(page: Page, times: Mapping[int, StageTime]) -> Page:
    time = times.get(page.checkpoint_id) if page.kind is PageKind.BARRIER else None
    if time is None:
        return page
    return replace(page, payload=watermark_payload(time.output, time.status))


def _of_epoch(epoch: int) -> Column:
    return is_kind(PageKind.DATA) & (F.col("checkpoint_id") == epoch)
