"""Whether a replayed micro-batch gives the rows that it gave before."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from absflow.columnar.pages import SEQ_BITS, PageKind
from absflow.errors import ReplayMismatchError
from absflow.storage.delta import tables

__all__ = ["is_in_channel"]


def is_in_channel(rows: DataFrame, channel: str, stage: str, batch_id: int, epoch: int) -> bool:
    """Whether the channel has the rows of a batch already.

    Args:
        rows: the DATA rows that the batch gives now, with the channel's columns.
        channel: the channel's table.
        stage: the stage that writes it.
        batch_id: the batch.
        epoch: the stage's epoch before the batch; none of its rows has a lower one.

    Raises:
        ReplayMismatchError: it has others.
    """
    there = tables.read(rows.sparkSession, channel).where(
        (F.col("_epoch") >= epoch)  # the partitions to look into
        & (F.col("_seq") >= batch_id << SEQ_BITS)
        & (F.col("_seq") < batch_id + 1 << SEQ_BITS)
        & (F.col("_kind") == PageKind.DATA.value)
    )
    expected = _digest(there)
    if expected == (0, 0):
        return False  # or the batch had no rows, and will have none now
    found = _digest(rows)
    if found != expected:
        raise ReplayMismatchError(
            f"stage {stage!r}, batch {batch_id}: the replay gave {found[0]} rows "
            f"with digest {found[1]}, but its channel has {expected[0]} with {expected[1]}. The "
            "process function must depend on nothing but rows, state and context (no clock, no "
            "random numbers of its own). Restore from a checkpoint"
        )
    return True


def _digest(rows: DataFrame) -> tuple[int, int]:
    """Count and sum of row hashes: equal for equal bags of rows, in whatever files they lie."""
    columns = [F.col(name) for name in rows.columns if name != "_barrier"]
    # The sum of hashes would overflow a long under ANSI rules.
    hashed = F.sum(F.xxhash64(*columns).cast("decimal(38,0)"))
    row = rows.agg(F.count("*").alias("rows"), hashed.alias("digest")).collect()[0]
    return int(row["rows"]), int(row["digest"] or 0)
