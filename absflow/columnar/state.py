"""The keyed state of one key group: an Arrow table with one row per key, live or deleted.

Beside the key and state columns a row has ``_modified``, which says in which of the stage's epochs
(newest snapshot + 1) it last changed, and ``_deleted``: a deleted key stays as a tombstone until a
completed checkpoint holds the deletion. So the changes since any completed checkpoint are one
comparison over one column.

A key that comes and goes within one epoch leaves nothing: no snapshot lies between, not even one
that was aborted, so its state is as if it had never come. For that ``_modified`` has a bit more:
twice the epoch, and one more if the key came in this very epoch.

A large state has two levels, as a log-structured merge tree has: a *base* of live rows, which is
never changed, and the *recent* rows, tombstones among them, which stand in the place of rows of the
base. So what a few keys cost does not grow with the number of all keys, but for a look through the
base's keys; now and then both are merged into a new base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.expiry import TOUCHED, expired
from absflow.columnar.keys import locate
from absflow.columnar.pieces import fits, reordered, take, where
from absflow.columnar.timers import (
    NEVER,
    TIMEOUT_FIELDS,
    TIMER_COLUMNS,
    first_times,
    last_time,
)

__all__ = [
    "DELETED",
    "HIDDEN_COLUMNS",
    "MODIFIED",
    "OWN_COLUMNS",
    "KeyedState",
    "Touched",
    "modified_in",
    "snapshot_schema",
    "state_schema",
]

Places = npt.NDArray[np.int64]

# Recent rows of up to so many bytes are kept in one chunk.
_TOGETHER = 16 << 20

MODIFIED = "_modified"
DELETED = "_deleted"
# What the state of a stage has beside the author's own columns and no function sees.
HIDDEN_COLUMNS = (*TIMER_COLUMNS, TOUCHED.name)
# And all that absflow has in it.
OWN_COLUMNS = (*HIDDEN_COLUMNS, *(field.name for field in TIMEOUT_FIELDS))


def state_schema(keys: pa.Schema, columns: pa.Schema) -> pa.Schema:
    """The schema of a key group's state: keys, state columns, and what absflow adds."""
    added = [pa.field(MODIFIED, pa.int64()), pa.field(DELETED, pa.bool_())]
    return pa.schema([*keys, *columns, *added])


def modified_in(epoch: int, *, came: bool = False) -> int:
    """What ``_modified`` is of a row that changed in an epoch, and whether its key came in it."""
    return 2 * epoch + came


def snapshot_schema(keys: pa.Schema, columns: pa.Schema) -> pa.Schema:
    """The schema of the rows in a STATE page: keys, state columns, whether the key was deleted."""
    return pa.schema([*keys, *columns, pa.field(DELETED, pa.bool_())])


