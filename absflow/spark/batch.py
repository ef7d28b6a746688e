"""One micro-batch of a stage on the driver: commit its rows, hand over its snapshots, report.

Order of the writes of batch b, and what a kill between two of them leaves behind:

1. rows to the channel (``txnVersion`` 2b): the only action that runs the stateful operator; its
   pages are persisted and everything else is read from there;
2. rows to the sinks, one commit per epoch;
3. if the batch met a control row: STATE pages to staging files; barriers to the channel
   (``txnVersion`` 2b + 1), a commit of their own because a Delta reader never passes a version
   before it has read all of it; the alignment after the batch;
4. the report to the coordinator, then Spark's own commit of the batch.

Whatever is missing after a kill is done by the replay of b, which runs the operator again on the
state before b and gets the same pages; what is there already is skipped by its transaction id.
Delta skips such a write without running its plan, so the first batch after a start is materialised
by an action of its own before it is written. Before each write the fence is asked whether a newer
driver has started.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.columnar.pages import (
    CHANNEL_FIELDS,
    SEQ_BITS,
    PageKind,
    channel_schema,
    unpack,
)
from absflow.columnar.stage import StageSpec
from absflow.errors import ProtocolViolation, ReplayMismatchError, StorageError
from absflow.protocol import alignment
from absflow.protocol.alignment import Alignment
from absflow.protocol.checkpoints import FailureReason, StageReport
from absflow.protocol.messages import CheckpointFailed, Event, HeldTooMuch, StageReported
from absflow.sinks import Sink, SinkWrite
from absflow.spark.alignment_log import AlignmentLog, Arrived
from absflow.spark.backpressure import Backpressure
from absflow.spark.drain import Drain
from absflow.spark.plan import ALIGNMENT_PROPERTY, settle, source_index
from absflow.spark.positions import SourceLogs
from absflow.spark.snapshots import SnapshotAppender
from absflow.storage import tables
from absflow.storage.fence import Fence
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["StageBatches"]


@dataclass(frozen=True, slots=True)
class _Control:
    """The REPORT pages of one batch, put together over the key groups."""

    after: Alignment
    arrived: tuple[tuple[str, int, int], ...]
    skipped: frozenset[int]
    snapshots: dict[int, tuple[int, int, int, int]]
    held: dict[int, tuple[int, int]]


class _StoppedError(Exception):
    """The query was stopped inside a batch.

    Spark tells a stop from a failure by a regular expression over what Python prints, which
    overflows the stack of the query's thread on a text as long as a Java stack trace.
    """

    def __str__(self) -> str:
        return (
            "py4j.protocol.Py4JJavaError: An error occurred while calling a batch: "
            "java.lang.InterruptedException"
        )


class StageBatches:
    """The ``foreachBatch`` of one stage's query, from one start of the query on."""

    def __init__(
        self,
        job: str,
        spec: StageSpec,
        layout: Layout,
        attempt: int,
        files: Files,
        *,
        restored: int,
        channel: bool,
        sinks: dict[str, Sink],
        appender: SnapshotAppender,
        drain: Drain,
        backpressure: Backpressure,
        max_held_bytes: int,
        fence: Fence,
        tell: Callable[[Event], None],
    ) -> None:
        """Take up the stage where its last committed batch left it.

        Args:
            job: the job's name.
            spec: the stage.
            layout: where things lie.
            attempt: the job's attempt.
            files: for the alignment log and Spark's offset log.
            restored: the checkpoint that the attempt began with; 0 if none.
            channel: whether the stage has consumers.
            sinks: the stage's sinks by name.
            appender: takes the snapshots.
            drain: may hold the stage.
            backpressure: may hold it, too.
            max_held_bytes: ``alignment.max-held``.
            fence: asked before each write.
            tell: puts an event into the coordinator's queue.
        """
        self._job = job
        self._spec = spec
        self._layout = layout
        self._attempt = attempt
        self._files = files
        self._channel = layout.channel(spec.name, attempt) if channel else None
        self._sinks = sinks
        self._first_sink = next((name for name, sink in sinks.items() if sink.reads_all), None)
        self._appender = appender
        self._drain = drain
        self._backpressure = backpressure
        self._max_held_bytes = max_held_bytes
        self._fence = fence
        self._tell = tell
        self._first = True
        inputs = [given.name for given in spec.inputs]
        self._align = alignment.start(inputs, restored)
        self._log = AlignmentLog(files, layout.alignment(spec.name, attempt), self._align)
        self._source_logs = SourceLogs(files, layout, spec, attempt)
        self._arrived: dict[int, Arrived] = {}
        self._held: dict[int, tuple[int, int]] = {}
        self._rows_out = 0
        self._told_held: set[int] = set()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Run one micro-batch; called by Spark on the thread of the query."""
        if self._first:
            self._align, self._arrived = self._log.load(batch_id)
        self._backpressure.wait(self._spec.name, batch_id, self._align.snapshot)
        if not self._drain.may_run(self._align.snapshot):
            raise _StoppedError
        frame.sparkSession.sparkContext.setLocalProperty(
            ALIGNMENT_PROPERTY, alignment.to_json(self._align)
        )
        pages = frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            self._batch(pages, batch_id, tables.now_ms())
        except Py4JJavaError as error:
            if "java.lang.InterruptedException" in str(error):
                raise _StoppedError from None
            raise
        finally:
            pages.unpersist()
        self._first = False

    def _batch(self, pages: DataFrame, batch_id: int, started_ms: int) -> None:
        epoch = self._align.epoch
        seen = self._write_first(pages, batch_id, epoch)
        control = self._control(pages) if seen["reports"] else None
        epochs = [epoch]
        if control is not None:
            epochs += [n + 1 for n in sorted(control.snapshots)]
        self._write_sinks(pages, batch_id, [e for e in epochs if e <= (seen["epoch"] or 0)])
        self._rows_out += seen["rows"] or 0
        commit_ms = tables.now_ms() - started_ms
        if control is None:
            return
        self._note_arrivals(control, batch_id, started_ms)
        staged = {
            n: self._stage_snapshot(pages, n)
            for n, (rows, *_) in sorted(control.snapshots.items())
            if rows
        }
        sync_ms = tables.now_ms() - started_ms - commit_ms
        commit_ms += self._forward(pages, batch_id)
        self._save_alignment(batch_id, control.after)
        self._report(control, staged, batch_id, started_ms, sync_ms, commit_ms)

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
        note = {"rows": "rows", "stage": self._spec.name, "batch": batch_id}
        rows = self._rows(pages, batch_id)
        self._fence.check()
        tables.append(rows, self._channel, self._channel_app, 2 * batch_id, note)

    def _rows(self, pages: DataFrame, batch_id: int | None) -> DataFrame:
        output = self._spec.output
        schema = output if batch_id is None else channel_schema(output)

        def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            settle()
            return unpack(batches, output, batch_id)

        data = pages.where(F.col("kind") == PageKind.DATA.value)
        return data.mapInArrow(rows, from_arrow_schema(schema))

    def _write_sinks(self, pages: DataFrame, batch_id: int, epochs: list[int]) -> None:
        """Write what :meth:`_write_first` has not: epochs in order, sink by sink."""
        for name in self._sinks:
            done = not self._first and self._channel is None and name == self._first_sink
            for epoch in epochs:
                if not (done and epoch == self._align.epoch):
                    self._write_sink(pages, name, batch_id, epoch)

    def _write_sink(self, pages: DataFrame, name: str, batch_id: int, epoch: int) -> None:
        made = SinkWrite(self._job, self._spec.name, name, self._attempt, batch_id, epoch)
        rows = self._rows(pages.where(F.col("checkpoint_id") == epoch), None)
        self._fence.check()
        self._sinks[name].write(rows, made)

    # -- replay -------------------------------------------------------------------------------

    def _replayed(self, pages: DataFrame, batch_id: int) -> bool:
        """Whether the channel has the rows of this batch already; they must be the same rows."""
        assert self._channel is not None
        there = tables.read(pages.sparkSession, self._channel).where(
            (F.col("_epoch") >= self._align.epoch)  # the partitions to look into
            & (F.col("_seq") >= batch_id << SEQ_BITS)
            & (F.col("_seq") < batch_id + 1 << SEQ_BITS)
            & (F.col("_kind") == PageKind.DATA.value)
        )
        due = _digest(there)
        if due == (0, 0):
            return False  # or it had no rows; then Delta skips the write
        seen = _digest(self._rows(pages, batch_id))
        if seen != due:
            raise ReplayMismatchError(
                f"stage {self._spec.name!r}, batch {batch_id}: the replay gave {seen[0]} rows with "
                f"digest {seen[1]}, but its channel has {due[0]} with {due[1]}. The process "
                "function must depend on nothing but rows, state and context (no clock, no random "
                "numbers of its own). Restore from a checkpoint"
            )
        return True

    # -- control rows -------------------------------------------------------------------------

    def _control(self, pages: DataFrame) -> _Control:
        reports = (
            pages.where(F.col("kind") == PageKind.REPORT.value)
            .select("key_group", "payload")
            .collect()
        )
        return _merge(self._spec, reports)

    def _note_arrivals(self, control: _Control, batch_id: int, started_ms: int) -> None:
        offsets: list[str] | None = None
        roots = [given.name for given in self._spec.inputs if given.root]
        for name, checkpoint_id, triggered_ms in control.arrived:
            note = self._arrived.setdefault(checkpoint_id, Arrived(started_ms, triggered_ms))
            if name in roots:
                offsets = offsets or self._offsets(batch_id)
                self._keep_position(note, name, offsets)
        for checkpoint_id in control.snapshots:
            note = self._arrived.setdefault(checkpoint_id, Arrived(started_ms, started_ms))
            for name in roots:  # a root input that ended before brought no barrier
                if name not in note.positions:
                    offsets = offsets or self._offsets(batch_id)
                    self._keep_position(note, name, offsets)
        self._held.update(control.held)
        rows, size = (sum(h[i] for h in self._held.values()) for i in (0, 1))
        for checkpoint_id in control.after.blocking & self._arrived.keys():
            note = self._arrived[checkpoint_id]
            note.held_rows = max(note.held_rows, rows)
            note.held_bytes = max(note.held_bytes, size)
            if size > self._max_held_bytes and checkpoint_id not in self._told_held:
                self._told_held.add(checkpoint_id)
                cause = f"stage {self._spec.name} holds {size} bytes"
                self._tell(HeldTooMuch(checkpoint_id, cause))

    def _keep_position(self, note: Arrived, name: str, offsets: list[str]) -> None:
        if name not in note.positions:
            position = offsets[source_index(self._spec, name)]
            self._fence.check()
            self._source_logs.keep(name, position)
            note.positions[name] = position

    def _offsets(self, batch_id: int) -> list[str]:
        """The end offsets of the batch's sources, as Spark has written them before the batch."""
        spark_checkpoint = self._layout.spark_checkpoint(self._spec.name, self._attempt)
        path = f"{spark_checkpoint}/offsets/{batch_id}"
        text = self._files.read(path)
        if text is None:
            raise StorageError(f"{path!r} is gone while its batch runs; restore the job")
        return text.splitlines()[2:]

    def _stage_snapshot(self, pages: DataFrame, checkpoint_id: int) -> str:
        """Put the STATE pages aside as files, so that the operator never runs again for them."""
        path = f"{self._layout.staging(self._spec.name, self._attempt)}/{checkpoint_id}"
        state = pages.where(
            (F.col("kind") == PageKind.STATE.value) & (F.col("checkpoint_id") == checkpoint_id)
        )
        self._fence.check()
        state.write.mode("overwrite").parquet(path)
        return path

    def _forward(self, pages: DataFrame, batch_id: int) -> int:
        """Commit the batch's barriers to the channel; the time it took in ms."""
        started = tables.now_ms()
        if self._channel is None:
            return 0
        kinds = [PageKind.BARRIER.value, PageKind.END.value]
        control = (
            pages.where(F.col("kind").isin(kinds) & (F.col("key_group") == 0))
            .select("kind", "checkpoint_id", "base_id", "completed_id", "triggered_ms")
            .collect()
        )
        if not control:
            return 0
        rows = [_barrier_row(row, batch_id) for row in control]
        table = pa.Table.from_pylist(rows, schema=channel_schema(self._spec.output))
        frame = pages.sparkSession.createDataFrame(table).coalesce(1)
        words = [f"{row['kind'].lower()} {row['checkpoint_id']}" for row in control]
        note = {"rows": ", ".join(words), "stage": self._spec.name, "batch": batch_id}
        self._fence.check()
        tables.append(frame, self._channel, self._channel_app, 2 * batch_id + 1, note)
        return tables.now_ms() - started

    def _report(
        self,
        control: _Control,
        staged: dict[int, str],
        batch_id: int,
        started_ms: int,
        sync_ms: int,
        commit_ms: int,
    ) -> None:
        channels = [given.name for given in self._spec.inputs if not given.root]
        overtaken = {
            n: [name for name in channels if alignment.in_flight(control.after, name, n)]
            for n in control.snapshots
        }
        offsets = self._offsets(batch_id) if any(overtaken.values()) else []
        for checkpoint_id, totals in sorted(control.snapshots.items()):
            note = self._arrived[checkpoint_id]
            report = StageReport(
                stage=self._spec.name,
                checkpoint_id=checkpoint_id,
                batch_id=batch_id,
                positions=note.positions,
                in_flight={
                    name: offsets[source_index(self._spec, name)]
                    for name in overtaken[checkpoint_id]
                },
                rows_changed=totals[0],
                bytes_changed=totals[1],
                keys_total=totals[2],
                bytes_total=totals[3],
                rows_out=self._rows_out,
                held_rows=note.held_rows,
                held_bytes=note.held_bytes,
                start_delay_ms=max(0, note.at_ms - note.triggered_ms),
                alignment_ms=max(0, started_ms - note.at_ms),
                sync_ms=sync_ms,
                commit_ms=commit_ms,
            )
            self._rows_out = 0
            self._tell(StageReported(report))
            self._appender.submit(checkpoint_id, staged.get(checkpoint_id))
        for checkpoint_id in sorted(control.skipped):
            cause = f"stage {self._spec.name}"
            self._tell(CheckpointFailed(checkpoint_id, FailureReason.DECLINED, cause))
        settled = control.after.snapshot
        self._arrived = {n: note for n, note in self._arrived.items() if n > settled}
        self._told_held = {n for n in self._told_held if n > settled}

    # -- alignment ----------------------------------------------------------------------------

    def _save_alignment(self, batch_id: int, after: Alignment) -> None:
        if after != self._align:
            self._fence.check()
            self._log.save(batch_id, after, self._arrived)
            self._align = after

    @property
    def _channel_app(self) -> str:
        return f"{self._job}/{self._spec.name}/attempt={self._attempt}/channel"


