"""Rows of a state history that the workers read themselves are those that Spark reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from session import spark_conf

from absflow.columnar.timers import timer_fields
from absflow.facts.damage import file_in
from absflow.spark.worker.any_names import map_in_arrow
from absflow.spark.worker.set_rows import SetRows, _parts
from absflow.storage import state_history
from absflow.storage.delta import tables
from absflow.storage.delta.transactions import DriverRows, append_once
from absflow.storage.files import Files

pytestmark = pytest.mark.spark

KEYS = pa.schema([("a.b", pa.string())])
STATE = pa.schema(
    [
        ("n", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("of", pa.map_(pa.string(), pa.list_(pa.int32()))),
        *timer_fields(),
    ]
)
COLUMNS = state_history.history_columns(KEYS, STATE)
MADE = from_arrow_schema(pa.schema([("row", pa.string())]))


def rows_of(set_id: int, count: int) -> pa.Table:
    """Rows with every kind of value, nulls, and times that nanoseconds do not hold."""
    far = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone.utc)
    made = [
        {
            "set_id": set_id,
            "checkpoint_id": set_id,
            "key_group": n % 3,
            "op": "delete" if n % 5 == 4 else "upsert",
            "a.b": f"key {n}",
            "n": n if n % 2 else None,
            "at": far if n % 3 else datetime(1, 1, 1, tzinfo=timezone.utc),
            "local": far.replace(tzinfo=None),
            "day": far.date(),
            "of": [("x", [1, None]), ("y", None)] if n % 2 else None,
            "_event_timers": [{"time": far, "name": ""}] if n % 3 else None,
        }
        for n in range(count)
    ]
    return pa.Table.from_pylist(made, COLUMNS)


def texts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each row as a text, whatever the order of its columns."""
    for batch in batches:
        found = [str(sorted(row.items())) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pydict({"row": found})


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> str:
    """Sets 1 and 2 by a worker's writer, and set -2 by Spark's."""
    path = str(tmp_path / "state")
    tables.create(spark, path, COLUMNS, ["set_id"])
    append_once(DriverRows(spark, rows_of(1, 10)), path, "a", 1, {})
    append_once(DriverRows(spark, rows_of(2, 7)), path, "a", 2, {})
    written = spark.createDataFrame(rows_of(-2, 9), from_arrow_schema(COLUMNS)).select(
        *(f"`{c}`" for c in COLUMNS.names)
    )
    append_once(written.repartition(3), path, "b", 1, {})
    return path


def seen(rows: SetRows, *, by_spark: bool) -> list[str]:
    found = map_in_arrow(rows.frame(), texts, MADE) if by_spark else rows.map(texts, MADE)
    return sorted(row[0] for row in found.collect())


def test_workers_read_what_spark_reads(spark: SparkSession, table: str) -> None:
    """Of each set, whoever wrote its files; a column that came later is null in older ones."""
    for sets, count in (([1], 10), ([2, -2], 16), ([1, 2, -2], 26), ([9], 0)):
        rows = SetRows(spark, Files(spark), table, sets)
        found = seen(rows, by_spark=False)
        assert found == seen(rows, by_spark=True)
        assert len(found) == count
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMN later string")
    rows = SetRows(spark, Files(spark), table, [1, -2])
    found = seen(rows, by_spark=False)
    assert found == seen(rows, by_spark=True)
    assert all("('later', None)" in row for row in found)


def test_times_of_spark_are_read_however_it_has_written_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """INT96 among them, in which nanoseconds would not reach the year 9999."""
    path = str(tmp_path / "state")
    tables.create(spark, path, COLUMNS, ["set_id"])
    for number, kind in enumerate(("INT96", "TIMESTAMP_MICROS"), 1):
        with spark_conf(spark, {"spark.sql.parquet.outputTimestampType": kind}):
            written = spark.createDataFrame(rows_of(number, 6), from_arrow_schema(COLUMNS))
            append_once(written.select(*(f"`{c}`" for c in COLUMNS.names)), path, "a", number, {})
        rows = SetRows(spark, Files(spark), path, [number])
        assert seen(rows, by_spark=False) == seen(rows, by_spark=True)


def test_a_file_that_cannot_be_read_is_named(spark: SparkSession, table: str) -> None:
    """Gone or damaged; with the sets that do not need it all is well."""
    (file,) = Path(table).glob("set_id=2/*.parquet")
    whole = file.read_bytes()
    rows = SetRows(spark, Files(spark), table, [1, 2])
    for data, what in ((None, "it is gone"), (whole[:-20], "its bytes are not what was written")):
        file.unlink() if data is None else file.write_bytes(data)
        with pytest.raises(Exception, match="data file '") as raised:
            rows.map(texts, MADE).collect()
        assert file_in(str(raised.value), table) == (f"set_id=2/{file.name}", what)
    assert len(seen(SetRows(spark, Files(spark), table, [1]), by_spark=False)) == 10


def test_files_are_dealt_to_tasks_by_their_sizes() -> None:
    """So that all cores have work, none much more than another, and no task gigabytes."""
    files = {f"f{n}": (1, size) for n, size in enumerate([50, 10, 10, 10, 10, 10])}
    parts = _parts(files, 2)
    assert [sum(files[path][1] for path, _ in part) for part in parts] == [50, 50]
    assert _parts({}, 4) == [[]]
    assert len(_parts({f"f{n}": (1, 100 << 20) for n in range(10)}, 2)) == 8