@dataclass(frozen=True, slots=True)
class Touched:
    """The state of the k keys that some rows touch.

    Attributes:
        table: k rows of key and state columns; the state columns of a new key are null.
        at: k positions among the recent rows, -1 for a key that is not among them.
        below: k positions in the base, -1 for a key that is not there or has a recent row.
        new: k flags: the key has no state (never seen, deleted, or expired).
    """

    table: pa.Table
    at: Places
    below: Places
    new: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KeyedState:
    """The state of one key group; never changed in place.

    Attributes:
        table: the recent rows, or all, of :func:`state_schema`.
        keys: how many leading columns are the key.
        base: other live rows, of the same schema; None if there is no second level.
        shadows: for each row of ``table`` the row of the base in the place of which it stands, -1
            for none; None if there is no base.
        written: for each row of ``table`` its row among those of the files, -1 for none; or None.
        segments: how many rows each of these files has.
    """

    table: pa.Table
    keys: int
    base: pa.Table | None = None
    shadows: Places | None = None
    written: Places | None = None
    segments: tuple[int, ...] = ()

    @classmethod
    def empty(cls, keys: pa.Schema, columns: pa.Schema) -> KeyedState:
        """No keys at all."""
        return cls(state_schema(keys, columns).empty_table(), len(keys))

    @property
    def live(self) -> int:
        """How many keys have state."""
        recent = int(self.table.num_rows - (pc.sum(self.table[DELETED]).as_py() or 0))
        if self.base is None or self.shadows is None:
            return recent
        return int(recent + self.base.num_rows - (self.shadows >= 0).sum())

    @property
    def size(self) -> int:
        """In bytes, as it lies in memory."""
        return int(self.table.nbytes + (0 if self.base is None else self.base.nbytes))

    def touched(self, unique: pa.Table, expired_upto: int | None = None) -> Touched:
        """The state of some keys.

        Args:
            unique: k rows of the key columns.
            expired_upto: state that was touched last up to then is none.

        Returns:
            k rows, in the same order.
        """
        at = locate(unique, self.table.select(range(self.keys)))
        below = np.full(len(at), -1)
        new = at < 0
        if self.table.num_rows:
            there = pa.array(at, mask=new)
            new = pc.fill_null(self.table[DELETED].take(there), True).to_numpy().astype(bool)
        names = self.table.column_names[self.keys : -2]
        if self.base is None:
            columns = take(self.table.select(names), at)
        else:
            missing = np.flatnonzero(at < 0)
            found = locate(unique.take(pa.array(missing)), self.base.select(range(self.keys)))
            below[missing] = found
            new &= below < 0
            recent, old = np.flatnonzero((at >= 0) & ~new), np.flatnonzero(below >= 0)
            of_recent = take(self.table.select(names), at[recent])
            of_old = take(self.base.select(names), below[old])
            place = np.full(len(at), -1)
            place[recent], place[old] = np.split(np.arange(len(recent) + len(old)), [len(recent)])
            columns = reordered(pa.concat_tables([of_recent, of_old]), place)
        gone = expired(columns, expired_upto)
        if gone is not None and gone.any():
            columns = take(columns, np.where(gone, -1, np.arange(len(gone))))
            new = new | gone
        schema = pa.schema([*unique.schema, *(self.table.schema.field(n) for n in names)])
        table = pa.table([*unique.columns, *columns.columns], schema=schema)
        return Touched(table, at, below, new)

    def changed(self, touched: Touched, rows: pa.Table, which: Places, epoch: int) -> KeyedState:
        """The state after some of the touched keys got new rows.

        Args:
            touched: the answer of :meth:`touched` on this very state.
            rows: m rows of key and state columns.
            which: m distinct positions in ``touched`` that say whose rows they are.
            epoch: the stage's epoch.
        """
        return self._with(touched, which, rows, epoch, deleted=False)

    def deleted(self, touched: Touched, which: Places, epoch: int) -> KeyedState:
        """The state after the touched keys at positions ``which`` were deleted.

        A key that never had state leaves no tombstone, nor does one that came in this epoch.
        """
        which = which[~touched.new[which]]
        keys = touched.table.select(range(self.keys)).take(pa.array(which))
        names = self.table.column_names[self.keys : -2]
        nulls = [pa.nulls(len(which), self.table.schema.field(n).type) for n in names]
        schema = pa.schema([*keys.schema, *(self.table.schema.field(n) for n in names)])
        rows = pa.table([*keys.columns, *nulls], schema=schema)
        return self._with(touched, which, rows, epoch, deleted=True)

    def forgotten(self, touched: Touched, which: Places) -> KeyedState:
        """The state without the touched keys at positions ``which``, whose state has expired.

        No snapshot has that as a change. What stands in the place of a row of the base stays until
        they are merged, as a tombstone of an epoch before all others.
        """
        return self.deleted(touched, which, 0)

    def without_expired(self, upto: int | None) -> KeyedState:
        """Without recent rows that have expired.

        But for those in the place of a row of the base: it has expired, too, and yet may have a
        timer that was due before, and has fired.

        Args:
            upto: what was touched up to then has expired; None if nothing has.
        """
        gone = expired(self.table, upto)
        if gone is None:
            return self
        if self.shadows is not None:
            gone &= self.shadows < 0
        return self._only(~gone) if gone.any() else self

    def all_expired(self) -> KeyedState:
        """What is left when every key's state has expired: deletions that no checkpoint holds."""
        return KeyedState(self._deletions(), self.keys)

    def _deletions(self) -> pa.Table:
        """The deletions that snapshots have; those of no epoch only hide a row of the base."""
        there = pc.and_(self.table[DELETED], pc.greater(self.table[MODIFIED], 0))
        return self.table.filter(there)

    def _with(
        self, touched: Touched, which: Places, rows: pa.Table, epoch: int, *, deleted: bool
    ) -> KeyedState:
        if not rows.num_rows:
            return self
        at, before = touched.at[which], self._modified(touched, which)
        # As if there had never been a row.
        came = (before == 0) | (before == modified_in(epoch, came=True))
        modified = np.where(came, 0, modified_in(epoch)) if deleted else modified_in(epoch) + came
        rows = rows.append_column(MODIFIED, pa.array(modified))
        rows = rows.append_column(DELETED, pa.array(np.full(rows.num_rows, deleted)))
        rows = rows.cast(self.table.schema)
        others, below = self, touched.below[which]
        known = at >= 0
        if known.any():
            stay = np.ones(self.table.num_rows, dtype=bool)
            stay[at[known]] = False
            others = self._only(stay)
            if self.shadows is not None:
                below = np.where(known, self.shadows[at], below)
        if deleted and not modified.all():
            needed = (modified > 0) | (below >= 0)
            rows, below = rows.filter(pa.array(needed)), below[needed]
        return others._and(rows, below)

    def _only(self, stay: npt.NDArray[np.bool_]) -> KeyedState:
        """The same but for the recent rows that do not stay."""
        table = self.table.filter(pa.array(stay))
        if self.shadows is None or self.written is None:
            return replace(self, table=table)
        return replace(self, table=table, shadows=self.shadows[stay], written=self.written[stay])

    def _and(self, rows: pa.Table, below: Places) -> KeyedState:
        """The same with more recent rows, which stand in the place of those of the base."""
        table = pa.concat_tables([self.table, rows])
        if fits(table, _TOGETHER):
            table = table.combine_chunks()
        if self.shadows is None or self.written is None:
            return replace(self, table=table)
        shadows = np.concatenate([self.shadows, below])
        written = np.concatenate([self.written, np.full(rows.num_rows, -1)])
        return replace(self, table=table, shadows=shadows, written=written)

    def _modified(self, touched: Touched, which: Places) -> Places:
        """Of the touched keys ``which`` the ``_modified`` of their rows; 0 where there is none."""
        at, below = touched.at[which], touched.below[which]
        found = np.zeros(len(which), dtype=np.int64)
        for table, places in ((self.table, at), (self.base, below)):
            there = places >= 0
            if table is None or not there.any():
                continue
            column = table[MODIFIED]
            if column.num_chunks == 1:
                found[there] = column.chunk(0).to_numpy()[places[there]]
            else:
                found[there] = take(table.select([MODIFIED]), places[there])[MODIFIED].to_numpy()
        return found

    def live_batches(self, expired_upto: int | None = None) -> Iterator[pa.RecordBatch]:
        """The live rows of both levels, but for those that have expired."""
        live = where(self.table, ~self.table[DELETED].to_numpy())
        yield from map(_unexpired(expired_upto), chain(self._old(), live))

    def merged(self, base: pa.Table) -> KeyedState:
        """The same state on a base of all live rows; the recent ones are tombstones only."""
        tombstones = self._deletions()
        nowhere = np.full(tombstones.num_rows, -1)
        return KeyedState(tombstones, self.keys, base, nowhere, nowhere)

    def flat(self) -> KeyedState:
        """The same state without a base."""
        if self.base is None:
            return self
        recent = self.table.filter(pc.greater(self.table[MODIFIED], 0))
        batches = [*self._old(), *recent.to_batches()]
        return KeyedState(pa.Table.from_batches(batches, self.table.schema), self.keys)

    def next_timers(self) -> tuple[int, ...]:
        """The least time of its timers, by domain; :data:`NEVER` where there is none."""
        return tuple(
            min((int(times.min(initial=NEVER)) for _, times in self._first_times(name)))
            for name in TIMER_COLUMNS
        )

    def due(self, column: str, upto: int, most: int | None = None) -> pa.Table:
        """The keys that have a timer of this column up to a time.

        Args:
            column: the timers.
            upto: the time, microseconds since 1970 (UTC).
            most: so many keys, those whose first timers are the earliest; None for all.
        """
        levels = list(self._first_times(column))
        due = [times <= upto for _, times in levels]
        if most is not None and sum(int(of.sum()) for of in due) > most:
            waiting = np.concatenate([t[of] for (_, t), of in zip(levels, due, strict=True)])
            last = np.partition(waiting, most - 1)[most - 1]
            left = most - int((waiting < last).sum())
            for (_, times), of in zip(levels, due, strict=True):
                ties = np.flatnonzero(times == last)
                np.logical_and(of, times < last, out=of)
                of[ties[:left]] = True
                left -= min(left, len(ties))
        keys = [table.select(range(self.keys)) for table, _ in levels]
        return pa.concat_tables(
            [table.filter(pa.array(of)) for table, of in zip(keys, due, strict=True)]
        )

    def last_timer(self, column: str) -> int:
        """The greatest time of a timer of this column; -:data:`NEVER` if there is none.

        What stands in the place of a row of the base may have fewer, so it may be more.
        """
        tables = [self.table] if self.base is None else [self.table, self.base]
        return max(last_time(table[column]) for table in tables)

    def _first_times(self, column: str) -> Iterator[tuple[pa.Table, Places]]:
        """Of each level, the rows and their first times; of what is gone :data:`NEVER`."""
        yield self.table, first_times(self.table[column])
        if self.base is not None and self.shadows is not None:
            times = first_times(self.base[column])
            times[self.shadows[self.shadows >= 0]] = NEVER
            yield self.base, times

    def _old(self, base_id: int = -1) -> Iterator[pa.RecordBatch]:
        """The base's rows changed since ``base_id`` (-1: all) that no recent one stands for."""
        if self.base is None or self.shadows is None:
            return
        upto = modified_in(base_id, came=True)
        if (pc.max(self.base[MODIFIED]).as_py() or 0) <= upto:
            return  # as mostly, and to find that out takes a tenth of the time
        there = pc.greater(self.base[MODIFIED], upto).to_numpy()
        there[self.shadows[self.shadows >= 0]] = False
        yield from where(self.base, there)

    def changes(self, base_id: int, expired_upto: int | None = None) -> Iterator[pa.RecordBatch]:
        """What a snapshot holds: the rows (:func:`snapshot_schema`) changed since ``base_id``.

        Rows that have expired are left out: whatever older sets have of their keys has, too.

        An epoch e lies between the barriers e - 1 and e, so it is after ``base_id`` if greater.
        A full snapshot (``base_id`` 0) starts from nothing and needs no tombstones.
        """
        changed = pc.greater(self.table[MODIFIED], modified_in(base_id, came=True)).to_numpy()
        if base_id == 0:
            changed = changed & ~self.table[DELETED].to_numpy()
        names = [name for name in self.table.column_names if name != MODIFIED]
        for batch in chain(self._old(base_id), where(self.table, changed)):
            yield _unexpired(expired_upto)(batch).select(names)

    def without_tombstones(self, completed_id: int) -> KeyedState:
        """Forget the deletions that the completed checkpoint ``completed_id`` holds.

        A tombstone in the place of a row of the base stays until they are merged.
        """
        newest = modified_in(completed_id, came=True)
        gone = pc.and_(self.table[DELETED], pc.less_equal(self.table[MODIFIED], newest))
        if self.shadows is not None:
            gone = pc.and_(gone, pa.array(self.shadows < 0))
        return self._only(~gone.to_numpy()) if pc.any(gone).as_py() else self


def _unexpired(upto: int | None) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def rows(batch: pa.RecordBatch) -> pa.RecordBatch:
        gone = expired(batch, upto)
        return batch if gone is None or not gone.any() else batch.filter(pa.array(~gone))

    return rows
