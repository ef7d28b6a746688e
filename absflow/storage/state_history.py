"""The table of a stage's state history: its columns, and its live rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from absflow.storage.sql import quoted

__all__ = ["GROUP_ROWS", "OPS", "history_columns", "in_memory", "live_rows", "newest_rows"]

# What a row says of its key: that it has this state, or none any more.
OPS = ("upsert", "delete")
# Rows of a row group: a set lies key group by key group, and who reads some of them reads few more.
GROUP_ROWS = 65_536


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


def newest_rows(rows: DataFrame, keys: Sequence[str], lineage: Sequence[int]) -> DataFrame:
    """Of rows of a state history in these sets, the newest of each key; it may be a deletion."""
    place = F.array_position(F.array(*(F.lit(n) for n in lineage)), F.col("set_id"))
    newest = Window.partitionBy(*map(quoted, keys)).orderBy(place.desc())
    ranked = rows.withColumn("_absflow_rank", F.row_number().over(newest))
    return ranked.where(F.col("_absflow_rank") == 1).drop("_absflow_rank")


def live_rows(rows: DataFrame, keys: Sequence[str], lineage: Sequence[int]) -> DataFrame:
    """One row per live key: :func:`newest_rows` without deletions."""
    return newest_rows(rows, keys, lineage).where(F.col("op") == "upsert")
