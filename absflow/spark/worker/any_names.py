"""``mapInArrow`` over columns that may have any names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from absflow.storage.delta.names import same_name

__all__ = ["map_in_arrow"]

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(rows: DataFrame, function: ArrowFunction, made: StructType) -> DataFrame:
    """``rows.mapInArrow(function, made)``.

    PySpark looks each column up by its name. A dot or a backtick in one has a meaning then, and two
    that differ by case only are one to Spark. Such rows get names by their place on the way to the
    function, which sees their own; others are spared the projection.
    """
    names = rows.columns
    if all(re.fullmatch(r"\w+", name) for name in names) and len({*map(same_name, names)}) == len(
        names
    ):
        return rows.mapInArrow(function, made)

    def named(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(batch.rename_columns(names) for batch in batches)

    return rows.toDF(*(f"column{place}" for place in range(len(names)))).mapInArrow(named, made)
