"""The files of a table, by its log alone."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from absflow.storage.delta.live_files import LiveFiles
from absflow.storage.delta.log import checkpoint_file, log_file

SEEDS = range(12)
SET = "set_id"


def read(path: str) -> bytes | None:
    place = Path(path)
    return place.read_bytes() if place.exists() else None


def rows_of(set_id: int, count: int) -> pa.Table:
    return pa.table({SET: pa.array([set_id] * count, pa.int64()), "n": range(count)})


def add(path: str, set_id: int, count: int = 2) -> None:
    write_deltalake(path, rows_of(set_id, count), mode="append", partition_by=[SET])


def by_deltalake(path: str) -> dict[int, int]:
    found: dict[int, int] = {}
    actions = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    for value, count in zip(
        actions[f"partition.{SET}"].to_pylist(), actions["num_records"].to_pylist(), strict=True
    ):
        found[value] = found.get(value, 0) + count
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_follows_a_log_knows_what_who_reads_it_anew_does(tmp_path: Path, seed: int) -> None:
    """Whatever is done to the table, however many commits lie between two looks."""
    chance, path = random.Random(seed), str(tmp_path / "table")
    add(path, 0)
    following = LiveFiles(read, path, 100)
    for step in range(1, 30):
        match chance.choice(["add", "add", "add", "delete", "merge", "checkpoint", "trim"]):
            case "add":
                add(path, chance.randrange(6), chance.randrange(1, 4))
            case "delete":
                DeltaTable(path).delete(f"{SET} = {chance.randrange(6)}")
            case "merge":
                DeltaTable(path).optimize.compact()
            case "checkpoint":
                DeltaTable(path).create_checkpoint()
            case "trim":  # as retention does, up to the last checkpoint
                for version in range(DeltaTable(path).version()):
                    if read(checkpoint_file(path, version)) is not None:
                        for older in range(version):
                            Path(log_file(path, older)).unlink(missing_ok=True)
        if step == 1 or chance.random() < 0.4:
            assert following.advance()
            anew = LiveFiles(read, path, 100)
            assert anew.advance()
            assert following.files == anew.files
            assert following.rows_by_partition(SET) == by_deltalake(path)


def test_a_log_that_is_not_all_there_says_so(tmp_path: Path) -> None:
    """No table, too many commits for one look, a checkpoint in no file; the next look goes on."""
    path = str(tmp_path / "table")
    assert not LiveFiles(read, path, 3).advance()
    for number in range(5):
        add(path, number)
    following = LiveFiles(read, path, 3)
    assert not following.advance()
    assert following.advance()
    assert following.rows_by_partition(SET) == dict.fromkeys(range(5), 2)
    DeltaTable(path).create_checkpoint()
    Path(checkpoint_file(path, 4)).rename(f"{path}/_delta_log/aside")
    assert not LiveFiles(read, path, 3).advance()
    assert following.advance()
