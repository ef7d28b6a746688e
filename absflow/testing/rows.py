"""Rows as tests write them, and as tables: dicts, tuples, frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pandas as pd
import pyarrow as pa

from absflow.columnar.process import check_whole
from absflow.columnar.result import Misfit, conform

__all__ = ["Rows", "in_key_order", "is_table", "table_of"]

Rows: TypeAlias = "pa.Table | pd.DataFrame | Iterable[Mapping[str, Any] | Sequence[Any]]"


def is_table(rows: object) -> bool:
    """Whether it is a table or frame, and neither a row nor a list of rows."""
    return isinstance(rows, pa.Table | pa.RecordBatch | pd.DataFrame)


def table_of(rows: Rows, schema: pa.Schema, what: str) -> pa.Table:
    """Rows as a table with exactly these columns.

    Args:
        rows: a pyarrow table, a pandas frame, or rows. A row is a dict, in which columns that are
            null may be left out, or a tuple with all columns in their order.
        schema: the columns.
        what: names the rows in errors.

    Raises:
        ValueError: they have other columns, or values that do not fit.
    """
    try:
        if is_table(rows):
            return conform(rows, schema, what)
        given = [_values(row, schema) for row in rows]
        columns = list(zip(*given, strict=True)) or [()] * len(schema)
        for column, declared in zip(columns, schema, strict=True):
            check_whole(what, declared, column)
        arrays = [pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
    except (Misfit, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{what}: {error}") from error
    return pa.table(arrays, schema=schema)


def _values(row: object, schema: pa.Schema) -> tuple[Any, ...]:
    if isinstance(row, Mapping):
        if stray := sorted(map(str, row.keys() - set(schema.names))):
            raise ValueError(f"the row {row!r} has {stray}, but the columns are {schema.names}")
        return tuple(_plain(row.get(f.name), f.type) for f in schema)
    if isinstance(row, Sequence) and not isinstance(row, str | bytes) and len(row) == len(schema):
        return tuple(_plain(value, f.type) for value, f in zip(row, schema, strict=True))
    raise ValueError(
        f"{row!r} is neither a dict nor has it a value for each of the columns {schema.names}"
    )


def _plain(value: Any, type_: pa.DataType) -> Any:
    """A map as the pairs that Arrow wants."""
    return list(value.items()) if pa.types.is_map(type_) and isinstance(value, dict) else value


def in_key_order(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows by these columns, rising."""
    return table.sort_by([(name, "ascending") for name in names]) if table.num_rows else table
