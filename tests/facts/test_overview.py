"""All checkpoints as a table for people; the SELECTs that make the same are in tests/spark."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest

# The storage roots are those that the command line is tested with.
sys.path.append(str(Path(__file__).parents[1] / "cli"))

from shared_roots import CHECKPOINT_HISTORY, aircraft
from storage_roots import Checkpoint, complete, end_driver, restore, retire, write_root

from absflow.cli.reader import Reader
from absflow.cli.storage import FileReader
from absflow.facts import reading
from absflow.facts.overview import checkpoint_rows, stage_rows
from absflow.facts.reading import FactReader
from absflow.protocol.known import Known
from absflow.protocol.recovery.branch import Branch
from absflow.storage.layout import Layout


def facts_of(root):
    layout = Layout(str(root.path))
    return FactReader(FileReader(str(root.path), layout), layout)


@pytest.fixture
def root(tmp_path):
    """A job that went back to 4 behind 9, and took a savepoint."""
    root = write_root(tmp_path / "job", [aircraft()], CHECKPOINT_HISTORY)
    restore(root, 2, 4)
    complete(root, 10, attempt=2, type="SAVEPOINT")
    retire(root, 3)
    return root


def test_the_rows_say_what_the_command_line_does(root):
    """Of every checkpoint, whatever has become of it."""
    branch = Branch(((2, None), (1, 4)))
    for lost in (False, True):
        if lost:
            end_driver(root, 3)
        rows = checkpoint_rows(*facts_of(root).whole(), branch, lost=lost).to_pylist()
        assert [
            (r["checkpoint_id"], r["type"], r["status"], r["abandoned"], r["reason"], r["attempt"])
            for r in rows
        ] == [
            (r.checkpoint_id, r.kind.value, r.status.value, r.abandoned, r.reason, r.attempt)
            for r in Reader(str(root.path)).history().shown
        ]
    by_id = {row["checkpoint_id"]: row for row in rows}
    assert by_id[3]["stages"] is None
    assert by_id[9]["sentence"] == "the driver ended while it was pending"


def test_stages_are_those_of_the_checkpoints_that_are_there(root):
    """By checkpoint, whatever order the facts came in."""
    rows = stage_rows(facts_of(root).whole()[1]).to_pylist()
    assert [row["checkpoint_id"] for row in rows] == [1, 4, 5, 6, 8, 10]
    assert {row["stage"] for row in rows} == {"aircraft"}
    assert [row["snapshot_id"] for row in rows] == [1, 4, 5, 6, 8, 8]


def test_what_a_later_attempt_takes_is_on_the_branch(root):
    """The branch is that of the moment when the history was made."""
    rows = checkpoint_rows(*facts_of(root).whole(), Branch(((1, None),)), lost=False)
    assert not any(rows["abandoned"].to_pylist())
    rows = checkpoint_rows(*facts_of(root).whole(), Branch(()), lost=False)
    assert not any(rows["abandoned"].to_pylist())


def test_nothing_yet(tmp_path):
    """A job that has just started has tables without rows."""
    root = write_root(tmp_path / "job", [aircraft()], [])
    found = facts_of(root).whole()
    rows = checkpoint_rows(*found, Branch(((1, None),)), lost=False)
    assert (rows.num_rows, stage_rows(found[1]).num_rows) == (0, 0)
    assert rows.schema.field("stages").type == found[1].schema.field("stages").type


def test_columns_that_came_later_are_null(root):
    """A table that an earlier version has begun lacks them."""
    barriers, facts = facts_of(root).whole()
    facts = facts.drop_columns(["type", "derived_from", "versions"])
    stages = facts.schema.field("stages").type.value_type
    fewer = pa.list_(pa.struct([f for f in stages if f.name != "late_rows"]))
    facts = facts.set_column(
        facts.column_names.index("stages"),
        "stages",
        pa.array([_without_late_rows(each) for each in facts["stages"].to_pylist()], fewer),
    )
    rows = checkpoint_rows(barriers, facts, Branch(((2, None), (1, 4))), lost=False)
    assert set(rows["versions"].to_pylist()) == {None}
    assert rows.filter(pa.compute.equal(rows["checkpoint_id"], 10))["type"].to_pylist() == [
        "CHECKPOINT"
    ]


def _without_late_rows(stages):
    return stages and [{k: v for k, v in each.items() if k != "late_rows"} for each in stages]


def test_many_checkpoints_are_not_read_whole(tmp_path, monkeypatch):
    """Neither more than some, nor any once a summary says what old ones come to."""
    root = write_root(tmp_path / "job", [aircraft()], [Checkpoint(1), Checkpoint(2, 1)])
    monkeypatch.setattr(reading, "_FEW", 2)
    assert facts_of(root).whole() is not None
    monkeypatch.setattr(reading, "_FEW", 1)
    assert facts_of(root).whole() is None
    monkeypatch.setattr(reading, "_FEW", 2)
    monkeypatch.setattr(reading, "read_summary", lambda *_: Known(upto=1))
    assert facts_of(root).whole() is None
