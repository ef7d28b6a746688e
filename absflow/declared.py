"""What a stage declares, read: its columns, and how it is restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType, _parse_datatype_string

from absflow import ddl
from absflow.columnar.restore_packer import Migration
from absflow.errors import GraphError
from absflow.graph.nodes import StageNode, Upgrade
from absflow.spark.worker.group_state import timeout_defaults

__all__ = ["called", "declared_columns", "declared_type", "declared_upgrade"]


def called(node: StageNode) -> dict[str, Callable[..., Any]]:
    """The functions of a stage that run on workers, by what they are in words."""
    functions: dict[str, Callable[..., Any]] = {
        f"input {given!r}": function for given, function in node.process.items()
    }
    if node.on_timer is not None:
        functions["on_timer"] = node.on_timer
    if node.upgrade.migrate is not None:
        functions["migrate"] = node.upgrade.migrate
    return functions


def declared_upgrade(
    renamed_from: str | None,
    defaults: Mapping[str, object] | None,
    migrate: Migration | None,
    timeout: str,
) -> Upgrade:
    """How a stage is restored from an earlier form of itself, also from one without timeouts."""
    return Upgrade(renamed_from, timeout_defaults(timeout) | dict(defaults or {}), migrate)


def declared_columns(stage: str, what: str, declared: str | StructType) -> pa.Schema:
    """The columns of DDL or of Spark's own type.

    Raises:
        GraphError: it is no DDL, or has a type that Arrow does not know.
    """
    type_ = declared_type(stage, what, declared)
    try:
        return to_arrow_schema(type_, timezone="UTC")
    except PySparkException as error:
        raise GraphError(
            f"stage {stage!r}: {what} {declared!r} has a type that no stage can have "
            f"({error.getMessage().splitlines()[0]})"
        ) from error


def declared_type(stage: str, what: str, declared: str | StructType) -> StructType:
    """The same as Spark's type.

    Raises:
        GraphError: it is no DDL.
    """
    if isinstance(declared, StructType):
        return declared
    try:
        parsed = _parsed(declared)
    except (PySparkException, ValueError) as error:
        said = error.getMessage() if isinstance(error, PySparkException) else str(error)
        raise GraphError(
            f"stage {stage!r}: {what} {declared!r} is not Spark DDL such as "
            f"'legs long, delay double' ({said.splitlines()[0]})"
        ) from error
    return parsed if isinstance(parsed, StructType) else StructType().add("value", parsed)


def _parsed(text: str) -> DataType:
    """By Spark's own parser, which is in the JVM; by ours where there is none, as in a test."""
    if SparkContext._active_spark_context is None:
        return ddl.parsed(text)
    return _parse_datatype_string(text)
