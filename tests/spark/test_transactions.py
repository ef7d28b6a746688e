"""An append is made once, whoever else writes the table, and whatever is left of its log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from appends import SCHEMA, commits, driver_rows, rows
from delta.tables import DeltaTable
from deltalake import DeltaTable as DeltaLake
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from absflow.columnar import pages
from absflow.errors import StorageError
from absflow.storage.delta import tables, transactions
from absflow.storage.delta.log import log_file, parse_commit
from absflow.storage.delta.transactions import ArrowRows, DriverRows, append_once

pytestmark = pytest.mark.spark


def arrow_rows(spark: SparkSession, count: int = 10) -> ArrowRows:
    """The same rows, as the workers make them."""

    def make(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            n = batch.column(0)
            yield pa.RecordBatch.from_arrays([n, pc.bit_wise_and(n, 1)], schema=SCHEMA)

    return ArrowRows(spark.range(count).coalesce(1), make, SCHEMA)


@pytest.fixture
def left_to_delta(monkeypatch: pytest.MonkeyPatch) -> list[ArrowRows]:
    """The rows that the workers did not write, each time."""
    left = []
    frame = ArrowRows.frame

    def noted(given: ArrowRows) -> DataFrame:
        left.append(given)
        return frame(given)

    monkeypatch.setattr(ArrowRows, "frame", noted)
    return left


def test_what_is_written_is_what_delta_would_write(spark: SparkSession, table: str) -> None:
    """Rows, partitions, transaction id and note; only what was not written before."""
    append_once(rows(spark), table, "job/a", 3, {"batch": 3})
    append_once(rows(spark), table, "job/a", 3, {"batch": 3})
    append_once(rows(spark), table, "job/a", 2, {"batch": 2})
    append_once(rows(spark, 4), table, "job/b", 0, {"batch": 0})
    assert commits(table) == 2
    commit = parse_commit(1, Path(log_file(table, 1)).read_text())
    assert (commit.transactions, commit.note) == ({"job/a": 3}, {"batch": 3})
    assert (commit.operation, commit.changes_data) == ("WRITE", True)
    there = spark.read.format("delta").load(table)
    assert there.count() == 14
    assert {path.name for path in Path(table).glob("p=*")} == {"p=0", "p=1"}


def test_rows_of_the_driver_are_the_same_to_a_reader(spark: SparkSession, table: str) -> None:
    """Appended once, to each partition, without a Spark job; beside Delta's own."""
    append_once(rows(spark), table, "job/a", 0, {})
    spark.sparkContext.setJobGroup("driver rows", "none is expected")
    append_once(driver_rows(spark), table, "job/a", 1, {"batch": 1})
    append_once(driver_rows(spark), table, "job/a", 1, {"batch": 1})
    append_once(driver_rows(spark, 0), table, "job/a", 2, {})
    ran = spark.sparkContext.statusTracker().getJobIdsForGroup("driver rows")
    spark.sparkContext.setJobGroup("", "")
    assert ran == []
    commit = parse_commit(2, Path(log_file(table, 2)).read_text())
    assert (commit.transactions, commit.note) == ({"job/a": 1}, {"batch": 1})
    assert (commit.operation, commit.changes_data) == ("WRITE", True)
    assert commits(table) == 2
    there = spark.read.format("delta").load(table)
    assert sorted(there.collect()) == sorted(rows(spark).union(rows(spark)).collect())
    assert there.where("p = 1").count() == 10
    append_once(driver_rows(spark, 0), table, "job/a", 2, {}, if_empty=True)
    append_once(driver_rows(spark, 0), table, "job/a", 2, {}, if_empty=True)
    assert commits(table) == 3


def test_rows_of_workers_are_the_same_to_a_reader(
    spark: SparkSession, table: str, left_to_delta: list[ArrowRows]
) -> None:
    """Appended once, to each partition, as Delta's own command does; its history says how many."""
    for number in range(2):
        append_once(rows(spark), table, "job/a", number, {})
        append_once(arrow_rows(spark), table, "job/b", number, {"batch": number})
        append_once(arrow_rows(spark), table, "job/b", number, {"batch": number})
        append_once(arrow_rows(spark, 0), table, "job/c", number, {})
    assert commits(table) == 4
    commit = parse_commit(2, Path(log_file(table, 2)).read_text())
    assert (commit.transactions, commit.note) == ({"job/b": 0}, {"batch": 0})
    assert (commit.operation, commit.changes_data) == ("WRITE", True)
    there = spark.read.format("delta").load(table)
    assert sorted(there.where("p = 1").collect()) == sorted([(n, 1) for n in (1, 3, 5, 7, 9)] * 4)
    assert there.count() == 40
    history = DeltaTable.forPath(spark, table).history().where("version > 0").collect()
    metrics = [row["operationMetrics"] for row in history]
    assert [(m["numOutputRows"], m["numFiles"]) for m in metrics] == [("10", "2")] * 4
    assert left_to_delta == []


