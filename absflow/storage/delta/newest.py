"""The newest version of a Delta table, as Delta has it in the JVM of the driver."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from absflow.storage.delta.classes import delta_classes

__all__ = ["columns", "described", "files_of", "is_encrypted", "newest"]

_ENCRYPTED = "parquet.crypto.factory.class"


@contextmanager
def newest(spark: SparkSession, path: str) -> Iterator[Any]:
    """Delta's snapshot of the table at ``path``; what is asked of it, within the block."""
    scala = delta_classes(spark.sparkContext._jvm)
    session: Any = spark._jsparkSession
    with scala.active(session):
        yield scala.delta_log.forTable(session, path).startTransaction().snapshot()


def described(version: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ``protocol`` and the ``metaData`` action of a version."""
    protocol = json.loads(version.protocol().json())["protocol"]
    return protocol, json.loads(version.metadata().json())["metaData"]


def columns(metadata: Mapping[str, Any]) -> StructType:
    """The columns that a ``metaData`` action says."""
    return StructType.fromJson(json.loads(metadata["schemaString"]))


def files_of(spark: SparkSession, version: Any) -> DataFrame:
    """The ``add`` actions of the files of a version."""
    return DataFrame(version.allFiles().toDF(), spark)


def is_encrypted(spark: SparkSession) -> bool:
    """Whether Parquet files are encrypted, which Spark's reader and writer alone see to."""
    hadoop: Any = spark.sparkContext._jsc
    return hadoop.hadoopConfiguration().get(_ENCRYPTED) is not None
