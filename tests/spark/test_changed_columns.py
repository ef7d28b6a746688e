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
    changes = spark.table("changed_aircraft_changes").collect()
    assert sorted(row.checkpoint_id for row in changes) == [3, 4]


def test_a_state_with_another_key_is_not_in_the_view(spark, changed):
    """Its rows are none of this key; `state` reads them."""
    history = absflow.history(spark, str(changed))
    history.create_views("keyed_")
    seen = spark.sql("SELECT DISTINCT at_checkpoint FROM keyed_other_state").collect()
    assert sorted(row.at_checkpoint for row in seen) == [3, 4]
    assert [row.tailnum for row in history.state("other", 2).collect()] == ["N1"]
