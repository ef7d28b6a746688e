"""Rows to DATA pages, one for each key group, or several of a size."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.event_time import LATE_FIELD, RootTime, SourceRows, watermark_payload
from absflow.columnar.keys import key_groups
from absflow.columnar.pages import (
    CHANNEL_FIELDS,
    FOR_THE_DRIVER,
    ORDER_FIELDS,
    TIME_FIELDS,
    Page,
    PageKind,
    _channel_rows,
    control_rows,
    one_batch,
    page_batches,
)
from absflow.columnar.pieces import PAGE_BYTES, encode_pieces
from absflow.errors import ProcessError
from absflow.protocol.event_time import EventTime, brings, from_datetime
from absflow.protocol.watermarks import Watermark, WatermarkStatus

__all__ = ["FLUSH_PAGES", "Gathering", "Packer", "gathered", "split"]

# So many full pages are gathered before they are cut: rows of a hundred key groups come together.
FLUSH_PAGES = 64


@dataclass(frozen=True, slots=True)
class Packer:
    """Packs the rows of one input into pages, before the shuffle.

    Attributes:
        input: the input's name.
        schema: the columns that the stage declared for it.
        keys: its key columns; empty means that rows stay together by partition (forwarding).
        key_groups: how many there are; a control row becomes one page for each.
        root: whether the rows come from a source (no epoch) rather than a channel.
        flush_rows: pages are cut after about so many rows, or :data:`FLUSH_PAGES` times
            ``page_bytes``, which bounds memory.
        page_bytes: a page has at most so many bytes.
        event_time: of a source whose rows have event time.
        timed: whether they have, and come from a stage.
        heads: the first key group of each range; each range gets each WATERMARK page.
    """

    input: str
    schema: pa.Schema
    keys: tuple[str, ...]
    key_groups: int
    root: bool
    flush_rows: int = 262_144
    page_bytes: int = PAGE_BYTES
    event_time: RootTime | None = None
    timed: bool = False
    heads: tuple[int, ...] = (0,)

    def pack(
        self, batches: Iterable[pa.RecordBatch], partition: int, before: EventTime | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The pages of one partition's rows.

        Args:
            batches: the rows, in order.
            partition: the partition's number in the batch, part of each page's ``seq``.
            before: the stage's event time before the batch, if it has any.
        """
        yield from page_batches(self._packed(batches, partition, before), self.page_bytes)

    def repack(self, pages: Iterable[Page], batch_id: int, partition: int) -> Iterator[Page]:
        """The pages of one partition of a stage as those of the next in the chain.

        Its rows, barriers and ENDs are packed as if they had gone through its channel; what it has
        for the driver is handed on.

        Args:
            pages: all that the stage emits in the partition; no more of them are in memory than
                what is to be packed next.
            batch_id: the batch.
            partition: the partition's number in the batch, part of each page's ``seq``.
        """
        numbers = itertools.count(1)
        gathering = Gathering(self.flush_rows, FLUSH_PAGES * self.page_bytes)
        control: list[Page] = []
        for page in pages:
            if page.kind in FOR_THE_DRIVER:
                yield page
            elif page.kind in (PageKind.WATERMARK, PageKind.WAKE):
                for head in self.heads:
                    yield replace(page, key_group=head, input=self.input)
            elif page.kind is PageKind.DATA:
                for table in gathering.add(_channel_rows(page, self.schema, batch_id, None)):
                    yield from self._pages(table, partition, numbers)
            elif page.key_group == 0:
                # Every key group has emitted them; a channel gets them once, too.
                control.append(page)
        for table in gathering.rest():
            yield from self._pages(table, partition, numbers)
        if control:
            forwarded = control_rows(control, self.schema, batch_id, self.timed)
            yield from self._pages(forwarded, partition, numbers)

    def _packed(
        self, batches: Iterable[pa.RecordBatch], partition: int, before: EventTime | None
    ) -> Iterator[Page]:
        numbers = itertools.count(1)
        tables = gathered(batches, self.flush_rows, FLUSH_PAGES * self.page_bytes)
        if self.event_time is not None:
            assert before is not None  # the stage has this input
            source = before.sources[self.input]
            known = {name: at for name, at in source.newest.items() if at is not None}
            reached = before.reached(self.input)
            seen = SourceRows(self.input, self.event_time, known, reached)
            for table in tables:
                late = seen.look(table)
                yield from self._late_pages(table, late, partition, numbers)
                yield from self._pages(table, partition, numbers, late)
            yield from seen.pages(self.heads)
            return
        sent: dict[int, int] = {}
        for table in tables:
            if self.timed and before is not None:
                _note_watermarks(table, sent)
            yield from self._pages(table, partition, numbers)
        if self.timed and before is not None:
            yield from self._watermark_pages(sent, before)

    def _watermark_pages(self, sent: Mapping[int, int], before: EventTime) -> Iterator[Page]:
        """What the rows of a channel say of its sender, unless the stage knows it."""
        known = before.stage.inputs[self.input]
        for epoch, value in sorted(sent.items()):
            watermark = Watermark(epoch, value)
            if brings(before.stage, self.input, watermark).inputs[self.input] == known:
                continue
            payload = watermark_payload(value, watermark.status)
            for head in self.heads:
                yield Page(head, PageKind.WATERMARK, self.input, epoch, payload=payload)

    def _late_pages(
        self, table: pa.Table, late: pa.Array, partition: int, numbers: Iterator[int]
    ) -> Iterator[Page]:
        """The late rows for a table, or an error; if that is what is to become of them."""
        assert self.event_time is not None
        kind = self.event_time.late
        if kind in ("drop", "process") or not pc.any(late).as_py():
            return
        rows = table.filter(late)
        if kind == "fail":
            raise ProcessError(
                f"source {self.input!r}: {rows.num_rows} rows come late, behind the watermark of "
                f"their partition; the first is {rows.slice(0, 1).to_pylist()[0]}. The batch is "
                'not committed; give a longer delay, or another answer than late="fail"'
            )
        rows = pa.table([rows[f.name].cast(f.type) for f in self.schema], schema=self.schema)
        head = self.heads[partition % len(self.heads)]
        for batch in rows.to_batches():
            for count, payload in encode_pieces(batch, self.page_bytes):
                seq = (partition << 32) + next(numbers)
                yield Page(head, PageKind.LATE, self.input, seq=seq, rows=count, payload=payload)

    def _pages(
        self,
        table: pa.Table,
        partition: int,
        numbers: Iterator[int],
        late: pa.Array | None = None,
    ) -> Iterator[Page]:
        if not self.root:
            is_data = pc.equal(table["_kind"], PageKind.DATA.value)
            yield from self._control(table.filter(pc.invert(is_data)))
            table = table.filter(is_data)
        processes_late = self.event_time is not None and self.event_time.late == "process"
        if late is not None and not processes_late and pc.any(late).as_py():
            table = table.filter(pc.invert(late))
        if not table.num_rows:
            return
        columns = [table[field.name].cast(field.type) for field in self.schema]
        rows = pa.table(columns, schema=self.schema)
        if processes_late:
            rows = rows.append_column(LATE_FIELD, late)
        if self.keys:
            groups = key_groups([rows[k] for k in self.keys], self.key_groups)
        else:
            groups = np.full(rows.num_rows, partition % self.key_groups, dtype=np.int32)
        epochs = np.zeros(rows.num_rows, dtype=np.int64)
        if not self.root:
            epochs = table["_epoch"].to_numpy().astype(np.int64)
            for field in ORDER_FIELDS:
                rows = rows.append_column(field, table[field.name])
        for epoch, group, batch in split(rows, epochs, groups):
            for count, payload in encode_pieces(batch, self.page_bytes):
                yield Page(
                    key_group=group,
                    kind=PageKind.DATA,
                    input=self.input,
                    checkpoint_id=epoch,
                    seq=(partition << 32) + next(numbers),
                    rows=count,
                    payload=payload,
                )

    def _control(self, table: pa.Table) -> Iterator[Page]:
        # An attempt whose rows are in flight may have had no event time.
        names = [f.name for f in (*CHANNEL_FIELDS, *TIME_FIELDS) if f.name in table.column_names]
        for row in table.select(names).to_pylist() if table.num_rows else ():
            payload = b""
            if row.get("_watermark_status"):
                said = row["_watermark"]
                value = None if said is None else from_datetime(said)
                payload = watermark_payload(value, WatermarkStatus(row["_watermark_status"]))
            barrier = row["_barrier"] or dict.fromkeys(("base_id", "completed_id", "triggered_ms"))
            for group in range(self.key_groups):
                yield Page(
                    key_group=group,
                    kind=PageKind(row["_kind"]),
                    input=self.input,
                    checkpoint_id=row["_epoch"],
                    base_id=barrier["base_id"] or 0,
                    completed_id=barrier["completed_id"] or 0,
                    triggered_ms=barrier["triggered_ms"] or 0,
                    payload=payload,
                )


