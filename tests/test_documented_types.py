"""docs/process-functions.md says what the values of each Spark type are; here they are."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from absflow.columnar.forms import on_pandas, per_row
from absflow.columnar.process import Context, Result
from absflow.spark.worker.per_key import per_key

PAGE = Path(__file__).parent.parent / "docs" / "process-functions.md"
NOW = dt.datetime(2026, 1, 2, 3, 4, 5)
VALUES = {
    T.BooleanType(): True,
    T.ByteType(): 1,
    T.ShortType(): 1,
    T.IntegerType(): 1,
    T.LongType(): 1,
    T.FloatType(): 1.5,
    T.DoubleType(): 1.5,
    T.DecimalType(10, 2): Decimal("1.50"),
    T.StringType(): "a",
    T.BinaryType(): b"a",
    T.DateType(): NOW.date(),
    T.TimestampType(): NOW.replace(tzinfo=dt.timezone.utc),
    T.TimestampNTZType(): NOW,
    T.ArrayType(T.IntegerType()): [1],
    T.MapType(T.StringType(), T.IntegerType()): [("a", 1)],
    T.StructType([T.StructField("a", T.IntegerType())]): {"a": 1},
}


def line(spark_type: T.DataType, value: object) -> str:
    """What the functions of each form find in a column, as a line of the page."""
    fields = [T.StructField("key", T.StringType()), T.StructField("v", spark_type)]
    schema = to_arrow_schema(T.StructType(fields), timezone="UTC")
    values = pa.array([value], schema.field("v").type)
    table = pa.table([pa.array(["k"]), values], schema=schema)
    seen = [str(schema.field("v").type)]

    def frame(rows, state, context):
        seen.append(f"`{rows['v'].dtype}`, `{type(rows['v'].iloc[0]).__name__}`")
        return Result()

    def row(state, row):
        seen.append(f"`{type(row[1]).__name__}`")
        return state, None

    def key(key, frames, state):
        for given in frames:
            seen.append(f"`{given['v'].dtype}`, `{type(given['v'].iloc[0]).__name__}`")
        seen.append(f"`{type(state.get[0]).__name__}`")
        return []

    for process in (on_pandas(frame), per_row(row), per_key(key, "UTC")):
        process(table, table, context())
    return " | ".join([f"| `{spark_type.simpleString()}`", f"`{seen[0]}`", *seen[1:]]) + " |"


def context() -> Context:
    """Of a call with one row of one key that has state."""
    return Context(
        stage="stage",
        input="input",
        key_group=0,
        epoch=1,
        time_ms=0,
        key=("key",),
        output=pa.schema([]),
        key_of_row=np.zeros(1, dtype=np.int64),
        is_new=np.zeros(1, dtype=np.bool_),
        random=np.random.default_rng(0),
    )


@pytest.mark.parametrize("spark_type", VALUES, ids=lambda t: t.simpleString())
def test_the_page_says_what_a_value_is(spark_type: T.DataType) -> None:
    """Each Spark type has its line, with the types that functions of each form find."""
    assert line(spark_type, VALUES[spark_type]) in PAGE.read_text().splitlines()
