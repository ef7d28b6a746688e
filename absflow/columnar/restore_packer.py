"""State on its way back: from rows of a state history to RESTORE pages for new key groups.

The rows of all sets of a lineage are hashed to the key groups of now, whatever their number was,
and packed into RESTORE pages. A key group lays its pages on each other in the order of the lineage
(:mod:`~absflow.columnar.restoring`): the last row of a key wins. So nothing is sorted or joined,
however many sets there are. The pages carry the digests of what was read, so that the rows are read
once, and seen to be all of each set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.aside import aside
from absflow.columnar.clocks import moved
from absflow.columnar.digest import set_digests
from absflow.columnar.expiry import TOUCHED, expired
from absflow.columnar.keys import key_groups
from absflow.columnar.packing import FLUSH_PAGES, gathered, split
from absflow.columnar.pages import Page, PageKind, page_batches
from absflow.columnar.piece_files import INLINE, StateFiles
from absflow.columnar.pieces import PAGE_BYTES, encode_pieces
from absflow.columnar.state import OWN_COLUMNS, snapshot_schema
from absflow.errors import ProcessError

__all__ = ["Migration", "StatePacker"]

# The old state of some keys (key and state columns) in, their new state out. It is called with
# parts of a stage's state and must not depend on which keys come together.
Migration = Callable[[pa.Table], pa.Table]
# Rows that are read together and make more pages than this are put aside.
_FEW_PAGES = 4


@dataclass(frozen=True, slots=True)
class StatePacker:
    """Packs rows of a state history into RESTORE pages.

    Attributes:
        stage: the stage's name.
        keys: its key columns.
        state: its state columns.
        key_groups: how many there are now.
        checkpoint_id: what is restored.
        lineage: the sets, oldest first.
        defaults: values of state columns that the rows do not have.
        migrate: makes the rows of now out of those of then.
        flush_rows: pages are cut after about so many rows, or ``FLUSH_PAGES`` times ``page_bytes``,
            which bounds memory.
        page_bytes: a page has at most so many bytes.
        files: where payloads are put aside; None if they all travel in their pages.
        expired_upto: state that was touched last up to then had expired at the checkpoint; None if
            none had.
        moved_us: what waits for processing time is to wait for one that is so much later.
        expires_by_clock: the state expires in processing time.
    """

    stage: str
    keys: pa.Schema
    state: pa.Schema
    key_groups: int
    checkpoint_id: int
    lineage: Sequence[int]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    migrate: Migration | None = None
    flush_rows: int = 262_144
    page_bytes: int = PAGE_BYTES
    files: StateFiles = INLINE
    expired_upto: int | None = None
    moved_us: int = 0
    expires_by_clock: bool = False

    def pack(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The pages of one partition's rows.

        Args:
            batches: rows with ``set_id``, ``op`` and the key and state columns of then.

        Raises:
            ProcessError: the migration failed.
        """
        yield from page_batches(self._pages(batches), self.page_bytes)

    def _pages(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Page]:
        for table in gathered(batches, self.flush_rows, FLUSH_PAGES * self.page_bytes):
            pages = self._pages_of(table)
            if self.files != INLINE and table.nbytes > _FEW_PAGES * self.page_bytes:
                pages = aside(pages, self.files)
            yield from pages

    def _pages_of(self, table: pa.Table) -> Iterator[Page]:
        digests = self._digests(table)
        rows, places = self._rows(table)
        if not rows.num_rows:
            return
        groups = key_groups([rows[k] for k in self.keys.names], self.key_groups)
        for place, group, batch in split(rows, places, groups):
            for count, payload in encode_pieces(batch, self.page_bytes):
                yield Page(
                    key_group=group,
                    kind=PageKind.RESTORE,
                    checkpoint_id=self.checkpoint_id,
                    base_id=digests.pop(place, 0),
                    seq=place,
                    rows=count,
                    payload=payload,
                )

    def _digests(self, table: pa.Table) -> dict[int, int]:
        """By place in the lineage, of the rows as they are stored; none of what is migrated."""
        if self.migrate is not None:
            return {}
        return {self.lineage.index(s.set_id): s.digest for s in set_digests(table)}

    def _rows(self, table: pa.Table) -> tuple[pa.Table, Any]:
        """Rows of :func:`~absflow.columnar.state.snapshot_schema`, and their place in lineage."""
        schema = snapshot_schema(self.keys, self.state)
        gone = expired(table, self.expired_upto)
        if self.migrate is not None:
            if gone is not None:
                table = table.filter(pa.array(~gone))
            table = self._migrated(self.migrate, table.drop_columns(["set_id", "op"]))
            deleted = pa.array(np.zeros(table.num_rows, dtype=bool))
            places = np.zeros(table.num_rows, dtype=np.int64)
        else:
            deleted = pc.equal(table["op"], "delete")
            if gone is not None:  # as if it were deleted: of a set no row may be left out
                deleted = pc.or_(deleted, pa.array(gone))
            places = pc.index_in(table["set_id"], pa.array(self.lineage, pa.int64())).to_numpy()
            places = places.astype(np.int64)
        columns = [self._column(table, due) for due in [*self.keys, *self.state]]
        made = pa.table([*columns, deleted], schema=schema)
        if self.moved_us:
            made = moved(made, self.moved_us, touched=self.expires_by_clock)
        return made, places

    def _column(self, table: pa.Table, due: pa.Field) -> pa.ChunkedArray:
        if due.name not in table.column_names:
            return pa.repeat(pa.scalar(self.defaults[due.name], due.type), table.num_rows)
        column = table[due.name].cast(due.type)
        if due.name == TOUCHED.name:  # of a written savepoint nobody has said
            column = column.fill_null(pa.scalar(self.defaults[due.name], due.type))
        return column

    def _migrated(self, migrate: Migration, table: pa.Table) -> pa.Table:
        try:
            new = migrate(table)
        except Exception as error:
            raise ProcessError(
                f"the migration of stage {self.stage!r} failed on {table.num_rows} keys with "
                f"columns {table.column_names}: {error!r}; nothing was restored"
            ) from error
        names = [*self.keys.names, *self.state.names]
        if isinstance(new, pa.Table):
            # Of absflow's own columns, the timers, a migration need know nothing.
            own = [f for f in self.state if f.name in OWN_COLUMNS]
            for due in (f for f in own if f.name not in new.column_names):
                values = pa.repeat(pa.scalar(self.defaults[due.name], due.type), new.num_rows)
                new = new.append_column(due, values)
        if not isinstance(new, pa.Table) or sorted(new.column_names) != sorted(names):
            seen = new.column_names if isinstance(new, pa.Table) else type(new).__name__
            raise ProcessError(
                f"the migration of stage {self.stage!r} returned {seen}, but must return a "
                f"pyarrow.Table with the columns {names}; nothing was restored"
            )
        return pa.table({f.name: self._cast(new, f) for f in [*self.keys, *self.state]})

    def _cast(self, new: pa.Table, due: pa.Field) -> pa.ChunkedArray:
        try:
            return new[due.name].cast(due.type)
        except pa.ArrowException as error:
            raise ProcessError(
                f"the migration of stage {self.stage!r} returned column {due.name!r} as "
                f"{new[due.name].type}, but must return {due.type} ({error}); nothing was restored"
            ) from error
