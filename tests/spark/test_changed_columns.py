"""What a history shows of a stage whose columns have changed from attempt to attempt."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest

# The storage roots are those that the command line is tested with.
sys.path.append(str(Path(__file__).parents[1] / "cli"))

from storage_roots import Checkpoint, Stage, change_columns, write_root

import absflow

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Two stages: of one the columns changed behind 2, of the other the key's type."""
    folder = tmp_path_factory.mktemp("changed")
    tail, number = pa.schema([("tailnum", pa.string())]), pa.schema([("tailnum", pa.int64())])
    was = pa.schema([("legs", pa.int32()), ("delay", pa.string())])
    now = pa.schema([("legs", pa.int64()), ("delay", pa.float64()), ("note", pa.string())])
    before = {n: [{"tailnum": "N1", "legs": n, "delay": "long"}] for n in (1, 2)}
    after = {n: [{"tailnum": "N1", "legs": n, "delay": 0.5, "note": "four"}] for n in (3, 4)}
    counts = pa.schema([("n", pa.int64())])
    texts = {n: [{"tailnum": "N1", "n": n}] for n in (1, 2)}
    numbers = {n: [{"tailnum": 1, "n": n}] for n in (3, 4)}
    root = write_root(
        folder / "job",
        [Stage("aircraft", tail, was, before), Stage("other", tail, counts, texts)],
        [Checkpoint(1), Checkpoint(2, 1)],
    )
    change_columns(
        root,
        [Stage("aircraft", tail, now, after), Stage("other", number, counts, numbers)],
        [Checkpoint(3), Checkpoint(4, 3)],
    )
    return root.path


def in_order(rows):
    return sorted(rows, key=str)


def test_the_view_of_the_state_has_the_checkpoints_before_its_columns_changed(spark, changed):
    """In the columns of now: null for what was not there or would not fit, wider where need be."""
    history = absflow.history(spark, str(changed))
    history.create_views("changed_")
    rows = spark.sql("SELECT * FROM changed_aircraft_state WHERE at_checkpoint IN (1, 2, 4)")
    assert rows.columns == ["at_checkpoint", "tailnum", "legs", "delay", "note"]
    assert in_order(rows.toArrow().to_pylist()) == in_order(
        {"at_checkpoint": n, "tailnum": "N1", "legs": legs, "delay": delay, "note": note}
        for n, legs, delay, note in [(1, 1, None, None), (2, 2, None, None), (4, 4, 0.5, "four")]
    )


def test_the_changes_begin_before_the_columns_changed(spark, changed):
    """From the first checkpoint on, each of them relative to the one before, in columns of now."""
    history = absflow.history(spark, str(changed))
    history.create_views("all_")
    due = [(1, 1, None, None), (2, 2, None, None), (3, 3, 0.5, "four"), (4, 4, 0.5, "four")]
    for frame in (history.changes("aircraft"), spark.table("all_aircraft_changes")):
        assert frame.columns == ["checkpoint_id", "op", "tailnum", "legs", "delay", "note"]
        rows = [(r.checkpoint_id, r.legs, r.delay, r.note) for r in frame.collect()]
        assert in_order(rows) == in_order(due)
        assert {row.op for row in frame.collect()} == {"upsert"}


def test_changes_know_what_was_before_the_columns_changed(spark, tmp_path):
    """A key that is the same in columns of now has no row; one that went meanwhile is deleted."""
    key, was = pa.schema([("k", pa.string())]), pa.schema([("n", pa.int32())])
    now = pa.schema([("n", pa.int64())])
    before = {1: [{"k": "same", "n": 1}, {"k": "gone", "n": 2}]}
    after = {2: [{"k": "same", "n": 1}, {"k": "new", "n": 3}]}
    root = write_root(tmp_path / "job", [Stage("count", key, was, before)], [Checkpoint(1)])
    change_columns(root, [Stage("count", key, now, after)], [Checkpoint(2)])
    rows = absflow.history(spark, str(root.path)).changes("count").collect()
    assert in_order((r.checkpoint_id, r.op, r.k, r.n) for r in rows) == [
        (1, "upsert", "gone", 2),
        (1, "upsert", "same", 1),
        (2, "delete", "gone", None),
        (2, "upsert", "new", 3),
    ]
    pruned = absflow.history(spark, str(root.path)).changes("count", {"k": "new"})
    plan = pruned._jdf.queryExecution().executedPlan().toString()
    assert plan.count("dynamicpruning") >= 2


def test_a_state_with_another_key_is_not_in_the_view(spark, changed):
    """Its rows are none of this key; `state` reads them."""
    history = absflow.history(spark, str(changed))
    history.create_views("keyed_")
    seen = spark.sql("SELECT DISTINCT at_checkpoint FROM keyed_other_state").collect()
    assert sorted(row.at_checkpoint for row in seen) == [3, 4]
    changes = spark.table("keyed_other_changes").collect()
    assert sorted(row.checkpoint_id for row in changes) == [3, 4]
    assert [row.tailnum for row in history.state("other", 2).collect()] == ["N1"]
