"""Pages of a stream: DATA pages of rows, control pages of the coordinator's tables."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.columnar.event_time import watermark_payload
from absflow.columnar.pages import PAGE_SCHEMA, PageKind
from absflow.columnar.spec import StageSpec
from absflow.protocol.watermarks import WatermarkStatus
from absflow.spark.worker.any_names import map_in_arrow
from absflow.spark.worker.packing import pack_function

__all__ = ["PAGE_TYPE", "barrier_pages", "data_pages", "overtake_pages", "pages_in", "write_pages"]

PAGE_TYPE = from_arrow_schema(PAGE_SCHEMA)
# Of pages in a file, what a task reads at once.
_READ_BYTES = 64 << 20


def data_pages(
    rows: DataFrame, spec: StageSpec, name: str, page_bytes: int, ranges: int
) -> DataFrame:
    """The rows of an input as DATA pages for the key groups of a stage of so many ranges."""
    return map_in_arrow(rows, pack_function(spec, spec.input(name), page_bytes, ranges), PAGE_TYPE)


def write_pages(pages: DataFrame, directory: str, mode: str, page_bytes: int) -> None:
    """Write pages into Parquet files, for :func:`pages_in`.

    Spark reads 4,096 rows of a row group at once, whatever their size: gigabytes of pages, where a
    column vector may have two at most. So row groups are short.

    Args:
        pages: what to write.
        directory: where.
        mode: Spark's save mode.
        page_bytes: a page has at most so many bytes.
    """
    rows = max(1, _READ_BYTES // page_bytes)
    writer = pages.write.mode(mode).option("parquet.block.row.count.limit", rows)
    writer.parquet(directory)


def pages_in(spark: SparkSession, directory: str) -> DataFrame:
    """The pages in Parquet files of a directory, as a stream."""
    return spark.readStream.schema(PAGE_TYPE).parquet(directory)


def barrier_pages(table: DataFrame, spec: StageSpec, roots: list[str], attempt: int) -> DataFrame:
    """A trigger becomes a page for each root input and key group, an END row for its own input."""
    table = table.where(F.col("attempt") == attempt)
    each = table.withColumn("root", F.explode(F.array(*(F.lit(name) for name in roots))))
    is_end = F.col("kind") == PageKind.END.value
    mine = (F.col("stage") == spec.name) & (F.col("input") == F.col("root"))
    return _control_pages(
        each.where(~is_end | mine),
        spec,
        kind=F.when(is_end, PageKind.END.value).otherwise(PageKind.BARRIER.value),
        input=F.col("root"),
        base_id=F.coalesce("base_id", F.lit(0)),
        completed_id=F.coalesce("completed_id", F.lit(0)),
        triggered_ms=F.unix_millis("triggered_at"),
        payload=_time_of_barrier(spec) if spec.timed else F.lit(b""),
    )


def _time_of_barrier(spec: StageSpec) -> Column:
    """That an input ends with this barrier, if it does; for event time only."""
    me = F.struct(F.lit(spec.name).alias("stage"), F.col("root").alias("input"))
    said = watermark_payload(None, WatermarkStatus.ENDED)
    ended = F.coalesce(F.array_contains("exhausted", me), F.lit(False))
    return F.when(ended, F.lit(said)).otherwise(F.lit(b""))


def overtake_pages(table: DataFrame, spec: StageSpec, attempt: int) -> DataFrame:
    """A row of ``overtakes`` becomes a page for each key group."""
    return _control_pages(
        table.where(F.col("attempt") == attempt),
        spec,
        kind=F.col("kind"),
        base_id=F.coalesce("base_id", F.lit(0)),
        completed_id=F.coalesce("completed_id", F.lit(0)),
        triggered_ms=F.coalesce(F.unix_millis("triggered_at"), F.lit(0)),
    )


def _control_pages(rows: DataFrame, spec: StageSpec, **columns: Any) -> DataFrame:
    """One page per row and key group; what ``columns`` does not give is empty."""
    groups = F.explode(F.sequence(F.lit(0), F.lit(spec.key_groups - 1)))
    values = {
        "key_group": F.col("key_group"),
        "input": F.lit(""),
        "checkpoint_id": F.coalesce("checkpoint_id", F.lit(0)),
        "payload": F.lit(b""),
        **columns,
    }
    return rows.withColumn("key_group", groups).select(
        *(
            values.get(field.name, F.lit(0)).cast(field.dataType).alias(field.name)
            for field in PAGE_TYPE.fields
        )
    )
