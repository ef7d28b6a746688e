"""Sets become one by the workers as they do by Spark, in however many shares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from absflow.columnar.digest import set_digests
from absflow.columnar.expiry import TOUCHED
from absflow.columnar.keys import key_groups
from absflow.errors import DamagedError, StorageError
from absflow.protocol.checkpoints import SetDigest
from absflow.protocol.lineage import Compacted, compacted_id
from absflow.spark.control import compaction
from absflow.spark.control.compaction import write_compacted_set
from absflow.spark.worker import merged_sets
from absflow.spark.worker.set_rows import set_files
from absflow.storage.delta import transactions
from absflow.storage.state_history import history_columns

pytestmark = pytest.mark.spark

KEYS = pa.schema([("k.1", pa.string()), ("n", pa.int32())])
STATE = pa.schema([("total", pa.float64()), ("tags", pa.list_(pa.string())), TOUCHED])
SCHEMA = history_columns(KEYS, STATE)
REPLACES = (4, 7, 9)
UPTO = 500
GROUPS = 16
# Bytes of a share, shares at most, and how many key groups are known of.
WAYS = {
    "one share": (32 << 20, 16, 0),
    "many shares": (400, 1_000, 0),
    "a share for each key group": (2_000, 0, GROUPS),
    "shares of some key groups": (6_000, 0, GROUPS),
    "Spark": (1, 0, GROUPS),
}


def rows_of(set_id: int) -> pa.Table:
    """A few hundred changes; some keys are null, some deleted, some touched long ago."""
    chance = np.random.default_rng(set_id)
    places = chance.choice(400, 150, replace=False)
    keys = [None if place % 40 == 0 else f"key {place % 40}" for place in places]
    numbers = pa.array([None if place < 10 else place // 40 for place in places], pa.int32())
    rows = pa.table(
        {
            "set_id": pa.array([set_id] * 150, pa.int64()),
            "checkpoint_id": pa.array([set_id] * 150, pa.int64()),
            "key_group": key_groups([pa.array(keys, pa.string()), numbers], GROUPS),
            "op": ["delete" if chance.random() < 0.2 else "upsert" for _ in places],
            "k.1": keys,
            "n": numbers,
            "total": chance.random(150),
            "tags": [["a"] * int(place % 3) for place in places],
            TOUCHED.name: pa.array(chance.integers(0, 1_000, 150)).cast(TOUCHED.type),
        },
        schema=SCHEMA,
    )
    return rows.sort_by("key_group")  # as workers write it


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A state history with three sets to be merged, and one that is none of them."""
    place = tmp_path / "history"
    for set_id in (2, *REPLACES):
        rows = rows_of(set_id)
        for part in (rows.slice(0, 70), rows.slice(70)):
            write_deltalake(place, part, mode="append", partition_by=["set_id"])
    return str(place)


DUE = [digest for set_id in REPLACES for digest in set_digests(rows_of(set_id))]


def merged(path: str, set_id: int) -> list[dict[str, Any]]:
    found = DeltaTable(path).to_pyarrow_dataset().to_table().to_pylist()
    return sorted((row for row in found if row["set_id"] == set_id), key=str)


@pytest.mark.parametrize("begin", [0, 2])
@pytest.mark.parametrize("upto", [None, UPTO])
def test_all_ways_make_the_same_set(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch, begin: int, upto: int | None
) -> None:
    """Of each key the newest; a deletion only if older sets lie below; nothing that expired."""
    fact = Compacted(9, "x", compacted_id(begin, 9), REPLACES)
    made = {}
    for way, (size, most, groups) in WAYS.items():
        for module, name in (
            (merged_sets, "SHARE_BYTES"),
            (merged_sets, "TASK_BYTES"),
            (compaction, "TASK_BYTES"),
        ):
            monkeypatch.setattr(module, name, size)
        monkeypatch.setattr(compaction, "_MOST_SHARES", most)
        read: dict[int, SetDigest] = {}
        digest = write_compacted_set(
            spark, path, KEYS.names, fact, [2, *REPLACES], upto, groups, read.update
        )
        assert [read[set_id] for set_id in REPLACES] == DUE
        (written,) = set_digests(
            DeltaTable(path).to_pyarrow_table(filters=[("set_id", "=", fact.set_id)])
        )
        assert digest == written
        made[way] = merged(path, fact.set_id)
        spark.sql(f"DELETE FROM delta.`{path}` WHERE set_id = {fact.set_id}")
    assert all(rows == made["Spark"] for rows in made.values())
    newest: dict[Any, dict[str, Any]] = {}
    for set_id in REPLACES:
        for row in rows_of(set_id).to_pylist():
            newest[row["k.1"], row["n"]] = row
    due = [
        (row["k.1"], row["n"], row["op"])
        for row in newest.values()
        if (begin or row["op"] == "upsert")
        and (upto is None or row[TOUCHED.name].microsecond > upto)
    ]
    found = [(row["k.1"], row["n"], row["op"]) for row in made["one share"]]
    assert sorted(found, key=str) == sorted(due, key=str)
    assert {row["checkpoint_id"] for row in made["one share"]} == {9}


