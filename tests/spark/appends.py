"""Tables to append to, and rows of each kind."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from absflow.storage.delta.log import newest_version
from absflow.storage.delta.transactions import DriverRows

SCHEMA = pa.schema([("n", pa.int64()), ("p", pa.int64())])


def create(spark: SparkSession, path: str) -> None:
    builder = DeltaTable.createIfNotExists(spark).location(path).addColumn("n", "long")
    builder = builder.addColumn("p", "long").partitionedBy("p")
    builder.property("delta.checkpointInterval", "3").execute()


def rows(spark: SparkSession, count: int = 10) -> DataFrame:
    return spark.range(count).selectExpr("id AS n", "id % 2 AS p").coalesce(1)


def driver_rows(spark: SparkSession, count: int = 10) -> DriverRows:
    """The same rows in the driver's memory."""
    numbers = list(range(count))
    columns = {"n": numbers, "p": [n % 2 for n in numbers]}
    return DriverRows(spark, pa.table(columns, schema=SCHEMA))


def commits(table: str) -> int:
    return newest_version(path.name for path in Path(table, "_delta_log").iterdir()) or 0