def test_the_rows_of_a_channel_are_written_by_workers(
    spark: SparkSession, tmp_path: Path, left_to_delta: list[ArrowRows]
) -> None:
    """With the columns, properties and partitions that every channel has."""
    path = str(tmp_path / "channel")
    schema = pages.channel_schema(pa.schema([("n", pa.int64())]))
    tables.create(spark, path, schema, ["_epoch"], tables.CHANNEL_PROPERTIES)

    def make(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            given = [{"_epoch": n % 2, "n": n} for n in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pylist(given, schema)

    append_once(ArrowRows(spark.range(5).coalesce(1), make, schema), path, "job/a", 1, {})
    there = spark.read.format("delta").load(path).where("_epoch = 1").select("n")
    assert sorted(there.collect()) == [(1,), (3,)]
    assert left_to_delta == []


def test_a_partition_may_be_that_of_null(
    spark: SparkSession, table: str, left_to_delta: list[ArrowRows]
) -> None:
    """As Delta's own command has it; no row without a value is lost."""

    def make(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            given = [{"n": n, "p": n if n % 2 else None} for n in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pylist(given, SCHEMA)

    append_once(ArrowRows(spark.range(4).coalesce(1), make, SCHEMA), table, "job/a", 1, {})
    assert left_to_delta == []
    frame = spark.range(4).selectExpr("id AS n", "if(id % 2 = 1, id, null) AS p")
    append_once(frame.coalesce(1), table, "job/b", 1, {})
    there = spark.read.format("delta").load(table)
    assert sorted(there.where("p IS NULL").select("n").collect()) == [(0,), (0,), (2,), (2,)]
    assert sorted(there.where("p IS NOT NULL").collect()) == [(1, 1), (1, 1), (3, 3), (3, 3)]
    folders = {file.rsplit("/", 2)[-2] for file in there.inputFiles()}
    assert folders == {"p=1", "p=3", "p=__HIVE_DEFAULT_PARTITION__"}


@pytest.mark.parametrize(
    "rule",
    [
        "ALTER TABLE delta.`{}` ADD CONSTRAINT some CHECK (n < 9)",
        "ALTER TABLE delta.`{}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
    ],
)
def test_a_table_with_rules_is_written_by_delta(
    spark: SparkSession, table: str, rule: str, left_to_delta: list[ArrowRows]
) -> None:
    """Which sees to them: the rows are refused, or are in files as the table wants them."""
    spark.sql(rule.format(table))
    append_once(arrow_rows(spark, 5), table, "job/a", 1, {})
    assert len(left_to_delta) == 1
    assert spark.read.format("delta").load(table).select("n").distinct().count() == 5
    if "CHECK" in rule:
        with pytest.raises((PySparkException, Py4JError), match="CHECK constraint some"):
            append_once(arrow_rows(spark), table, "job/a", 2, {})
        assert spark.read.format("delta").load(table).count() == 5


def test_a_column_that_the_rows_lack_is_null(
    spark: SparkSession, table: str, left_to_delta: list[ArrowRows]
) -> None:
    """Workers leave it out of their files."""
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMN more string")
    append_once(arrow_rows(spark, 5), table, "job/a", 1, {})
    assert left_to_delta == []
    there = spark.read.format("delta").load(table)
    assert there.where("more IS NULL").select("n").distinct().count() == 5


class Odd:
    """Sends the odd numbers that it has seen."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def take(self, batch: pa.RecordBatch) -> None:
        self.seen += [n for n in batch.column(0).to_pylist() if n % 2]

    def messages(self) -> list[str]:
        return [str(n) for n in self.seen]


def test_workers_tell_what_they_see_beside(spark: SparkSession, table: str) -> None:
    """In the same job; nothing if the rows are not written by them, or were there."""
    there = replace(arrow_rows(spark, 4), side_output=Odd)
    assert append_once(there, table, "job/a", 1, {}) == ["1", "3"]
    assert append_once(there, table, "job/a", 1, {}) is None
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT some CHECK (n < 9)")
    assert append_once(there, table, "job/a", 2, {}) is None
    assert spark.read.format("delta").load(table).count() == 8


def test_files_that_were_written_are_committed_later(spark: SparkSession, table: str) -> None:
    """Once; and not if the table has become another meanwhile."""
    plain = transactions.plain_table(spark, table, SCHEMA)
    assert plain is not None
    adds = list(plain.write(pa.table({"n": [1, 2, 3], "p": [1, 0, 1]}, SCHEMA).to_batches()))
    for _ in range(2):
        append_once(transactions.UncommittedFiles(spark, plain, adds), table, "job/a", 1, {})
    there = spark.read.format("delta").load(table)
    assert sorted(there.collect()) == [(1, 1), (2, 0), (3, 1)]
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT some CHECK (n < 9)")
    adds = list(plain.write(pa.table({"n": [10], "p": [0]}, SCHEMA).to_batches()))
    with pytest.raises(StorageError, match="was changed while files were written"):
        append_once(transactions.UncommittedFiles(spark, plain, adds), table, "job/a", 2, {})
    assert transactions.plain_table(spark, table, SCHEMA) is None
    assert spark.read.format("delta").load(table).count() == 3


def test_what_workers_say_of_their_files_hides_no_row(
    spark: SparkSession, tmp_path: Path, left_to_delta: list[ArrowRows]
) -> None:
    """Each value is found by a search for it, which skips files by their statistics."""
    path = str(tmp_path / "table")
    columns = {
        "n": ("bigint", ["1", "-5", "null"]),
        "d": ("double", ["'NaN'", "0.5", "null"]),
        "s": ("string", ["'a'", "repeat('z', 40)", "'\u00e4'"]),
        "day": ("date", ["'2024-02-29'", "'0001-01-01'", "null"]),
        "t": ("timestamp", ["'2024-01-01 00:00:00.0009'", "'9999-12-31 23:59:59.999999'", "null"]),
        "local": ("timestamp_ntz", ["'1969-12-31 23:59:59.999999'", "'2024-01-01'", "null"]),
        "b": ("boolean", ["true", "false", "null"]),
        "inner": ("struct<d: double>", ["struct('NaN')", "struct('0.5')", "null"]),
    }
    parts = [
        ", ".join(
            f"cast({values[place]} AS {of}) AS {name}" for name, (of, values) in columns.items()
        )
        for place in range(3)
    ]
    given = spark.sql(" UNION ALL ".join(f"SELECT {part}" for part in parts)).coalesce(1)
    schema = pa.schema([field.with_nullable(True) for field in given.toArrow().schema])
    tables.create(spark, path, schema)

    def same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    append_once(ArrowRows(given, same, schema), path, "job/a", 1, {})
    assert left_to_delta == []
    there = spark.read.format("delta").load(path)
    assert there.count() == 3
    for name, (of, values) in columns.items():
        for value in values:
            found = there.where(f"{name} <=> cast({value} AS {of})")
            assert found.count() == values.count(value), (name, value)
    for condition in ("d > 1", "d >= 0.6", "d = double('NaN')", "inner.d > 1"):
        assert there.where(condition).count() == 1, condition
    # A reader that takes files without a version for those of another calendar.
    old = "spark.sql.parquet.datetimeRebaseModeInRead"
    spark.conf.set(old, "LEGACY")
    try:
        assert there.where("day = date'0001-01-01'").count() == 1
    finally:
        spark.conf.unset(old)


def test_any_reader_can_read_what_the_driver_writes(spark: SparkSession, tmp_path: Path) -> None:
    """Spark and delta-rs; each file has all columns, for those who read files by themselves."""
    path = str(tmp_path / "table")
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("at", pa.timestamp("ns", tz="UTC")),
            ("names", pa.map_(pa.string(), pa.string())),
            ("parts", pa.list_(pa.struct([("stage", pa.string()), ("ids", pa.list_(pa.int64()))]))),
            ("amount", pa.decimal128(9, 2)),
        ]
    )
    at = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    parts = [{"stage": "s", "ids": [1, None]}]
    full = {"n": 1, "at": at, "names": [("a", None)], "parts": parts, "amount": Decimal("0.50")}
    given = pa.Table.from_pylist([full, {"n": 2}], schema)
    tables.create(spark, path, schema)
    append_once(DriverRows(spark, given), path, "job/a", 1, {})
    due = [{**dict.fromkeys(schema.names), **row} for row in (full, {"n": 2})]
    assert spark.read.format("delta").load(path).toArrow().to_pylist() == due
    assert pa.table(DeltaLake(path).to_pyarrow_table()).to_pylist() == due
    (file,) = Path(path).glob("*.parquet")
    assert pq.read_schema(file).names == schema.names
