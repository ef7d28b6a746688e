"""The rows of a table are read commit by commit, also where a table was put back."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from evidence import commits, late_rows


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three commits of a row each, noted as sinks note them."""
    for number in range(3):
        note = {"userMetadata": json.dumps({"batch": number, "epoch": 1})}
        rows = pa.table({"id": [10 * number, 10 * number + 1]})
        properties = CommitProperties(custom_metadata=note)
        write_deltalake(tmp_path / "t", rows, mode="append", commit_properties=properties)
    return tmp_path / "t"


def ids(table: Path) -> dict[int, list[int]]:
    return {commit.version: commit.rows["id"].tolist() for commit in commits(table)}


def test_each_commit_has_its_rows_and_its_note(table: Path) -> None:
    """Version, rows in their order, and the note as it was given."""
    assert ids(table) == {0: [0, 1], 1: [10, 11], 2: [20, 21]}
    assert [commit.note for commit in commits(table)] == [
        {"batch": number, "epoch": 1} for number in range(3)
    ]
    assert all(commit.at_ms > 1_000_000_000_000 for commit in commits(table))


def test_rows_that_are_gone_do_not_count(table: Path) -> None:
    """A table put back to version 0 has its rows only."""
    DeltaTable(table).restore(0)
    assert ids(table) == {0: [0, 1]}


def test_rows_that_came_back_belong_to_the_commit_that_wrote_them(table: Path) -> None:
    """Gone by one restore and back by another, they are still those of their own commit."""
    DeltaTable(table).restore(0)
    DeltaTable(table).restore(2)
    assert ids(table) == {0: [0, 1], 1: [10, 11], 2: [20, 21]}


def test_late_rows_of_what_a_restore_left_behind_do_not_count(tmp_path: Path) -> None:
    """Attempt 3 goes back to checkpoint 8 of attempt 1, as attempt 2 had done before it."""
    epochs = {1: [8, 9], 2: [9], 3: [9, 12]}
    late = [(attempt, epoch) for attempt, each in epochs.items() for epoch in each]
    tables = {
        "late/a": {"_attempt": [a for a, _ in late], "_epoch": [e for _, e in late]},
        "attempts": {
            "attempt": [1, 2, 3, 3],
            "kind": ["STARTED"] * 3 + ["READY"],
            "restored_from": [None, "root#8", "root#8", None],
        },
        "checkpoints": {
            "checkpoint_id": [8, 9],
            "attempt": [1, 1],
            "kind": ["COMPLETED", "ABORTED"],
        },
    }
    for name, columns in tables.items():
        write_deltalake(tmp_path / name, pa.table(columns))
    found = late_rows(tmp_path, "a")
    assert sorted(zip(found["_attempt"], found["_epoch"], strict=True)) == [(1, 8), (3, 9), (3, 12)]
