"""Sets of a state history as one: of each key the last change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from absflow.columnar.keys import factorize, key_groups

__all__ = ["last_changes", "of_share"]


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
