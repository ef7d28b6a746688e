"""How rows fit the columns of a table that may have been made for others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from absflow.errors import StorageError
from absflow.storage import sql
from absflow.storage.delta import tables
from absflow.storage.delta.names import same_name
from absflow.storage.files import Files
from absflow.storage.session import conf_set

__all__ = ["ColumnsFit", "add_columns", "fit_columns"]


@dataclass(frozen=True, slots=True)
class ColumnsFit:
    """How rows fit a table; empty if they have the same columns, in whatever order.

    Attributes:
        added: columns of the rows that the table lacks.
        unfilled: columns of the table that the rows lack.
        other: columns that are not the same in both, by type or case: the table's, the rows'.
    """

    added: tuple[StructField, ...] = ()
    unfilled: tuple[StructField, ...] = ()
    other: tuple[tuple[StructField, StructField], ...] = ()


def fit_columns(table: StructType, rows: StructType) -> ColumnsFit:
    """Compare by name and type; whether a value must be there is not asked."""
    there = {same_name(field.name): field for field in table.fields}
    due = {same_name(field.name): field for field in rows.fields}
    pairs = [(there[name], field) for name, field in due.items() if name in there]
    return ColumnsFit(
        added=tuple(field for name, field in due.items() if name not in there),
        unfilled=tuple(field for name, field in there.items() if name not in due),
        other=tuple((a, b) for a, b in pairs if (a.name, a.dataType) != (b.name, b.dataType)),
    )


def add_columns(
    spark: SparkSession,
    path: str,
    columns: Sequence[StructField],
    user_metadata: Mapping[str, Any],
) -> None:
    """Add columns at a table's end, in one commit, but for those that it has already.

    Args:
        spark: the session.
        path: the table's.
        columns: rows of before are null in them.
        user_metadata: what the commit says of itself.

    Raises:
        StorageError: if Delta refuses.
    """
    if not columns:
        return
    there = {same_name(name) for name in tables.read(spark, path).columns}
    missing = StructType([f for f in columns if same_name(f.name) not in there])
    if not missing.fields:
        return
    note = {"spark.databricks.delta.commitInfo.userMetadata": json.dumps(user_metadata)}
    try:
        with conf_set(spark, note):
            table = sql.table(Files(spark).qualified(path))
            spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({missing.toDDL()})")
    except (PySparkException, Py4JError) as error:
        raise StorageError(
            f"could not add {missing.simpleString()} to the columns of table {path!r}: {error}"
        ) from error