def test_the_log_says_which_key_groups_a_file_has(spark: SparkSession, path: str) -> None:
    """Of those that absflow writes as well; so a share reads a part of them."""
    fact = Compacted(9, "x", compacted_id(0, 9), REPLACES)
    write_compacted_set(spark, path, KEYS.names, fact, REPLACES, None, GROUPS)
    found = set_files(spark, path, [2, *REPLACES, fact.set_id])
    assert found is not None
    assert found.groups.keys() == found.sizes.keys()
    for file, bounds in found.groups.items():
        rows = pq.read_table(Path(path, file))["key_group"].to_pylist()
        assert bounds == (min(rows), max(rows))


def test_rows_of_another_number_of_key_groups_are_refused(spark: SparkSession, path: str) -> None:
    """Some of a key would be in one share, and some in another."""
    fact = Compacted(9, "x", compacted_id(0, 9), REPLACES)
    with pytest.raises(Exception, match=r"is in key group .*, but its key is in .* of 8"):
        write_compacted_set(spark, path, KEYS.names, fact, REPLACES, None, 8)
    assert merged(path, fact.set_id) == []


def test_of_sets_that_are_not_what_was_written_no_file_is_left(
    spark: SparkSession, path: str
) -> None:
    """That is known when the files are written; nobody would look for them while the job runs."""

    def refuse(_: Mapping[int, SetDigest]) -> None:
        raise DamagedError("other values")

    fact = Compacted(9, "x", compacted_id(0, 9), REPLACES)
    before, version = {*Path(path).rglob("*.parquet")}, DeltaTable(path).version()
    with pytest.raises(DamagedError, match="other values"):
        write_compacted_set(spark, path, KEYS.names, fact, REPLACES, check=refuse)
    assert {*Path(path).rglob("*.parquet")} == before
    assert DeltaTable(path).version() == version


def test_a_set_that_is_there_is_not_written_again(spark: SparkSession, path: str) -> None:
    """A driver was killed before it had noted that it was."""
    fact = Compacted(9, "x", compacted_id(0, 9), REPLACES)
    write_compacted_set(spark, path, KEYS.names, fact, REPLACES)
    before, version = merged(path, fact.set_id), DeltaTable(path).version()
    write_compacted_set(spark, path, KEYS.names, fact, REPLACES)
    assert merged(path, fact.set_id) == before
    assert DeltaTable(path).version() == version


def test_of_two_drivers_at_once_one_writes(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other finds that somebody has compacted since it has looked, and says so."""
    fact = Compacted(9, "x", compacted_id(0, 9), REPLACES)
    look = transactions.newest_of

    def then_the_other(*given: Any) -> int:
        number = look(*given)
        monkeypatch.setattr(transactions, "newest_of", look)
        write_compacted_set(spark, path, KEYS.names, fact, REPLACES)
        return number

    monkeypatch.setattr(transactions, "newest_of", then_the_other)
    with pytest.raises(StorageError, match="another driver has compacted there"):
        write_compacted_set(spark, path, KEYS.names, fact, REPLACES)
    keys = [(row["k.1"], row["n"]) for row in merged(path, fact.set_id)]
    assert len(keys) == len({*keys})
