"""One life of a stage between two restores: its micro-batches, as workers and driver run them.

Pages are packed, run through the stage and put together by the very code of a job: the packer of
:mod:`absflow.columnar.packing`, the stage's work of :mod:`absflow.columnar.stage`, and what a
driver makes of the reports, :mod:`absflow.spark.batch.outcome`. Only what lies between is not
there: Spark, its shuffle, and the tables.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa

from absflow.columnar.event_time import range_heads, watermark_payload
from absflow.columnar.expiry import Expiry
from absflow.columnar.pages import (
    Page,
    PageKind,
    SentTime,
    decode,
    encode,
    page_batch,
    pages_of,
    unpack,
)
from absflow.columnar.piece_files import INLINE
from absflow.columnar.pieces import PAGE_BYTES
from absflow.columnar.spec import StageSpec
from absflow.columnar.stage import Batch, run_range
from absflow.columnar.state import snapshot_schema
from absflow.columnar.stored import in_range, load
from absflow.protocol import event_time
from absflow.protocol.alignment_state import Alignment, Barrier
from absflow.protocol.event_time import EventTime
from absflow.protocol.watermarks import StageTime, WatermarkStatus
from absflow.spark.batch.outcome import StageOutcome, merge_reports, split_reports
from absflow.spark.worker.packing import packer_for
from absflow.spark.worker.stage_call import close_processors

__all__ = ["Life", "Ran", "Snapshot"]

# As many tasks as there may be, so that what is of one task only is seen.
_RANGES = 2
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a stage has snapshotted at a barrier.

    Attributes:
        rows: what has changed since the base.
        time: event time there; None if the stage has none.
        expired_upto: state that was touched last up to then had expired; None if none had.
    """

    rows: pa.Table
    time: EventTime | None
    expired_upto: int | None


@dataclass(frozen=True, slots=True)
class Ran:
    """What a micro-batch has come to.

    Attributes:
        output: its rows, each table with its epoch.
        late: late rows of sources that keep them: epoch, input, rows.
        snapshots: by checkpoint.
        late_emitted: how many rows it has emitted behind the stage's own watermark.
    """

    output: tuple[tuple[int, pa.Table], ...]
    late: tuple[tuple[int, str, pa.Table], ...]
    snapshots: Mapping[int, Snapshot]
    late_emitted: int = 0


