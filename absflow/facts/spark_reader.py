"""A storage root read with Spark, for the inventory."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from absflow.storage.delta import tables
from absflow.storage.files import Files

__all__ = ["SparkStorageReader"]


class SparkStorageReader:
    """The storage root through Spark; rows of state and channels are not read."""

    def __init__(self, spark: SparkSession) -> None:
        """Look with ``spark``."""
        self._spark = spark
        files = Files(spark)
        self.names: Callable[[str], list[str]] = files.names
        self.read: Callable[[str], str | None] = files.read

    def rows(
        self, table: str, columns: Sequence[str], only: tuple[str, Collection[Any]] | None = None
    ) -> list[dict[str, Any]]:
        """Rows of a table; ``only`` those with one of these values in this column."""
        frame = tables.read(self._spark, table).select(*columns)
        if only is not None:
            frame = frame.where(F.col(only[0]).isin(*only[1]))
        return list(frame.toArrow().to_pylist())

    def values(self, table: str, column: str) -> frozenset[int]:
        """The values of a partition column, from the paths of the files in the table's log."""
        files = tables.read(self._spark, table).inputFiles()
        found = (re.findall(rf"/{column}=(-?\d+)/", path) for path in files)
        return frozenset(int(values[-1]) for values in found if values)
