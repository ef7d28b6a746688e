"""Sets of a state history as one: of each key the last change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from absflow.columnar.keys import Codes, factorize, flat, hash64, key_groups
from absflow.errors import StorageError

__all__ = ["Shares", "last_changes"]

# The hash table of so many rows stays in a core's cache: that of a million keys takes four times
# as long for each row.
_TOGETHER = 1 << 16


def last_changes(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key, deletions too; in their order.

    Args:
        rows: n rows of a state history, the older ones first.
        key: names of its key columns.

    >>> rows = pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3]})
    >>> last_changes(rows, ["k"]).to_pylist()
    [{'k': 'b', 'v': 2}, {'k': 'a', 'v': 3}]
    """
    # In one piece, or each of the parts would make one of them again.
    keys = pa.table([flat(rows[name]) for name in key], names=list(key))
    stays = np.zeros(rows.num_rows, dtype=bool)
    for places in _by_hash(keys):
        codes, unique = factorize(keys.take(pa.array(places)))
        last = np.empty(unique.num_rows, dtype=np.int64)
        last[codes] = places  # of several rows of a key NumPy assigns the last
        stays[last] = True
    return rows.filter(pa.array(stays))


def _by_hash(keys: pa.Table) -> Iterator[Codes]:
    """The places of all rows, rising, in parts of about :data:`_TOGETHER`; a key is in one."""
    bits = min(8, (keys.num_rows // _TOGETHER).bit_length())
    if not bits:
        yield np.arange(keys.num_rows)
        return
    # The upper bits: the rows may be of one key group, which the lower ones say.
    hashes = (hash64(batch.columns) for batch in keys.to_batches(_TOGETHER))
    parts = np.concatenate([(of >> np.uint64(64 - bits)).astype(np.uint8) for of in hashes])
    order = np.argsort(parts, kind="stable")
    yield from np.split(order, np.cumsum(np.bincount(parts))[:-1])


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
        low, high = (bound * self.count // self.groups for bound in bounds)
        # What is no key group is in some share, too, which sees that then.
        return low <= share <= high or (share == self.count - 1 and bounds[1] >= self.groups)

    def of(self, share: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose keys belong to a share.

        Raises:
            StorageError: a row has another key group than its key: it is of another number of them.
        """
        if self.groups:
            own = self._key_groups(rows)
            return rows.filter(pa.array(own.astype(np.int64) * self.count // self.groups == share))
        if self.count == 1:
            return rows
        return rows.filter(pa.array(key_groups(self._keys(rows), self.count) == share))

    def _keys(self, rows: pa.RecordBatch) -> list[pa.Array]:
        return [rows[name] for name in self.key]

    def _key_groups(self, rows: pa.RecordBatch) -> npt.NDArray[np.int32]:
        own = key_groups(self._keys(rows), self.groups)
        said = rows["key_group"].fill_null(-1).to_numpy()
        if not np.array_equal(own, said):
            at = int(np.flatnonzero(own != said)[0])
            raise StorageError(
                f"a row of a state history is in key group {said[at]}, but its key is in "
                f"{own[at]} of {self.groups}: only absflow may write there"
            )
        return own
