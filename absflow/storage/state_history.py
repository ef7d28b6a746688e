"""The table of a stage's state history: its columns, and its live rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from absflow.storage.sql import quoted

__all__ = ["OPS", "history_columns", "in_memory", "live_rows", "newest_rows", "row_groups"]

# What a row says of its key: that it has this state, or none any more.
OPS = ("upsert", "delete")
# Rows of a row group at most.
_GROUP_ROWS = 65_536


def history_columns(keys: pa.Schema, state: pa.Schema) -> pa.Schema:
    """The columns of a state history table."""
    own = [
        pa.field("set_id", pa.int64()),
        pa.field("checkpoint_id", pa.int64()),
        pa.field("key_group", pa.int32()),
        pa.field("op", pa.string()),
    ]
    return pa.schema([*own, *keys, *state])


def in_memory(columns: pa.Schema) -> pa.Schema:
    """Columns of a state history as workers have them: two words are not many strings."""
    place = columns.get_field_index("op")
    return columns.set(place, pa.field("op", pa.dictionary(pa.int32(), pa.string())))


def row_groups(rows: pa.Table) -> Iterator[int]:
    """How many rows the row groups of a file of a set have.

    A set lies key group by key group. A row group has some whole ones, or a part of one: who reads
    some key groups (a share of a compaction, of a restore) reads no others with them.

    >>> [*row_groups(pa.table({"key_group": [0] * 40_000 + [1] * 40_000 + [2] * 20_000}))]
    [40000, 60000]
    >>> [*row_groups(pa.table({"key_group": [0] * 70_000 + [1] * 65_000}))]
    [65536, 4464, 65000]
    """
    groups = rows["key_group"].to_numpy()
    cuts = np.flatnonzero(groups[1:] != groups[:-1]) + 1
    size = 0
    for run in np.diff([0, *cuts, len(groups)]).tolist():
        if size + run > _GROUP_ROWS and size:
            yield size
            size = 0
        size += run
        while size > _GROUP_ROWS:
            yield _GROUP_ROWS
            size -= _GROUP_ROWS
    if size:
        yield size


def newest_rows(rows: DataFrame, keys: Sequence[str], lineage: Sequence[int]) -> DataFrame:
    """Of rows of a state history in these sets, the newest of each key; it may be a deletion."""
    place = F.array_position(F.array(*(F.lit(n) for n in lineage)), F.col("set_id"))
    newest = Window.partitionBy(*map(quoted, keys)).orderBy(place.desc())
    ranked = rows.withColumn("_absflow_rank", F.row_number().over(newest))
    return ranked.where(F.col("_absflow_rank") == 1).drop("_absflow_rank")


def live_rows(rows: DataFrame, keys: Sequence[str], lineage: Sequence[int]) -> DataFrame:
    """One row per live key: :func:`newest_rows` without deletions."""
    return newest_rows(rows, keys, lineage).where(F.col("op") == "upsert")
