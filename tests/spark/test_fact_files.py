"""Files of a table of facts: old ones are left alone, and not opened if nobody asks for them."""

from __future__ import annotations

import json
import random
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from absflow.cli.storage import FileReader
from absflow.errors import StorageError
from absflow.facts.columns import CHECKPOINTS
from absflow.facts.lock import RootLock
from absflow.facts.matching import Match
from absflow.facts.spark_reader import SparkStorageReader
from absflow.settings.reading import Settings
from absflow.spark.control import retention, tidying
from absflow.storage.delta import removal, short, tables, transactions
from absflow.storage.delta.live_files import LiveFile, LiveFiles
from absflow.storage.delta.log import actions_of, log_file
from absflow.storage.delta.removal import remove_files
from absflow.storage.delta.short import ShortTable, short_table
from absflow.storage.files import Files
from absflow.storage.layout import Layout
from absflow.storage.root import StorageRoot

pytestmark = pytest.mark.spark

WHOLE = 40_000
ODD = pa.schema(
    [
        ("n", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("names", pa.map_(pa.string(), pa.string())),
        ("parts", pa.list_(pa.struct([("stage", pa.string()), ("ids", pa.list_(pa.int64()))]))),
    ]
)


def commit(spark: SparkSession, path: str, ids: range, cause: str = "") -> None:
    """Facts as a driver commits them, in one file."""
    rows = [{"checkpoint_id": n, "kind": "ABORTED", "attempt": 1, "cause": cause} for n in ids]
    facts = transactions.DriverRows(spark, pa.Table.from_pylist(rows, schema=CHECKPOINTS))
    transactions.append_once(facts, path, "facts", ids[-1], {})


def tidy(spark: SparkSession, root: Path, path: str) -> None:
    """What retention does with a table of facts that has many files."""
    settings = Settings.from_conf({"spark.absflow.storage.path": str(root)})
    job = SimpleNamespace(
        settings=settings, graph=SimpleNamespace(published={}, stages={}, chains=())
    )
    claim = SimpleNamespace(lock=RootLock("", None), fence=None)
    opened = StorageRoot.open(spark, str(root))
    cleaner = retention.Retention(opened, job, claim, lambda wanted: None)
    cleaner._tidying._tidy(path, lambda: None, merge=True)


def test_old_facts_are_neither_written_again_nor_opened(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small files become one, the file that is large enough stays; each is found by its ids."""
    monkeypatch.setattr(retention, "WHOLE_BYTES", WHOLE)
    monkeypatch.setattr(tidying, "MANY_FILES", 2)
    path = f"file:{tmp_path}/checkpoints"
    tables.create(spark, path, CHECKPOINTS, properties=tables.JOB_PROPERTIES)
    commit(spark, path, range(1, 4), random.Random(1).randbytes(WHOLE).hex())
    for first in (4, 6, 8):
        commit(spark, path, range(first, first + 2))
    tidy(spark, tmp_path, path)
    log = sorted((tmp_path / "checkpoints" / "_delta_log").glob("*.json"))
    changes = [actions_of(file.read_text()) for file in log]
    (merged,) = [c for c in changes if c[0]["commitInfo"]["operation"] == "OPTIMIZE"]
    (large,) = [a["add"]["path"] for a in changes[1] if "add" in a]
    removed = [action["remove"]["path"] for action in merged if "remove" in action]
    (add,) = [action["add"] for action in merged if "add" in action]
    assert large not in removed
    assert len(removed) == 3
    stats = json.loads(add["stats"])
    assert (stats["minValues"]["checkpoint_id"], stats["maxValues"]["checkpoint_id"]) == (4, 9)
    (tmp_path / "checkpoints" / large).unlink()
    for reader in (SparkStorageReader(spark), FileReader(str(tmp_path), Layout(str(tmp_path)))):
        where = path if isinstance(reader, SparkStorageReader) else f"{tmp_path}/checkpoints"
        wanted = [Match(5, 6, ("ABORTED",)), Match(9)]
        found = reader.table(where, ["checkpoint_id"], wanted)["checkpoint_id"].to_pylist()
        assert sorted(found) == [5, 6, 9]
        with pytest.raises(StorageError, match=r"could not read table|is damaged: it is gone"):
            reader.table(where, ["checkpoint_id"], [Match(3, 4)])


def test_a_short_table_is_read_as_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    """Rows and types, behind a deletion and a new column; what is more than rows is left to it."""
    path, files = f"file:{tmp_path}/short", Files(spark)
    tables.create(spark, path, ODD)
    assert short_table(files, path).num_rows == 0
    at = datetime(2026, 1, 1, 12, 0, 0, 5, timezone.utc)
    parts = [{"stage": "s", "ids": [1, None]}]
    full = {"n": 1, "at": at, "names": [("a", None), ("b", "c")], "parts": parts}
    for number, row in enumerate((full, {"n": 2}, {"n": 3})):
        rows = transactions.DriverRows(spark, pa.Table.from_pylist([row], ODD))
        transactions.append_once(rows, path, "facts", number, {})
    DeltaTable.forPath(spark, path).delete("n = 2")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (more string)")

    def by_spark() -> pa.Table:
        return spark.read.format("delta").load(path).orderBy("n").toArrow()

    found = short_table(files, path)
    assert found.num_rows == 2
    assert found.schema.types == by_spark().schema.types
    assert found.sort_by("n").to_pylist() == by_spark().to_pylist()
    few = short_table(files, path, {"parts", "n", "none"}, patient=True)
    assert few.sort_by("n").equals(found.select(["n", "parts"]).sort_by("n"))

    for file in (tmp_path / "short").glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:-1])
    assert short_table(files, path) is None
    parted = f"file:{tmp_path}/parted"
    tables.create(spark, parted, ODD, ["n"])
    assert short_table(files, parted) is None
    assert short_table(files, f"file:{tmp_path}/nowhere") is None


def test_a_patient_reader_reads_a_log_from_its_checkpoint_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    """And the commits behind it; a table that is too long is left to Spark."""
    path, files = f"file:{tmp_path}/long", Files(spark)
    tables.create(spark, path, CHECKPOINTS, properties={"delta.checkpointInterval": "5"})
    for n in range(1, 5):
        commit(spark, path, range(n, n + 1))
    DeltaTable.forPath(spark, path).delete("checkpoint_id = 2")
    for version in range(5):  # as the driver does, once there is the checkpoint
        Path(log_file(path.removeprefix("file:"), version)).unlink()
    commit(spark, path, range(5, 6))
    assert short_table(files, path) is None
    found = short_table(files, path, patient=True)
    assert found.sort_by("checkpoint_id")["checkpoint_id"].to_pylist() == [1, 3, 4, 5]
    by_spark = spark.read.format("delta").load(path).orderBy("checkpoint_id").toArrow()
    assert found.sort_by("checkpoint_id").to_pylist() == by_spark.to_pylist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(short, "PATIENT_FEW", 3)
        assert short_table(files, path, patient=True) is None
        patch.setattr(short, "PATIENT_FEW", 4)
        assert short_table(files, path, patient=True) is not None


def test_a_table_that_is_read_again_is_read_where_it_is_new(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says is what Spark says, behind all that absflow does to such a table."""
    path, files = f"file:{tmp_path}/facts", Files(spark)
    tables.create(spark, path, CHECKPOINTS, properties={"delta.checkpointInterval": "4"})
    opened: list[str] = []

    def read(name: str) -> bytes | None:
        opened.append(name)
        return Files(spark).read_bytes(name)

    monkeypatch.setattr(files, "read_bytes", read)
    table = ShortTable(files, path)

    def seen() -> int:
        """Compare it with Spark; how many data files were opened for that."""
        opened.clear()
        found = table.rows(lambda file: True)
        by_spark = spark.read.format("delta").load(path).toArrow()
        assert found.schema.names == by_spark.schema.names
        key = [("checkpoint_id", "ascending")]
        assert found.sort_by(key).to_pylist() == by_spark.sort_by(key).to_pylist()
        return sum(name.endswith(".parquet") and "_delta_log" not in name for name in opened)

    for n in range(1, 4):
        commit(spark, path, range(n, n + 1))
    assert seen() == 3
    assert seen() == 0
    for n in range(4, 8):  # over a checkpoint of the log
        commit(spark, path, range(n, n + 1))
    assert seen() == 4
    DeltaTable.forPath(spark, path).delete("checkpoint_id = 2")
    assert seen() == 0
    spark.sql(f"OPTIMIZE delta.`{path}`")
    assert seen() == 1
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (more string)")
    assert seen() == 1
    assert table.rows(lambda file: file.statistics["maxValues"]["checkpoint_id"] > 7).num_rows == 0
    monkeypatch.setattr(short, "PATIENT_BYTES", 10)
    assert table.rows(lambda file: True) is None


def test_sets_and_epochs_are_known_by_the_log(spark: SparkSession, tmp_path: Path) -> None:
    """As Spark finds them, which is asked where the log has more than files."""
    path, columns = f"file:{tmp_path}/history", pa.schema([("set_id", "int64"), ("n", "int64")])
    tables.create(spark, path, columns, ["set_id"], {"delta.checkpointInterval": "4"})
    following, anew = SparkStorageReader(spark, follows=True), SparkStorageReader(spark)

    def sets() -> dict[int, int]:
        found = following.sets(path)
        assert found == anew.sets(path) == tables.rows_by_partition(spark, path, "set_id")
        assert following.values(path, "set_id") == found.keys()
        return found

    assert sets() == {}
    for set_id in range(-3, 7):
        rows = pa.table({"set_id": [set_id] * 3, "n": [1, 2, 3]}, schema=columns)
        transactions.append_once(transactions.DriverRows(spark, rows), path, "x", set_id + 4, {})
        sets()
    spark.sql(f"DELETE FROM delta.`{path}` WHERE set_id < 0")
    assert sets() == dict.fromkeys(range(7), 3)
    tables.restore(spark, path, 2, {})
    assert sets() == {-3: 3, -2: 3}
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE n = 1")
    assert following.values(path, "set_id") == {-3, -2}


def test_files_go_without_a_job_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """As by DELETE, beside an append; not two times, and not where the log has more than files."""
    path, columns = f"file:{tmp_path}/channel", pa.schema([("_epoch", "int64"), ("n", "int64")])
    tables.create(spark, path, columns, ["_epoch"])
    reader = SparkStorageReader(spark)

    def append(epoch: int) -> None:
        rows = pa.table({"_epoch": [epoch] * 2, "n": [1, 2]}, schema=columns)
        transactions.append_once(transactions.DriverRows(spark, rows), path, "x", epoch, {})

    def old(file: LiveFile) -> bool:
        return file.value("_epoch") <= 2

    def files() -> LiveFiles:
        return reader.files(path)

    def beside_an_append() -> LiveFiles:
        found = files()
        append(5)
        return found

    def beside_another() -> LiveFiles:
        found = files()
        assert remove_files(spark, path, lambda file: file.value("_epoch") == 3, files)
        return found

    for epoch in range(1, 5):
        append(epoch)
    assert remove_files(spark, path, old, beside_an_append)
    assert reader.values(path, "_epoch") == {3, 4, 5}
    assert spark.read.format("delta").load(path).count() == 6
    newest = DeltaTable.forPath(spark, path).history(1).collect()[0]
    assert (newest["operation"], newest["version"]) == ("DELETE", 6)
    commit_ = actions_of(Path(log_file(path.removeprefix("file:"), 6)).read_text())
    assert sum("remove" in action for action in commit_) == 2
    assert remove_files(spark, path, old, files)
    assert tables.newest_version(Files(spark), path) == 6
    with pytest.raises((PySparkException, Py4JError), match=r"(?i)concurrent"):
        remove_files(spark, path, lambda file: True, beside_another)
    assert reader.values(path, "_epoch") == {4, 5}
    assert not remove_files(spark, path, lambda file: True, lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(removal, "_MOST", 1)
        assert not remove_files(spark, path, lambda file: True, files)
