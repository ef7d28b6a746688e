"""Rows compared without regard to their order, and their difference as people read it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from absflow.testing.rows import is_table

__all__ = ["assert_same_rows", "difference", "frozen", "plain_rows"]

# So many rows of a difference are shown.
_SHOWN = 10


def assert_same_rows(
    found: Any, expected: Any, *, ordered: bool = False, key: str | Sequence[str] = ()
) -> None:
    """Assert that there are the same rows, in any order.

    Args:
        found: a pyarrow table, a pandas or Spark DataFrame, or rows as dicts or tuples.
        expected: the same; in the order of the columns of ``found`` if it is made of tuples.
        ordered: they must come in the same order.
        key: columns by which a difference pairs rows that differ in others.

    Raises:
        AssertionError: saying which rows there are too many and too few.
    """
    said = difference(found, expected, ordered=ordered, key=key)
    if said:
        raise AssertionError(said)


def difference(
    found: Any, expected: Any, *, ordered: bool = False, key: str | Sequence[str] = ()
) -> str:
    """How rows differ, in lines; empty if they do not. Arguments as :func:`assert_same_rows`."""
    found, expected = (_kept(rows) for rows in (found, expected))
    columns = _columns(found) or _columns(expected)
    mine, due = plain_rows(found, columns), plain_rows(expected, columns)
    if _columns(found) and _columns(expected) and {*_columns(found)} != {*_columns(expected)}:
        return f"found columns {_columns(found)}, expected {_columns(expected)}"
    left, right = [frozen(row) for row in mine], [frozen(row) for row in due]
    if left == right or (not ordered and Counter(left) == Counter(right)):
        return ""
    if Counter(left) == Counter(right):
        at = next(n for n, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
        return (
            f"the same {len(mine)} rows, in another order; the first that differs is row {at}:\n"
            f"  found    {mine[at]}\n  expected {due[at]}"
        )
    extra, missing = _without(mine, left, right), _without(due, right, left)
    keys = (key,) if isinstance(key, str) else tuple(key)
    lines = [f"found {len(mine)} rows, expected {len(due)}; {_count(extra, missing)}"]
    return "\n".join([*lines, *_lines(extra, missing, keys)])


def _count(extra: Sequence[Any], missing: Sequence[Any]) -> str:
    return f"{len(missing)} of these are missing, {len(extra)} were not expected"


def _lines(
    extra: list[dict[str, Any]], missing: list[dict[str, Any]], keys: tuple[str, ...]
) -> Iterable[str]:
    """A line for each row of a difference; rows of one key stand together."""
    rows = [("expected", row) for row in missing] + [("found", row) for row in extra]
    if keys:
        rows.sort(key=lambda each: repr([each[1].get(name) for name in keys]))
    for what, row in rows[:_SHOWN]:
        yield f"  {what:<8} {row}"
    if len(rows) > _SHOWN:
        yield f"  and {len(rows) - _SHOWN} more"


def _without(
    rows: list[dict[str, Any]], mine: list[Hashable], other: list[Hashable]
) -> list[dict[str, Any]]:
    """The rows that the other side does not have, or not so often."""
    left, kept = Counter(other), []
    for row, value in zip(rows, mine, strict=True):
        if left[value]:
            left[value] -= 1
        else:
            kept.append(row)
    return kept


def _kept(rows: Any) -> Any:
    """Rows that can be looked at twice."""
    return rows if is_table(rows) or hasattr(rows, "toArrow") else list(rows)


def _columns(rows: Any) -> list[str]:
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return list(rows.schema.names)
    if isinstance(rows, pd.DataFrame):
        return [str(name) for name in rows.columns]
    if hasattr(rows, "toArrow"):
        return list(rows.columns)
    names: dict[str, None] = {}
    for row in rows:
        if isinstance(row, Mapping):
            names |= dict.fromkeys(row)
    return list(names)


def plain_rows(rows: Any, columns: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Rows of any form as dicts.

    Args:
        rows: as of :func:`assert_same_rows`.
        columns: the names of the values of tuples.

    Raises:
        ValueError: a row has another number of values.
    """
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if not is_table(rows) and hasattr(rows, "toArrow"):  # of Spark
        rows = rows.toArrow()
    if isinstance(rows, pa.Table):
        return list(rows.to_pylist())
    if isinstance(rows, pd.DataFrame):
        return [{str(n): v for n, v in row.items()} for row in rows.to_dict("records")]
    return [_named(row, columns) for row in rows]


def _named(row: Any, columns: Sequence[str]) -> dict[str, Any]:
    if isinstance(row, Mapping):
        return dict(row)
    values = tuple(row)
    names = list(columns) or [f"column {n}" for n in range(len(values))]
    if len(names) != len(values):
        raise ValueError(f"{row!r} has {len(values)} values, but the columns are {names}")
    return dict(zip(names, values, strict=True))


def frozen(value: Any) -> Hashable:
    """A value that can be compared and counted: NaN is equal to NaN, NaT and NA are null."""
    if isinstance(value, Mapping):
        items = ((str(name), frozen(each)) for name, each in value.items())
        return ("row", tuple(sorted(items, key=lambda item: item[0])))
    if isinstance(value, np.ndarray | list | tuple):
        return tuple(frozen(each) for each in value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NaT or value is pd.NA:
        return None
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, datetime):
        return _moment(value)
    return value  # type: ignore[no-any-return]


def _moment(value: datetime) -> datetime:
    """In UTC, and of the standard library, whatever class and zone it has."""
    if isinstance(value, pd.Timestamp):
        value = value.to_pydatetime(warn=False)
    return value.astimezone(timezone.utc) if value.tzinfo is not None else value
