"""Rows to DATA pages, one for each key group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.keys import key_groups
from absflow.columnar.pages import (
    CHANNEL_FIELDS,
    FOR_THE_DRIVER,
    FORWARDED,
    ORDER_FIELDS,
    Page,
    PageKind,
    _channel_rows,
    control_rows,
    encode,
    one_batch,
    page_batch,
)

__all__ = ["Packer", "gathered", "split"]


@dataclass(frozen=True, slots=True)
class Packer:
    """Packs the rows of one input into pages, before the shuffle.

    Attributes:
        input: the input's name.
        schema: the columns that the stage declared for it.
        keys: its key columns; empty means that rows stay together by partition (forwarding).
        key_groups: how many there are; a control row becomes one page for each.
        root: whether the rows come from a source (no epoch) rather than a channel.
        flush_rows: pages are cut after about so many rows, which bounds memory.
    """

    input: str
    schema: pa.Schema
    keys: tuple[str, ...]
    key_groups: int
    root: bool
    flush_rows: int = 262_144

    def pack(self, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[pa.RecordBatch]:
        """The pages of one partition's rows.

        Args:
            batches: the rows, in order.
            partition: the partition's number in the batch, part of each page's ``seq``.
        """
        for pages in self._packed(batches, partition):
            yield page_batch(pages)

    def repack(self, pages: Sequence[Page], batch_id: int, partition: int) -> list[Page]:
        """The pages of one partition of a stage as those of the next in the chain.

        Its rows, barriers and ENDs are packed as if they had gone through its channel; what it has
        for the driver is handed on.

        Args:
            pages: all that the stage emitted in the partition.
            batch_id: the batch.
            partition: the partition's number in the batch, part of each page's ``seq``.
        """
        data = (page for page in pages if page.kind is PageKind.DATA)
        rows = (_channel_rows(page, self.schema, batch_id) for page in data)
        # Every key group has emitted them; a channel gets them once, too.
        control = [page for page in pages if page.kind in FORWARDED and page.key_group == 0]
        forwarded = control_rows(control, self.schema, batch_id).to_batches()
        packed = chain.from_iterable(self._packed(chain(rows, forwarded), partition))
        return [*packed, *(page for page in pages if page.kind in FOR_THE_DRIVER)]

    def _packed(self, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[list[Page]]:
        number = 0
        for table in gathered(batches, self.flush_rows):
            pages = list(self._pages(table, partition, number))
            number += len(pages)
            if pages:
                yield pages

    def _pages(self, table: pa.Table, partition: int, number: int) -> Iterator[Page]:
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
            number += 1
            yield Page(
                key_group=group,
                kind=PageKind.DATA,
                input=self.input,
                checkpoint_id=epoch,
                seq=(partition << 32) + number,
                rows=batch.num_rows,
                payload=encode(batch),
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


def gathered(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Tables of about ``rows`` rows each: Spark hands out 10,000 at a time, too few for a page."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield pa.Table.from_batches(waiting)
            waiting, count = [], 0
    if count:
        yield pa.Table.from_batches(waiting)


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
