"""The rows of a table are read commit by commit, also where a table was put back."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from evidence import commits


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
