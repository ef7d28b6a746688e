"""What a Delta table must still hold for a source to go on at a position in it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from absflow.spark.sources.delta import cleaned_up
from absflow.spark.sources.positions import unreadable
from absflow.storage.delta.log import DeltaPosition
from absflow.storage.files import Files

pytestmark = pytest.mark.spark

VERSIONS = 5


def write(path: Path) -> str:
    """A table of a row in each of its versions, and a file for each row; its id."""
    for number in range(VERSIONS):
        write_deltalake(path, pa.table({"id": [number]}), mode="append")
    return str(DeltaTable(path).metadata().id)


def vacuum(path: Path) -> None:
    """Delete the files that the newest version does not need."""
    DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def gone(spark: SparkSession, path: Path, position: DeltaPosition, **options: str) -> list[str]:
    return cleaned_up(spark, Files(spark), {"path": str(path), **options}, position)


def test_a_position_is_read_as_delta_writes_it() -> None:
    """In its snapshot, by the name that it has there for historical reasons."""
    text = (
        '{"sourceVersion":1,"reservoirId":"a-b","reservoirVersion":7,"index":3,'
        '"isStartingVersion":true}'
    )
    assert DeltaPosition.parse(text) == DeltaPosition("a-b", 7, 3, snapshot=True)


def test_only_files_that_are_yet_to_be_read_must_be_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Compacted and vacuumed: what was read before may be gone, in a snapshot and in commits."""
    table = tmp_path / "t"
    of = write(table)
    newest = VERSIONS - 1
    DeltaTable(table).optimize.compact()
    within = DeltaPosition(of, newest, newest - 1, snapshot=True)  # one row is left
    assert gone(spark, table, within) == []
    vacuum(table)
    (reason,) = gone(spark, table, within)
    assert "yet to be read, are gone (VACUUM)" in reason
    assert gone(spark, table, DeltaPosition(of, newest, newest, snapshot=True)) == []
    assert gone(spark, table, DeltaPosition(of, VERSIONS, -1, snapshot=False)) == []
    for index, problems in ((-1, 1), (0, 0)):
        position = DeltaPosition(of, newest, index, snapshot=False)
        assert len(gone(spark, table, position)) == problems


def test_commits_that_are_skipped_need_no_files(spark: SparkSession, tmp_path: Path) -> None:
    """A commit that removes rows, of a source that skips such, may have lost what it added."""
    table = tmp_path / "t"
    of = write(table)
    write_deltalake(table, pa.table({"id": [7]}), mode="overwrite")
    write_deltalake(table, pa.table({"id": [8]}), mode="overwrite")
    vacuum(table)
    behind = DeltaPosition(of, VERSIONS, -1, snapshot=False)
    assert len(gone(spark, table, behind)) == 1
    assert gone(spark, table, behind, skipchangecommits="true") == []


def test_a_snapshot_needs_its_log(spark: SparkSession, tmp_path: Path) -> None:
    """The commits behind it are not enough."""
    table = tmp_path / "t"
    of = write(table)
    DeltaTable(table).create_checkpoint()
    for version in range(3):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    assert gone(spark, table, DeltaPosition(of, 3, -1, snapshot=False)) == []
    (reason,) = gone(spark, table, DeltaPosition(of, 3, 0, snapshot=True))
    assert reason.startswith(f"version 3 of table '{table}' cannot be made any more: ")
    (reason,) = gone(spark, table, DeltaPosition(of, 2, -1, snapshot=False))
    assert reason == f"table '{table}' has versions 3 to 4, wanted 2"
    (reason,) = gone(spark, table, DeltaPosition(of, 6, -1, snapshot=False))
    assert reason == f"table '{table}' has versions 3 to 4, wanted 6"


def test_another_table_in_its_place_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """By its id, for its versions have the same numbers."""
    write(tmp_path / "t")
    (reason,) = gone(spark, tmp_path / "t", DeltaPosition("a-b", 2, -1, snapshot=False))
    assert "is another one now: its id is" in reason
    (reason,) = gone(spark, tmp_path / "none", DeltaPosition("a-b", 2, -1, snapshot=False))
    assert reason == f"there is no Delta table at '{tmp_path / 'none'}' any more"


def test_latest_is_no_position(spark: SparkSession, tmp_path: Path) -> None:
    """A source that had read nothing would begin behind what has come since."""
    write(tmp_path / "t")
    reader = spark.readStream.format("delta")
    latest = reader.option("startingVersion", "latest").load(str(tmp_path / "t"))
    (reason,) = unreadable(spark, Files(spark), latest, "-", "", [])
    assert "set startingVersion to the first version that it is to read" in reason
    first = reader.option("startingVersion", "0").load(str(tmp_path / "t"))
    assert unreadable(spark, Files(spark), first, "-", "", []) == []
