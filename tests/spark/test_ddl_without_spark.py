"""DDL as the testing kit reads it, which has no JVM, and as Spark's own parser does."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType, _parse_datatype_string

from absflow import ddl

pytestmark = pytest.mark.spark

WORDS = (
    *("boolean", "TINYINT", "byte", "smallint", "short", "int", "Integer", "bigint", "long"),
    *("float", "real", "double", "string", "binary", "date", "timestamp", "timestamp_ntz"),
    *("timestamp_ltz", "decimal", "dec(5)", "numeric( 10 , 2 )"),
)
NAMES = st.sampled_from(["a", "_b", "C3", "`odd name`", "`with ``ticks```", "`ä`", "map", "value"])
TYPES = st.recursive(
    st.sampled_from(WORDS),
    lambda inner: st.one_of(
        inner.map("array<{}>".format),
        st.tuples(st.sampled_from(WORDS), inner).map(lambda two: "map<{}, {}>".format(*two)),
        st.lists(st.tuples(NAMES, inner), min_size=1, max_size=3, unique_by=lambda c: c[0]).map(
            lambda columns: "struct<" + ", ".join(f"{n}: {t}" for n, t in columns) + ">"
        ),
    ),
    max_leaves=5,
)
COLUMNS = st.lists(
    st.tuples(NAMES, st.sampled_from([" ", ": "]), TYPES, st.sampled_from(["", " NOT NULL"])),
    min_size=1,
    max_size=4,
    unique_by=lambda column: column[0],
)


@given(COLUMNS)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_columns_are_what_spark_makes_of_them(spark: SparkSession, columns: list) -> None:
    colon = columns[0][1]  # Spark takes one sort in one text
    text = ", ".join(f"{name}{colon}{type_}{null}" for name, _, type_, null in columns)
    assert ddl.parsed(text) == _parse_datatype_string(text)


@given(TYPES)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_type_alone_is_what_spark_makes_of_it(spark: SparkSession, text: str) -> None:
    assert ddl.parsed(text) == _parse_datatype_string(text)


def test_nothing_is_no_column(spark: SparkSession) -> None:
    assert ddl.parsed(" ") == _parse_datatype_string(" ") == StructType()


def test_a_comment_is_kept(spark: SparkSession) -> None:
    text = "n long COMMENT 'how often', m int NOT NULL COMMENT 'other'"
    made = ddl.parsed(text)
    assert isinstance(made, StructType)
    assert made == _parse_datatype_string(text)
    assert made["n"].metadata == {"comment": "how often"}


@pytest.mark.parametrize(
    "text", ["n", "n lomg", "n long,", "array<int", "map<int>", "n int int", "a: int, 3", "n !"]
)
def test_what_spark_refuses_is_refused(spark: SparkSession, text: str) -> None:
    with pytest.raises(ParseException):
        _parse_datatype_string(text)
    with pytest.raises(ValueError, match=r"expected|no part"):
        ddl.parsed(text)
