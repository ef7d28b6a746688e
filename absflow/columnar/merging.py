"""Sets of a state history as one: of each key the last change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from absflow.columnar.keys import factorize, key_groups
from absflow.errors import StorageError

__all__ = ["last_changes", "may_have", "of_key_groups", "of_share"]


def last_changes(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key, deletions too; in the order in which the keys came first.

    Args:
        rows: n rows of a state history, the older ones first.
        key: names of its key columns.

    >>> rows = pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3]})
    >>> last_changes(rows, ["k"]).to_pylist()
    [{'k': 'a', 'v': 3}, {'k': 'b', 'v': 2}]
    """
    codes, unique = factorize(rows.select(list(key)))
    last = np.empty(unique.num_rows, dtype=np.int64)
    last[codes] = np.arange(rows.num_rows)  # of several rows of a key NumPy assigns the last
    return rows.take(pa.array(last))


def of_share(rows: pa.RecordBatch, key: Sequence[str], share: int, shares: int) -> pa.RecordBatch:
    """The rows whose keys belong to one of so many shares; a key is in the same one always."""
    if shares == 1:
        return rows
    return rows.filter(pa.array(key_groups([rows[name] for name in key], shares) == share))


def may_have(bounds: tuple[int, int] | None, share: int, shares: int, groups: int) -> bool:
    """Whether a file may have rows of one of so many shares of the key groups.

    Args:
        bounds: the least and the greatest key group in it; None if they are not known.
        share: which share.
        shares: how many there are, at most ``groups``.
        groups: how many key groups there are.

    >>> [may_have((2, 3), share, 4, 8) for share in range(4)]
    [False, True, False, False]
    """
    if bounds is None:
        return True
    low, high = bounds
    # What is no key group is in some share, too, which sees that then.
    return low * shares // groups <= share <= high * shares // groups or (
        share == shares - 1 and high >= groups
    )


def of_key_groups(
    rows: pa.RecordBatch, key: Sequence[str], share: int, shares: int, groups: int
) -> pa.RecordBatch:
    """As :func:`of_share`, where each share is of whole key groups, which the rows have.

    Raises:
        StorageError: a row has another key group than its key: it is of another number of them.
    """
    own = key_groups([rows[name] for name in key], groups)
    said = rows["key_group"].fill_null(-1).to_numpy()
    if not np.array_equal(own, said):
        at = int(np.flatnonzero(own != said)[0])
        raise StorageError(
            f"a row of a state history is in key group {said[at]}, but its key is in "
            f"{own[at]} of {groups}: only absflow may write there"
        )
    return rows.filter(pa.array(own.astype(np.int64) * shares // groups == share))