def _note_watermarks(table: pa.Table, sent: dict[int, int]) -> None:
    """The greatest watermark on the rows of each epoch."""
    rows = table.filter(pc.equal(table["_kind"], PageKind.DATA.value))
    rows = rows.select(["_epoch", "_watermark"]).filter(rows["_watermark"].is_valid())
    found = rows.group_by("_epoch").aggregate([("_watermark", "max")])
    for epoch, value in zip(
        found["_epoch"].to_pylist(),
        found["_watermark_max"].cast(pa.int64()).to_pylist(),
        strict=True,
    ):
        sent[epoch] = max(value, sent.get(epoch, value))


class Gathering:
    """Puts batches together: Spark hands out 10,000 rows at a time, too few for a page."""

    def __init__(self, rows: int, size: int) -> None:
        """To tables of about so many rows, or bytes if that is less."""
        self._rows, self._size = rows, size
        self._waiting: list[pa.RecordBatch] = []
        self._have_rows = self._have_bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """Take a batch; gives what is large enough now."""
        # What Arrow holds for it is known at once, but may be of more rows than these.
        size = batch.get_total_buffer_size()
        if size > self._size // 16:
            size = batch.nbytes
        if self._have_bytes + size > self._size:
            yield from self.rest()
        self._waiting.append(batch)
        self._have_rows += batch.num_rows
        self._have_bytes += size
        if self._have_rows >= self._rows or self._have_bytes >= self._size:
            yield from self.rest()

    def rest(self) -> Iterator[pa.Table]:
        """All that waits, if there is a row."""
        waiting, rows = self._waiting, self._have_rows
        self._waiting, self._have_rows, self._have_bytes = [], 0, 0
        if rows:
            yield pa.Table.from_batches(waiting)


def gathered(batches: Iterable[pa.RecordBatch], rows: int, size: int) -> Iterator[pa.Table]:
    """The batches in tables of about so many rows, or bytes if that is less."""
    gathering = Gathering(rows, size)
    for batch in batches:
        yield from gathering.add(batch)
    yield from gathering.rest()


def split(
    rows: pa.Table, epochs: npt.NDArray[np.int64], groups: npt.NDArray[np.int32]
) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Cut into runs of equal (epoch, key group); the order of rows within a run is kept."""
    first_epoch = int(epochs.min())
    code = (epochs - first_epoch) * (int(groups.max()) + 1) + groups
    # A radix sort, for the codes of nearly all batches are small.
    order = np.argsort(code.astype(np.uint16) if code.max() < 65_536 else code, kind="stable")
    batch = one_batch(rows.take(pa.array(order)))
    code = code[order]
    edges = np.flatnonzero(np.diff(code)) + 1
    for start, stop in zip([0, *edges], [*edges, len(code)], strict=True):
        at = order[start]
        yield int(epochs[at]), int(groups[at]), batch.slice(start, stop - start)