@dataclass(slots=True)
class Life:
    """A stage through its micro-batches.

    Attributes:
        spec: the stage.
        now_ms: the time of its newest micro-batch, or when it began.
        alignment: behind that.
        time: event time behind it; None if the stage has none.
        left: whether timers are due behind it, for which another is to come.
        held: rows that are held, by key group.
        batch_id: the number of the next.
    """

    spec: StageSpec
    now_ms: int
    alignment: Alignment = field(init=False)
    time: EventTime | None = field(init=False)
    left: bool = False
    held: dict[int, int] = field(default_factory=dict)
    batch_id: int = 0
    _kept: list[bytes] = field(init=False)
    _sent: int = 0
    _newest: dict[int, dict[str, Mapping[str, int | None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self.alignment, self.time = self.spec.start(0), self.spec.begin_time()
        self._kept = [b""] * len(self.heads)

    @property
    def heads(self) -> list[int]:
        """The first key group of each range."""
        groups = self.spec.key_groups
        return range_heads(groups, min(_RANGES, groups))

    # -- what comes to it ---------------------------------------------------------------------

    def rows(
        self, name: str, rows: pa.Table, epoch: int, watermark: int | None = None
    ) -> list[Page]:
        """The pages of rows of an input.

        Args:
            name: the input.
            rows: its rows, in order.
            epoch: theirs, if they come over a channel.
            watermark: what their stage has said before them.
        """
        given = self.spec.input(name)
        batches: Iterable[pa.RecordBatch] = rows.to_batches()
        if not given.root:
            page = Page(0, PageKind.DATA, checkpoint_id=epoch, seq=self._sent, payload=encode(rows))
            self._sent += rows.num_rows
            sent = SentTime(watermark) if given.timed else None
            batches = unpack([page_batch([page])], given.schema, 0, sent)
        packer = packer_for(self.spec, given, PAGE_BYTES, len(self.heads))
        before = self.time if given.timed else None
        return [page for packed in packer.pack(batches, 0, before) for page in pages_of(packed)]

    def barrier(self, name: str, barrier: Barrier, payload: bytes = b"") -> list[Page]:
        """The pages of a barrier on an input, with what it says of event time."""
        return [
            Page(
                group,
                PageKind.BARRIER,
                name,
                barrier.checkpoint_id,
                barrier.base_id,
                barrier.completed_id,
                barrier.triggered_ms,
                payload=payload,
            )
            for group in range(self.spec.key_groups)
        ]

    def watermark(self, name: str, time: int, epoch: int) -> list[Page]:
        """The pages by which a stage that is read says how far it is."""
        payload = watermark_payload(time, WatermarkStatus.ACTIVE)
        kind = PageKind.WATERMARK
        return [Page(head, kind, name, epoch, payload=payload) for head in self.heads]

    def wake(self) -> list[Page]:
        """The pages of a micro-batch in which nothing comes."""
        return [Page(head, PageKind.WAKE) for head in self.heads]

    # -- a micro-batch ------------------------------------------------------------------------

    def batch(self, pages: Sequence[Page], now_ms: int) -> Ran:
        """Run one; what it had is kept if it fails, as by a job that starts it again.

        Args:
            pages: all that comes in it.
            now_ms: its time.
        """
        if not pages:
            return Ran((), (), {})
        out, kept = self._run(pages, now_ms)
        said = [
            (page.key_group, page.payload.decode())
            for page in out
            if page.kind is PageKind.REPORT and page.input == self.spec.name
        ]
        control, report, left = split_reports(self.spec, said)
        waited_ms, at = max(0, now_ms - self.now_ms), dict[int, StageTime]()
        late_emitted = 0
        if report is not None and self.time is not None:
            late_emitted = report.late_emitted
            report = report.held_back(self.time.stage)
            self.time = event_time.counted_idle(
                report.time, waited_ms, report.brought, self._idle_ms()
            )
            at = dict(report.at)
        self._kept, self.left, self.now_ms = kept, left, now_ms
        self.batch_id += 1
        snapshots: dict[int, Snapshot] = {}
        if control:
            outcome = merge_reports(self.spec, control)
            self._note_newest(outcome)
            self.alignment = outcome.after
            self.held.update({group: rows for group, (rows, _) in outcome.held.items()})
            snapshots = {n: self._snapshot(n, out, outcome, at) for n in sorted(outcome.snapshots)}
        return Ran(tuple(self._output(out)), tuple(self._late(out)), snapshots, late_emitted)

    def restore(self, pages: Sequence[Page], checkpoint_id: int, time: EventTime | None) -> None:
        """Begin with the state that RESTORE pages bring.

        Args:
            pages: the pages.
            checkpoint_id: what they are of.
            time: event time there.
        """
        _, self._kept = self._run(pages, self.now_ms)
        self.batch_id += 1
        self.alignment = self.spec.start(checkpoint_id)
        begun = self.spec.begin_time()
        self.time = begun and event_time.restored(begun, time, checkpoint_id, {})

    def _run(self, pages: Sequence[Page], now_ms: int) -> tuple[list[Page], list[bytes]]:
        batch = Batch(self.batch_id, now_ms, self.alignment, self.time)
        ends = [*self.heads[1:], self.spec.key_groups]
        out: list[Page] = []
        kept = list(self._kept)
        for number, (head, end) in enumerate(zip(self.heads, ends, strict=True)):
            mine = [page for page in pages if head <= page.key_group < end]
            if mine:  # else Spark does not call it
                made, kept[number] = _all_of(run_range(self.spec, batch, mine, kept[number]))
                out += made
                close_processors(self.spec)
        return out, kept

    def _idle_ms(self) -> dict[str, int]:
        times = {given.name: given.event_time for given in self.spec.inputs}
        return {n: t.idle_ms for n, t in times.items() if t is not None and t.idle_ms is not None}

    def _note_newest(self, outcome: StageOutcome) -> None:
        """Of a source counts how far its partitions had come where its barrier came."""
        if self.time is None:
            return
        for name, checkpoint_id, _ in outcome.arrived:
            if name in self.time.sources:
                note = self._newest.setdefault(checkpoint_id, {})
                note.setdefault(name, dict(self.time.sources[name].newest))

    def _snapshot(
        self, n: int, out: Iterable[Page], outcome: StageOutcome, at: Mapping[int, StageTime]
    ) -> Snapshot:
        schema = snapshot_schema(self.spec.keys, self.spec.state)
        mine = [p for p in out if p.kind is PageKind.STATE and p.checkpoint_id == n]
        batches = [decode(p.payload, schema, f"snapshot {n}") for p in mine]
        time = self.time
        if time is not None:
            newest = self._newest.get(n, {})
            sources = {
                name: replace(source, newest=newest.get(name, source.newest))
                for name, source in time.sources.items()
            }
            time = EventTime(at.get(n, time.stage), sources)
        rows = pa.Table.from_batches(batches, schema)
        return Snapshot(rows, time, outcome.expired_upto.get(n))

    def _output(self, out: Iterable[Page]) -> Iterator[tuple[int, pa.Table]]:
        for page in out:
            if page.kind is PageKind.DATA:
                rows = decode(page.payload, self.spec.output, "output")
                yield page.checkpoint_id, pa.Table.from_batches([rows])

    def _late(self, out: Iterable[Page]) -> Iterator[tuple[int, str, pa.Table]]:
        for page in out:
            if page.kind is PageKind.LATE:
                rows = decode(page.payload, self.spec.input(page.input).schema, "late rows")
                yield page.checkpoint_id, page.input, pa.Table.from_batches([rows])

    # -- what it has --------------------------------------------------------------------------

    def state(self) -> pa.Table:
        """The rows of all keys that have state, with all columns that absflow keeps of them."""
        spec, what = self.spec, f"state of stage {self.spec.name!r}"
        upto = self._expired_upto(spec.expiry)
        found: list[pa.RecordBatch] = []
        for kept in filter(None, self._kept):
            for stored in in_range(kept, what).values():
                live = load(stored, spec.keys, spec.state, INLINE, what).live_batches(upto)
                found += [batch.select([*spec.keys.names, *spec.state.names]) for batch in live]
        return pa.Table.from_batches(found, pa.schema([*spec.keys, *spec.state]))

    def _expired_upto(self, expiry: Expiry | None) -> int | None:
        reached = None if self.time is None else self.time.stage.value
        return None if expiry is None else expiry.upto(reached, self.now_ms)


def _all_of(work: Generator[Page, None, _Value]) -> tuple[list[Page], _Value]:
    """The pages that are made, and what is returned at last."""
    made = []
    while True:
        try:
            made.append(next(work))
        except StopIteration as end:
            return made, end.value
