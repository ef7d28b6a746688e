"""Stages that direct edges join: the same cuts, states and sinks out of one query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chain import check, expected, run
from diamond import write_source
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, files_read

import absflow
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.spark.batch.query import start_query

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FILES = 6
CHECK = "spark.sql.streaming.unsupportedOperationCheck"


def test_every_cut_is_one(spark: SparkSession, tmp_path: Path) -> None:
    """At each checkpoint both stages hold exactly what the source's position says."""
    write_source(tmp_path / "a", files=FILES, rows=200, seed=5)
    last = run(
        spark,
        tmp_path,
        edges="direct",
        checkpoint__mode="unaligned",
        checkpoint__interval="100ms",
    )
    check(spark, tmp_path, last, FILES)
    assert not (tmp_path / "job" / "channels").exists()
    history = absflow.history(spark, str(tmp_path / "job"))
    rows = completed(spark, tmp_path / "job")
    assert len(rows) >= 3
    for row in rows:
        due = expected(tmp_path, files_read(row, "left", "a"))
        for stage, key in (("left", "k"), ("tally", "g")):
            state = history.state(stage, row["checkpoint_id"]).toPandas()
            assert_same_rows(state, due[stage], [key])


def stage(name: str, of: pa.DataType) -> StageSpec:
    """One whose input has a column of this type."""
    keys = pa.schema([("k", pa.int64())])
    given = InputSpec("rows", pa.schema([("k", pa.int64()), ("v", of)]), root=True)
    return StageSpec(name, (given,), keys, keys, keys, {}, 1)


@pytest.mark.parametrize("before", [None, "true", "false"])
def test_sparks_check_is_off_around_the_start_only(spark: SparkSession, before: str | None) -> None:
    """And is put back as it was, also if the start fails."""
    seen = []

    class Failing:
        def start(self) -> Any:
            seen.append(spark.conf.get(CHECK))
            raise OSError("no space left")

    def given() -> str | None:
        return spark.conf.get(CHECK, None)

    if before is not None:
        spark.conf.set(CHECK, before)
    try:
        a, b = stage("a", pa.int64()), stage("b", pa.int64())
        for chain, during in (([a], before or "true"), ([a, b], "false")):
            with pytest.raises(OSError, match="no space left"):
                start_query(Failing(), spark, chain)  # type: ignore[arg-type]
            assert seen.pop() == during
            assert given() == before
    finally:
        spark.conf.unset(CHECK)


def test_a_start_that_java_fails_names_the_stages_and_what_to_do(spark: SparkSession) -> None:
    """As it does when the storage refuses a call of Spark's."""

    class Failing:
        def start(self) -> Any:
            jvm: Any = spark.sparkContext._jvm
            return jvm.java.io.FileInputStream("/no/answer")

    chain = [stage("a", pa.int64()), stage("b", pa.int64())]
    with pytest.raises(absflow.StorageError) as caught:
        start_query(Failing(), spark, chain)  # type: ignore[arg-type]
    assert "the query of 'a', 'b': java.io.FileNotFoundException" in str(caught.value)
    assert "start the job again" in str(caught.value)


@pytest.mark.parametrize(
    ("of", "rows"),
    [
        (pa.int64(), "10000"),
        (pa.struct([("d", pa.string())]), "10000"),
        (pa.list_(pa.int64()), "1000"),
        (pa.map_(pa.string(), pa.int64()), "1000"),
        (pa.struct([("d", pa.list_(pa.string()))]), "1000"),
    ],
)
def test_batches_of_rows_with_lists_are_small(
    spark: SparkSession, of: pa.DataType, rows: str
) -> None:
    """If any stage of the chain gets such rows, for all have one query."""
    seen = []

    class Started:
        def start(self) -> None:
            seen.append(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"))

    start_query(Started(), spark, [stage("a", pa.int64()), stage("b", of)])  # type: ignore[arg-type]
    assert seen == [rows]