def _is(kind: PageKind) -> Any:
    return F.col("kind") == kind.value


def _seen() -> list[Any]:
    """What every batch tells about its pages, at no cost of its own."""
    return [
        F.sum(F.when(_is(PageKind.DATA), F.col("rows")).otherwise(0)).alias("rows"),
        F.max(F.when(_is(PageKind.DATA), F.col("checkpoint_id"))).alias("epoch"),
        F.count(F.when(_is(PageKind.REPORT), 1)).alias("reports"),
    ]


def _merge(spec: StageSpec, reports: list[Row]) -> _Control:
    """Put the key groups' reports together.

    Raises:
        ProtocolViolation: if two key groups came to different alignments: they saw different
            control rows, so their snapshots would not be one cut.
    """
    parsed = {row["key_group"]: json.loads(bytes(row["payload"])) for row in reports}
    controlled = {g: r for g, r in parsed.items() if r["arrived"] or r["snapshots"]}
    texts = {r["alignment"] for r in parsed.values()}
    if len(texts) != 1 or (controlled and len(controlled) != spec.key_groups):
        raise ProtocolViolation(
            f"stage {spec.name!r}: {len(controlled)} of {spec.key_groups} key groups met the "
            f"batch's control rows and they came to {len(texts)} alignments, but all must meet the "
            f"same rows; states {sorted(texts)[:3]}"
        )
    snapshots: dict[int, list[int]] = {}
    for report in parsed.values():
        for checkpoint_id, *numbers in report["snapshots"]:
            total = snapshots.setdefault(checkpoint_id, [0, 0, 0, 0])
            for place, number in enumerate(numbers):
                total[place] += number
    arrived: list[tuple[str, int, int]] = next((r["arrived"] for r in controlled.values()), [])
    return _Control(
        after=alignment.from_json(texts.pop()),
        arrived=tuple((name, number, ms) for name, number, ms in arrived),
        skipped=frozenset(n for r in parsed.values() for n in r["skipped"]),
        snapshots={n: (t[0], t[1], t[2], t[3]) for n, t in snapshots.items()},
        held={g: (r["held_rows"], r["held_bytes"]) for g, r in parsed.items()},
    )


def _barrier_row(row: Row, batch_id: int) -> dict[str, Any]:
    fields = {field.name: None for field in CHANNEL_FIELDS}
    return {
        **fields,
        "_epoch": row["checkpoint_id"],
        # Behind every row of the batch.
        "_seq": (batch_id + 1 << SEQ_BITS) - 1,
        "_key_group": 0,
        "_kind": row["kind"],
        "_barrier": {
            "base_id": row["base_id"],
            "completed_id": row["completed_id"],
            "triggered_ms": row["triggered_ms"],
        },
    }


def _digest(rows: DataFrame) -> tuple[int, int]:
    """Count and sum of row hashes: equal for equal bags of rows, in whatever files they lie."""
    columns = [F.col(name) for name in rows.columns if name != "_barrier"]
    # The sum of hashes would overflow a long under ANSI rules.
    hashed = F.sum(F.xxhash64(*columns).cast("decimal(38,0)"))
    row = rows.agg(F.count("*").alias("rows"), hashed.alias("digest")).collect()[0]
    return int(row["rows"]), int(row["digest"] or 0)
