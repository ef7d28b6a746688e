"""The data files that a table's log names."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from absflow.storage.delta.newest import files_of, newest

__all__ = ["NamedFiles"]


class NamedFiles:
    """Of the newest version, and those that were removed and are not to go yet."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Of the table at ``path`` as it is now."""
        with newest(spark, path) as version:
            tombstones = DataFrame(version.tombstones().toDF(), spark)
            self._paths = files_of(spark, version).select("path").union(tombstones.select("path"))

    def directories(self) -> set[str]:
        """The directories of the table in which they lie, of one level of partitions."""
        parts = self._paths.select(F.substring_index("path", "/", 1)).distinct()
        return {row[0] for row in parts.collect()}

    def within(self, directories: Collection[str]) -> set[str]:
        """Those in these directories, from the table's path on."""
        chosen = self._paths.where(F.substring_index("path", "/", 1).isin([*directories]))
        return {row[0] for row in chosen.collect()} if directories else set()

    def all(self) -> set[str]:
        """All of them, from the table's path on."""
        return {row[0] for row in self._paths.collect()}
