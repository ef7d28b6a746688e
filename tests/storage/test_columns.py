"""Rows are compared with a table column by column; case and type must be the same."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from absflow.storage.delta.columns import ColumnsFit, fit_columns


def columns(text: str) -> StructType:
    """Those that a schema's words name; not by Spark, which would need a JVM."""
    built = StructType()
    for word in text.split(", ") if text else ():
        name, _, of = word.partition(" ")
        built.add(name, of)
    return built


@pytest.mark.parametrize("rows", ["a long, b string", "b string, a long"])
def test_the_same_columns_fit(rows: str) -> None:
    """In any order, and whether or not the table must have a value."""
    table = columns("a long, b string")
    table.fields[0].nullable = False
    assert fit_columns(table, columns(rows)) == ColumnsFit()


def test_what_differs_is_named_in_its_own_order() -> None:
    """Added, unfilled, of another type, of another case: a column is one of them."""
    table, rows = (
        columns("a long, b string, c date, d short"),
        columns("x byte, D short, c byte, w long"),
    )
    fit = fit_columns(table, rows)
    assert fit.added == (rows["x"], rows["w"])
    assert fit.unfilled == (table["a"], table["b"])
    assert fit.other == ((table["d"], rows["D"]), (table["c"], rows["c"]))
