"""Rows to DATA pages, one for each key group, or several of a size."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.keys import key_groups
from absflow.columnar.pages import (
    CHANNEL_FIELDS,
    FOR_THE_DRIVER,
    ORDER_FIELDS,
    Page,
    PageKind,
    _channel_rows,
    control_rows,
    one_batch,
    page_batches,
)
from absflow.columnar.pieces import PAGE_BYTES, encode_pieces

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
    """

    input: str
    schema: pa.Schema
    keys: tuple[str, ...]
    key_groups: int
    root: bool
    flush_rows: int = 262_144
    page_bytes: int = PAGE_BYTES

    def pack(self, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[pa.RecordBatch]:
        """The pages of one partition's rows.

        Args:
            batches: the rows, in order.
            partition: the partition's number in the batch, part of each page's ``seq``.
        """
        yield from page_batches(self._packed(batches, partition), self.page_bytes)

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
            elif page.kind is PageKind.DATA:
                for table in gathering.add(_channel_rows(page, self.schema, batch_id)):
                    yield from self._pages(table, partition, numbers)
            elif page.key_group == 0:
                # Every key group has emitted them; a channel gets them once, too.
                control.append(page)
        for table in gathering.rest():
            yield from self._pages(table, partition, numbers)
        if control:
            forwarded = control_rows(control, self.schema, batch_id)
            yield from self._pages(forwarded, partition, numbers)

    def _packed(self, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[Page]:
        numbers = itertools.count(1)
        for table in gathered(batches, self.flush_rows, FLUSH_PAGES * self.page_bytes):
            yield from self._pages(table, partition, numbers)

    def _pages(self, table: pa.Table, partition: int, numbers: Iterator[int]) -> Iterator[Page]:
        if not self.root:
            is_data = pc.equal(table["_kind"], PageKind.DATA.value)
            yield from self._control(table.filter(pc.invert(is_data)))
            table = table.filter(is_data)
        if not table.num_rows:
            return
        columns = [table[field.name].cast(field.type) for field in self.schema]
        rows = pa.table(columns, schema=self.schema)
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
        for row in table.select([field.name for field in CHANNEL_FIELDS]).to_pylist():
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
                )


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
