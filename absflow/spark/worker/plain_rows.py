"""Tables as the keys and Rows of Spark's ``transformWithState``, and Rows as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import Row

from absflow.columnar.forms import python_values
from absflow.columnar.process import check_whole
from absflow.errors import ResultError
from absflow.spark.worker.frames import fitting, localized

__all__ = ["checked_rows", "keys_of_rows", "rows_of", "table_of_rows"]


def keys_of_rows(keys: pa.Table, time_zone: str) -> list[tuple[Any, ...]]:
    """The keys as Python's values."""
    columns = localized(keys, time_zone).columns
    return list(zip(*(python_values(column) for column in columns), strict=True))


def rows_of(rows: pa.Table, ends: list[int], time_zone: str) -> Iterator[Iterator[Row]]:
    """The Rows of each key; ``ends`` says where they end in ``rows``."""
    named = Row(*rows.column_names)
    made = [named(*values) for values in keys_of_rows(rows, time_zone)]
    start = 0
    for end in ends:
        yield iter(made[start:end])
        start = end


def checked_rows(made: object, output: pa.Schema) -> Iterator[tuple[Any, ...]]:
    """What the processor returned, each Row of it, as values of the output's columns.

    Raises:
        ResultError: it is no iterable of Rows, or a Row has other columns.
    """
    if isinstance(made, tuple) or not isinstance(made, Iterable):
        raise ResultError(
            f"returned {type(made).__name__}, but an iterable of Rows is expected; yield the Row"
        )
    for row in made:
        names = getattr(row, "__fields__", None) if isinstance(row, Row) else None
        if names is None:
            raise ResultError(
                f"emitted {row!r}, but a Row with names is expected; for pandas DataFrames the "
                'form is "stateful-processor-in-pandas"'
            )
        if list(names) == output.names:
            yield tuple(row)
        elif sorted(names) == sorted(output.names):
            yield tuple(row[name] for name in output.names)
        else:
            raise ResultError(f"emitted columns {list(names)}, but {output.names} are declared")


def table_of_rows(
    rows: list[tuple[Any, ...]], schema: pa.Schema, _time_zone: str
) -> pa.Table | None:
    """The values as one table; times without a zone are UTC's, as for Spark."""
    if not rows:
        return None
    arrays = []
    for field, values in zip(schema, zip(*rows, strict=True), strict=True):
        plain = map(_plain, values) if pa.types.is_nested(field.type) else values
        with fitting():
            check_whole("output", field, values)
            arrays.append(pa.array(plain, field.type))
    return pa.table(arrays, schema=schema)


def _plain(value: Any) -> Any:
    """A value in which Rows are dicts, as Arrow takes them."""
    if isinstance(value, Row):
        return {name: _plain(of) for name, of in value.asDict().items()}
    if isinstance(value, list | tuple):
        return [_plain(of) for of in value]
    if isinstance(value, dict):
        return {key: _plain(of) for key, of in value.items()}
    return value
