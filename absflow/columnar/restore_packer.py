"""State on its way back: from rows of a state history to the keyed state of new key groups.

The rows of all sets of a lineage are hashed to the key groups of now, whatever their number was,
and packed into RESTORE pages. A key group lays its pages on each other in the order of the lineage:
the last row of a key wins. So nothing is sorted or joined, however many sets there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.keys import factorize, key_groups
from absflow.columnar.packing import FLUSH_PAGES, gathered, split
from absflow.columnar.pages import Page, PageKind, decode, page_batches
from absflow.columnar.pieces import PAGE_BYTES, encode_pieces
from absflow.columnar.state import DELETED, MODIFIED_EPOCH, snapshot_schema, state_schema
from absflow.errors import ProcessError, RestoreError

__all__ = ["Migration", "StatePacker", "restored_state"]

# The old state of some keys (key and state columns) in, their new state out. It is called with
# parts of a stage's state and must not depend on which keys come together.
Migration = Callable[[pa.Table], pa.Table]


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
            rows, places = self._rows(table)
            if not rows.num_rows:
                continue
            groups = key_groups([rows[k] for k in self.keys.names], self.key_groups)
            for place, group, batch in split(rows, places, groups):
                for count, payload in encode_pieces(batch, self.page_bytes):
                    yield Page(
                        key_group=group,
                        kind=PageKind.RESTORE,
                        checkpoint_id=self.checkpoint_id,
                        seq=place,
                        rows=count,
                        payload=payload,
                    )

    def _rows(self, table: pa.Table) -> tuple[pa.Table, Any]:
        """Rows of :func:`~absflow.columnar.state.snapshot_schema`, and their place in lineage."""
        schema = snapshot_schema(self.keys, self.state)
        if self.migrate is not None:
            table = self._migrated(self.migrate, table.drop_columns(["set_id", "op"]))
            deleted = pa.array(np.zeros(table.num_rows, dtype=bool))
            places = np.zeros(table.num_rows, dtype=np.int64)
        else:
            deleted = pc.equal(table["op"], "delete")
            places = pc.index_in(table["set_id"], pa.array(self.lineage, pa.int64())).to_numpy()
            places = places.astype(np.int64)
        columns = [
            table[f.name].cast(f.type)
            if f.name in table.column_names
            else pa.array([self.defaults[f.name]], f.type).take(
                pa.array(np.zeros(table.num_rows, dtype=np.int64))
            )
            for f in [*self.keys, *self.state]
        ]
        return pa.table([*columns, deleted], schema=schema), places

    def _migrated(self, migrate: Migration, table: pa.Table) -> pa.Table:
        try:
            new = migrate(table)
        except Exception as error:
            raise ProcessError(
                f"the migration of stage {self.stage!r} failed on {table.num_rows} keys with "
                f"columns {table.column_names}: {error!r}; nothing was restored"
            ) from error
        names = [*self.keys.names, *self.state.names]
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


def restored_state(
    stage: str, keys: pa.Schema, state: pa.Schema, key_group: int, pages: Sequence[Page]
) -> tuple[pa.Table, int]:
    """The keyed state of one key group, and the checkpoint it is of.

    Args:
        stage: its name, for errors.
        keys: its key columns.
        state: its state columns.
        key_group: which.
        pages: its RESTORE pages, in any order.

    Returns:
        Rows of :func:`~absflow.columnar.state.state_schema`, one per live key, all of them changed
        in the epoch that ends with the checkpoint.

    Raises:
        PageCorruptError: a page does not decode.
        RestoreError: one set has a key twice, as a migration that makes one key of two would.
    """
    schema = snapshot_schema(keys, state)
    what = f"restore page of stage {stage!r}, key group {key_group}"
    pages = sorted((p for p in pages if p.rows), key=lambda p: p.seq)
    rows = pa.Table.from_batches([decode(p.payload, schema, what) for p in pages], schema)
    codes, unique = factorize(rows.select(keys.names))
    if unique.num_rows != rows.num_rows:
        places = np.repeat([p.seq for p in pages], [p.rows for p in pages])
        _check_once(stage, codes, places, unique)
        last = np.empty(unique.num_rows, dtype=np.int64)
        last[codes] = np.arange(rows.num_rows)  # of equal codes the last assignment stays
        rows = rows.take(pa.array(np.sort(last)))
    rows = rows.filter(pc.invert(rows[DELETED])).combine_chunks()
    epoch = max((p.checkpoint_id for p in pages), default=0)
    changed = pa.array(np.full(rows.num_rows, epoch, dtype=np.int64))
    place = rows.schema.get_field_index(DELETED)
    table = rows.add_column(place, MODIFIED_EPOCH, changed)
    return table.cast(state_schema(keys, state)), epoch


def _check_once(stage: str, codes: Any, places: Any, unique: pa.Table) -> None:
    pair = codes * (int(places.max()) + 1) + places
    pairs, counts = np.unique(pair, return_counts=True)
    if len(pairs) != len(pair):
        code = int(pairs[counts > 1][0]) // (int(places.max()) + 1)
        raise RestoreError(
            f"stage {stage!r}: the key {unique.slice(code, 1).to_pylist()[0]} has two rows of "
            "state; a migration must make different keys out of different keys, or put their state "
            "together before (write a savepoint from a DataFrame)"
        )
