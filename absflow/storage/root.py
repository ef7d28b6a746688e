"""A job's storage root, as the driver reaches it."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from absflow.storage.files import Files
from absflow.storage.java import replace_local_files
from absflow.storage.layout import Layout, check_place
from absflow.storage.session import check_pages, wait_little

__all__ = ["StorageRoot"]


@dataclass(frozen=True, slots=True)
class StorageRoot:
    """A job's storage root, as the driver reaches it.

    Attributes:
        spark: the session.
        files: its files.
        layout: where its tables and directories lie.
    """

    spark: SparkSession
    files: Files
    layout: Layout

    @classmethod
    def open(cls, spark: SparkSession, path: str) -> StorageRoot:
        """The root at ``path``; it need not be there yet.

        Raises:
            StorageError: no job can have this path.
        """
        check_pages(spark)
        wait_little(spark)
        files = Files(spark)
        root = files.qualified(path)
        if root.startswith("file:"):
            replace_local_files(spark)
        check_place(root)
        return cls(spark, files, Layout(root))
