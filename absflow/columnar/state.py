"""The keyed state of one key group: an Arrow table with one row per key, live or deleted.

Beside the key and state columns a row has ``_modified_epoch``, the stage's epoch when it last
changed (newest snapshot + 1), and ``_deleted``: a deleted key stays as a tombstone until a
completed checkpoint holds the deletion. So the changes since any completed checkpoint are one
comparison over one column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.keys import locate

__all__ = ["DELETED", "MODIFIED_EPOCH", "KeyedState", "Touched", "snapshot_schema", "state_schema"]

MODIFIED_EPOCH = "_modified_epoch"
DELETED = "_deleted"


def state_schema(keys: pa.Schema, columns: pa.Schema) -> pa.Schema:
    """The schema of a key group's state: keys, state columns, and what absflow adds."""
    added = [pa.field(MODIFIED_EPOCH, pa.int64()), pa.field(DELETED, pa.bool_())]
    return pa.schema([*keys, *columns, *added])


def snapshot_schema(keys: pa.Schema, columns: pa.Schema) -> pa.Schema:
    """The schema of the rows in a STATE page: keys, state columns, whether the key was deleted."""
    return pa.schema([*keys, *columns, pa.field(DELETED, pa.bool_())])


@dataclass(frozen=True, slots=True)
class Touched:
    """The state of the k keys that some rows touch.

    Attributes:
        table: k rows of key and state columns; the state columns of a new key are null.
        at: k positions in the key group's state, -1 for a key that was never seen.
        new: k flags: the key has no state (never seen, or deleted).
    """

    table: pa.Table
    at: npt.NDArray[np.int64]
    new: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KeyedState:
    """The state of one key group; never changed in place.

    Attributes:
        table: rows of :func:`state_schema`.
        keys: how many leading columns are the key.
    """

    table: pa.Table
    keys: int

    @classmethod
    def empty(cls, keys: pa.Schema, columns: pa.Schema) -> KeyedState:
        """No keys at all."""
        return cls(state_schema(keys, columns).empty_table(), len(keys))

    @property
    def live(self) -> int:
        """How many keys have state."""
        return int(self.table.num_rows - (pc.sum(self.table[DELETED]).as_py() or 0))

    def touched(self, unique: pa.Table) -> Touched:
        """The state of the keys ``unique`` (k rows of the key columns), in their order."""
        at = locate(unique, self.table.select(range(self.keys)))
        there = pa.array(at, mask=at < 0)
        new = at < 0
        if self.table.num_rows:
            deleted = pc.fill_null(self.table[DELETED].take(there), True)
            new = deleted.to_numpy().astype(bool)
            there = pa.array(at, mask=new)
        names = self.table.column_names[self.keys : -2]
        columns = self.table.select(names).take(there).columns
        schema = pa.schema([*unique.schema, *(self.table.schema.field(n) for n in names)])
        return Touched(pa.table([*unique.columns, *columns], schema=schema), at, new)

    def changed(
        self, touched: Touched, rows: pa.Table, which: npt.NDArray[np.int64], epoch: int
    ) -> KeyedState:
        """The state after some of the touched keys got new rows.

        Args:
            touched: the answer of :meth:`touched` on this very state.
            rows: m rows of key and state columns.
            which: m distinct positions in ``touched`` that say whose rows they are.
            epoch: the stage's epoch.
        """
        return self._with(touched.at[which], rows, epoch, deleted=False)

    def deleted(self, touched: Touched, which: npt.NDArray[np.int64], epoch: int) -> KeyedState:
        """The state after the touched keys at positions ``which`` were deleted.

        A key that never had state leaves no tombstone.
        """
        which = which[~touched.new[which]]
        keys = touched.table.select(range(self.keys)).take(pa.array(which))
        names = self.table.column_names[self.keys : -2]
        nulls = [pa.nulls(len(which), self.table.schema.field(n).type) for n in names]
        schema = pa.schema([*keys.schema, *(self.table.schema.field(n) for n in names)])
        rows = pa.table([*keys.columns, *nulls], schema=schema)
        return self._with(touched.at[which], rows, epoch, deleted=True)

    def _with(
        self, at: npt.NDArray[np.int64], rows: pa.Table, epoch: int, *, deleted: bool
    ) -> KeyedState:
        if not rows.num_rows:
            return self
        count = rows.num_rows
        rows = rows.append_column(MODIFIED_EPOCH, pa.array(np.full(count, epoch, dtype=np.int64)))
        rows = rows.append_column(DELETED, pa.array(np.full(count, deleted)))
        rows = rows.cast(self.table.schema)
        old = self.table.num_rows
        # One take over old and new rows replaces in place and appends; the order of keys stays.
        order = np.arange(old + int((at < 0).sum()))
        order[at[at >= 0]] = old + np.flatnonzero(at >= 0)
        order[old:] = old + np.flatnonzero(at < 0)
        both = pa.concat_tables([self.table, rows]).combine_chunks()
        return KeyedState(both.take(pa.array(order)), self.keys)

    def changes(self, base_id: int) -> pa.Table:
        """What a snapshot holds: the rows (:func:`snapshot_schema`) changed since ``base_id``.

        An epoch e lies between the barriers e - 1 and e, so it is after ``base_id`` if greater.
        A full snapshot (``base_id`` 0) starts from nothing and needs no tombstones.
        """
        mask = pc.greater(self.table[MODIFIED_EPOCH], base_id)
        if base_id == 0:
            mask = pc.and_(mask, pc.invert(self.table[DELETED]))
        return self.table.filter(mask).drop_columns([MODIFIED_EPOCH])

    def without_tombstones(self, completed_id: int) -> KeyedState:
        """Forget the deletions that the completed checkpoint ``completed_id`` holds."""
        gone = pc.and_(self.table[DELETED], pc.less_equal(self.table[MODIFIED_EPOCH], completed_id))
        if not pc.any(gone).as_py():
            return self
        return KeyedState(self.table.filter(pc.invert(gone)), self.keys)
