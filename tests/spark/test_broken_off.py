"""What somebody began and was killed at: tables without a version, queries without offsets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from absflow.errors import StorageError
from absflow.spark.batch.query import forget_unbegun
from absflow.storage.delta import tables
from absflow.storage.delta.tables import COMMITTED_OFTEN
from absflow.storage.files import Files

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
ASIDE = ".00000000000000000000.json.6f.tmp"
BEGUN: dict[str, Callable[[Path], object]] = {
    "nothing": lambda log: None,
    "a version on its way": lambda log: (log / ASIDE).write_text("half of it"),
    "with its checksum": lambda log: [(log / n).write_text("") for n in (ASIDE, f".{ASIDE}.crc")],
    "directories": lambda log: [(log / n).mkdir() for n in ("_staged_commits", "_commits")],
}


@pytest.mark.parametrize("left", BEGUN.values(), ids=BEGUN)
def test_it_is_created_all_the_same(
    spark: SparkSession, tmp_path: Path, left: Callable[[Path], object]
) -> None:
    """By whoever comes next, with all that it is to have."""
    log = tmp_path / "table/_delta_log"
    log.mkdir(parents=True)
    left(log)
    for _ in range(2):
        tables.create(spark, str(tmp_path / "table"), SCHEMA, ["a"], COMMITTED_OFTEN)
    assert [path.name for path in log.glob("*.json")] == ["00000000000000000000.json"]
    assert tables.read(spark, str(tmp_path / "table")).columns == ["a", "b"]
    (found,) = spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path}/table`").collect()
    assert found["partitionColumns"] == ["a"]
    assert found["properties"] == COMMITTED_OFTEN


@pytest.mark.parametrize("mounted", [True, False])
def test_what_is_no_table_that_was_begun_stays(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounted: bool
) -> None:
    """Files of somebody, beside the log and in it, also where only Hadoop's client deletes."""
    if not mounted:
        monkeypatch.setattr(Files, "_at", lambda files, path: (files._hadoop, path))
    for name in ("beside/data", "within/_delta_log/data"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("of somebody")
        (tmp_path / name.split("/")[0] / "_delta_log").mkdir(exist_ok=True)
        with pytest.raises(StorageError, match="could not"):
            tables.create(spark, str(tmp_path / name.split("/")[0]), SCHEMA)
        assert (tmp_path / name).read_text() == "of somebody"


def test_another_driver_commits_meanwhile(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table is neither deleted nor made again."""
    path, log = str(tmp_path / "table"), tmp_path / "table/_delta_log"
    log.mkdir(parents=True)
    (log / ASIDE).write_text("half of it")
    real = Files.delete

    def delete(files: Files, name: str) -> None:
        (log / "00000000000000000000.json").write_text("{}")
        real(files, name)

    monkeypatch.setattr(Files, "delete", delete)
    tables.create(spark, path, SCHEMA)
    assert (log / "00000000000000000000.json").read_text() == "{}"


def run_query(spark: SparkSession, root: Path) -> None:
    """What is in ``root/a``, in one micro-batch."""
    stream = spark.readStream.schema("n long").json(str(root / "a"))
    query = (
        stream.writeStream.foreachBatch(lambda rows, _: None)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(root / "query"))
        .start()
    )
    query.awaitTermination()


def test_a_query_begins_behind_what_is_left_of_its_first_offsets(
    spark: SparkSession, tmp_path: Path
) -> None:
    """By itself Spark never would; what it has behind that is left alone."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/0.json").write_text('{"n": 1}')
    offsets = tmp_path / "query/offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.6f.tmp").write_text("")
    with pytest.raises(StreamingQueryException, match="should be empty on batch 0"):
        run_query(spark, tmp_path)
    forget_unbegun(Files(spark), f"{tmp_path}/query")
    run_query(spark, tmp_path)
    there = sorted(path.name for path in offsets.iterdir())
    assert "0" in there
    forget_unbegun(Files(spark), f"{tmp_path}/query")
    assert sorted(path.name for path in offsets.iterdir()) == there
