"""Sets of a state history as one: of each key the last change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.digest import column_hashes, row_hashes
from absflow.columnar.keys import Codes, Hashes, factorize, flat, fold, hash64
from absflow.columnar.pieces import where_in
from absflow.errors import StorageError

__all__ = ["HashedRows", "Shares", "last_changes", "last_of_each"]

_INT32 = np.iinfo(np.int32)


def last_changes(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key, deletions too; in their order.

    Args:
        rows: n rows of a state history, the older ones first.
        key: names of its key columns.

    >>> rows = pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3]})
    >>> last_changes(rows, ["k"]).to_pylist()
    [{'k': 'b', 'v': 2}, {'k': 'a', 'v': 3}]
    """
    keys = rows.select(list(key))
    return rows.filter(pa.array(last_of_each(keys, hash64(keys.columns))))


def last_of_each(keys: pa.Table, hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Of each row whether it is the last one of its key.

    To sort numbers takes a third of the time of a hash table for them: a million keys are more than
    a core's cache holds.

    Args:
        keys: n rows of key columns.
        hashes: their n hashes, of equal keys the same.
    """
    rows = len(hashes)
    bits = np.uint64(rows.bit_length())
    # A hash's upper bits, and below them the row: so the rows of a key stand together, in order.
    sorted_ = hashes >> bits << bits | np.arange(rows, dtype=np.uint64)
    sorted_.sort()
    places: Codes = (sorted_ & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64)
    sorted_ >>= bits
    again = sorted_[1:] == sorted_[:-1]
    earlier, later = places[:-1][again], places[1:][again]
    last = np.ones(rows, dtype=bool)
    last[earlier] = False
    # In one piece, or each `take` would make one of them again.
    whole = pa.table([flat(column) for column in keys.columns], names=keys.column_names)
    differs = _differ(whole, earlier, later)
    if differs.any():
        unsure = np.sort(places[np.isin(sorted_, sorted_[1:][again][differs])])
        last[unsure] = _last_by_value(whole.take(pa.array(unsure)))
    return last


def _differ(keys: pa.Table, some: Codes, others: Codes) -> npt.NDArray[np.bool_]:
    """Of each of two rows whether their keys are, or may be, not the same; nulls may be."""
    same = np.ones(len(some), dtype=bool)
    for column in keys.columns:
        equal = pc.equal(column.take(pa.array(some)), column.take(pa.array(others)))
        same &= flat(pc.fill_null(equal, False)).to_numpy(zero_copy_only=False)
    return ~same


def _last_by_value(keys: pa.Table) -> npt.NDArray[np.bool_]:
    """As :func:`last_of_each`, whatever their hashes are."""
    codes, unique = factorize(keys)
    row_of = np.empty(unique.num_rows, dtype=np.int64)
    row_of[codes] = np.arange(len(codes))  # of several rows of a key NumPy assigns the last
    last = np.zeros(len(codes), dtype=bool)
    last[row_of] = True
    return last


@dataclass(frozen=True, slots=True)
class HashedRows:
    """Rows of a state history and their hashes, so that each value is hashed once.

    Attributes:
        rows: the n rows.
        keys: n hashes of their keys (:mod:`absflow.columnar.keys`).
        hashes: n hashes of the rows, as digests have them (:mod:`absflow.columnar.digest`).
    """

    rows: pa.RecordBatch
    keys: Hashes
    hashes: Hashes

    @classmethod
    def of(cls, rows: pa.RecordBatch, key: Sequence[str]) -> HashedRows:
        """With the hashes of these rows; ``key`` names their key columns."""
        columns = column_hashes(rows)
        keys = fold([columns[name] for name in key])
        return cls(rows, keys, row_hashes(rows["op"], columns.values()))


@dataclass(frozen=True, slots=True)
class Shares:
    """How the keys of a state history are shared out; a key is in the same share always.

    Attributes:
        key: names of the key columns.
        count: how many shares there are; with ``groups`` at most as many.
        groups: how many key groups all rows are of, then a share is some of these; 0 if of several
            numbers, then the hash of its key says where a row belongs.
    """

    key: Sequence[str]
    count: int
    groups: int = 0

    @classmethod
    def at_most(cls, most: int, key: Sequence[str], groups: int) -> Shares:
        """So many, or one for each key group if these are fewer."""
        return cls(key, min(most, groups) if groups else most, groups)

    def may_have(self, share: int, bounds: tuple[int, int] | None) -> bool:
        """Whether a file may have rows of a share.

        Args:
            share: which share.
            bounds: the least and the greatest key group in the file; None if they are not known.

        >>> [Shares(["k"], 4, groups=8).may_have(share, (2, 3)) for share in range(4)]
        [False, True, False, False]
        """
        if not self.groups or bounds is None:
            return True
        least, most = self.said(share)
        return bounds[0] <= most and least <= bounds[1]

    def said(self, share: int) -> tuple[int, int]:
        """The least and the greatest key group that a row of a share may say.

        What is no key group is in the first or the last one, too, which refuses it.

        >>> [Shares(["k"], 3, groups=8).said(share) for share in range(3)]
        [(-2147483648, 2), (3, 5), (6, 2147483647)]
        """
        first, behind = (-(-at * self.groups // self.count) for at in (share, share + 1))
        return (
            first if share else _INT32.min,
            behind - 1 if share < self.count - 1 else _INT32.max,
        )

    def of(self, share: int, rows: pa.RecordBatch) -> HashedRows:
        """The rows whose keys belong to a share.

        Raises:
            StorageError: a row has another key group than its key: it is of another number of them.
        """
        if self.groups:
            # What a row says of its key group decides which share looks whether that is so; of what
            # is none, each that sees it.
            said, (least, most) = _said(rows), self.said(share)
            wrong = (said < 0) | (said >= self.groups)
            rows = where_in(rows, wrong | ((least <= said) & (said <= most)))
        elif self.count > 1:
            hashes = hash64([rows[name] for name in self.key])
            rows = where_in(rows, hashes % np.uint64(self.count) == share)
        mine = HashedRows.of(rows, self.key)
        if self.groups:
            self._check_key_groups(mine)
        return mine

    def _check_key_groups(self, mine: HashedRows) -> None:
        own = (mine.keys % np.uint64(self.groups)).astype(np.int32)
        said = _said(mine.rows)
        if not np.array_equal(own, said):
            at = int(np.flatnonzero(own != said)[0])
            raise StorageError(
                f"a row of a state history is in key group {said[at]}, but its key is in "
                f"{own[at]} of {self.groups}: only absflow may write there"
            )


def _said(rows: pa.RecordBatch) -> npt.NDArray[np.int32]:
    """The key group that each row says; -1 if it says none."""
    groups: npt.NDArray[np.int32] = rows["key_group"].fill_null(-1).to_numpy()
    return groups
