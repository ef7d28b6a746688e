"""Whether a replayed micro-batch gives the rows that it gave before.

Its rows may be in a channel or a table already, while the state that belongs to them was lost with
the batch. A write that is there is skipped. So if the replay gave others, the state would have
taken what no table holds.
"""

from __future__ import annotations

import logging

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from absflow.columnar.pages import SEQ_BITS, PageKind
from absflow.errors import ReplayMismatchError, StorageError
from absflow.sinks import SinkWrite
from absflow.storage.delta import tables, transactions
from absflow.storage.sql import quoted

__all__ = ["check_sink", "is_in_channel"]

_LOG = logging.getLogger(__name__)


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
    _compare(f"stage {stage!r}, batch {batch_id}", "its channel", rows, expected)
    return True


def check_sink(rows: DataFrame, path: str, made: SinkWrite) -> None:
    """See that a Delta sink has no other rows of a batch than it gives now.

    Args:
        rows: the rows of one epoch that the batch gives now.
        path: the sink's table.
        made: their write.

    Raises:
        ReplayMismatchError: it has others.
    """
    spark = rows.sparkSession
    found = transactions.committed(spark, path, made.app_id, made.version)
    if found is None:
        return
    version, adds = found
    names = [add.rpartition("/")[2] for add in adds]
    what = f"stage {made.stage!r}, batch {made.batch_id}"
    try:
        there = tables.read(spark, path, version)
        there = there.where(F.col("_metadata.file_name").isin(names))
        with tables.reading(path):
            expected = _digest(there.select(*map(quoted, rows.columns)))
    except StorageError as error:
        # Somebody may have emptied the table and its past, which must not keep the job down.
        _LOG.warning("%s: its replay cannot be compared with version %d: %s", what, version, error)
        return
    _compare(what, f"version {version} of its sink {path!r}", rows, expected)


def _compare(what: str, where: str, rows: DataFrame, expected: tuple[int, int]) -> None:
    found = _digest(rows)
    if found != expected:
        raise ReplayMismatchError(
            f"{what}: the replay gave {found[0]} rows with digest {found[1]}, but {where} has "
            f"{expected[0]} with {expected[1]}. The process function must depend on nothing but "
            "rows, state and context (no clock, no random numbers of its own). Restore from a "
            "checkpoint"
        )


def _digest(rows: DataFrame) -> tuple[int, int]:
    """Count and sum of row hashes: equal for equal bags of rows, in whatever files they lie."""
    columns = [_hashable(rows, name) for name in rows.columns if name != "_barrier"]
    # The sum of hashes would overflow a long under ANSI rules.
    hashed = F.sum(F.xxhash64(*columns).cast("decimal(38,0)"))
    row = rows.agg(F.count("*").alias("rows"), hashed.alias("digest")).collect()[0]
    return int(row["rows"]), int(row["digest"] or 0)


def _hashable(rows: DataFrame, name: str) -> Column:
    """Spark hashes no maps, for equal ones may have different orders; these lie as written."""
    column = F.col(quoted(name))
    return F.to_json(F.struct(column)) if _has_map(rows.schema[name].dataType) else column


def _has_map(of: DataType) -> bool:
    if isinstance(of, StructType):
        return any(_has_map(field.dataType) for field in of.fields)
    return _has_map(of.elementType) if isinstance(of, ArrayType) else isinstance(of, MapType)
