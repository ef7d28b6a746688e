"""An append is made once, whoever makes it and whoever was killed."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from appends import commits, create, driver_rows, rows
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F

from absflow.errors import StorageError
from absflow.storage.delta import transactions
from absflow.storage.delta.log import log_file
from absflow.storage.delta.transactions import DriverRows, append_once
from absflow.storage.files import Files

pytestmark = pytest.mark.spark


def forget() -> None:
    """As a driver that has just started."""
    transactions._known.clear()


@pytest.mark.parametrize("writes", [1, 2, 3, 4, 7])
def test_a_new_driver_knows_what_was_written(spark: SparkSession, table: str, writes: int) -> None:
    """Also behind a checkpoint of the log, where its older commits may be gone."""
    for number in range(writes):
        append_once(rows(spark), table, "job/a", number, {})
        append_once(rows(spark), table, f"job/{number}", 0, {})
    there = commits(table)
    for version in range(there - there % 3):
        Path(log_file(table, version)).unlink()
    forget()
    for number in range(writes):
        append_once(rows(spark), table, "job/a", number, {})
        append_once(rows(spark), table, f"job/{number}", 0, {})
    assert commits(table) == there
    append_once(rows(spark), table, "job/a", writes, {})
    assert commits(table) == there + 1


def test_a_kill_may_have_left_an_empty_hint(spark: SparkSession, table: str) -> None:
    """Delta writes over ``_last_checkpoint``; it goes by the log then, and so do we."""
    for number in range(4):
        append_once(rows(spark), table, "job/a", number, {})
    hint = Path(table, "_delta_log", "_last_checkpoint")
    assert hint.read_text()
    hint.write_text("")
    Path(table, "_delta_log", "._last_checkpoint.crc").unlink()
    for version in range(3):
        Path(log_file(table, version)).unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    forget()
    append_once(rows(spark), table, "job/a", 3, {})
    assert commits(table) == 4
    append_once(rows(spark), table, "job/a", 4, {})
    assert commits(table) == 5


def test_a_table_that_is_made_anew_has_nothing(spark: SparkSession, table: str) -> None:
    """At the same path: what the old one had is forgotten."""
    append_once(rows(spark), table, "job/a", 5, {})
    shutil.rmtree(table)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    create(spark, table)
    append_once(rows(spark), table, "job/a", 5, {})
    assert spark.read.format("delta").load(table).count() == 10


@pytest.mark.parametrize("gone", [False, True])
def test_what_another_driver_writes_is_seen(spark: SparkSession, table: str, gone: bool) -> None:
    """By Delta's own writer, between two appends of this one; also if the log begins behind it."""
    append_once(rows(spark), table, "job/a", 1, {})
    write = rows(spark).write.format("delta").mode("append")
    write.option("txnAppId", "job/a").option("txnVersion", "2").save(table)
    rows(spark).write.format("delta").mode("append").save(table)
    for version in range(3) if gone else ():
        Path(log_file(table, version)).unlink()
    append_once(rows(spark), table, "job/a", 2, {})
    assert commits(table) == 3
    append_once(rows(spark), table, "job/a", 3, {})
    assert commits(table) == 4


def test_a_thread_that_knows_no_session_may_append(spark: SparkSession, table: str) -> None:
    """As a publisher's: Delta looks for one where it reads a checkpoint of its log anew."""
    append_once(rows(spark), table, "job/a", 0, {})
    errors: list[Exception] = []

    def write() -> None:
        for number in range(1, 9):
            spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
            for checksum in Path(table, "_delta_log").glob("*.crc"):
                checksum.unlink()
            try:
                append_once(rows(spark), table, "job/a", number, {})
            except (PySparkException, Py4JError) as error:
                errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert errors == []
    assert commits(table) == 9


def test_of_two_writers_at_once_one_commits(spark: SparkSession, table: str) -> None:
    """Each has begun before the other commits: the later one fails, and nothing is there twice."""
    begun = threading.Barrier(2)
    errors: list[Exception] = []

    slowly = F.udf(lambda n: time.sleep(0.2) or n, "long")

    def write() -> None:
        frame = rows(spark).withColumn("n", slowly("n"))
        begun.wait()
        try:
            append_once(frame, table, "job/a", 1, {})
        except (PySparkException, Py4JError) as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert commits(table) == 1
    assert spark.read.format("delta").load(table).count() == 10
    assert ["ConcurrentTransaction" in str(error) for error in errors] == [True]


def test_rows_of_the_driver_conflict_as_well(
    spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer commits the same transaction while their file is written."""
    write = Files.add

    def late(files: Files, path: str, data: bytes) -> None:
        write(files, path, data)
        append_once(rows(spark), table, "job/a", 1, {})

    monkeypatch.setattr(Files, "add", late)
    with pytest.raises((PySparkException, Py4JError), match="ConcurrentTransaction"):
        append_once(driver_rows(spark), table, "job/a", 1, {})
    assert commits(table) == 1
    assert spark.read.format("delta").load(table).count() == 10


def test_an_observation_sees_the_rows(spark: SparkSession, table: str) -> None:
    """The one action of an append brings what was observed with it."""
    seen = Observation()
    append_once(rows(spark).observe(seen, F.count("*").alias("rows")), table, "job/a", 1, {})
    assert seen.get == {"rows": 10}


def test_other_columns_are_refused(spark: SparkSession, table: str) -> None:
    """As by Delta's own writer."""
    with pytest.raises((PySparkException, Py4JError), match="schema"):
        append_once(rows(spark).withColumn("more", F.lit(1)), table, "job/a", 1, {})
    with pytest.raises(StorageError, match="have the columns struct<n:bigint>, but the table has"):
        few = DriverRows(spark, pa.table({"n": [1]}))
        append_once(few, table, "job/a", 1, {})
    assert commits(table) == 0
