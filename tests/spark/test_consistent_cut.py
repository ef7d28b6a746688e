"""Every completed checkpoint of a running job is one cut through all of it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from diamond import expected_sink, expected_states, run_until
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, facts, files_read, rows_of, stage_of, state_at

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

CONF = {
    "checkpoint.interval": "1s",
    "checkpoint.max-concurrent": "2",
    "key-groups": "5",
    "state.max-inline": "0B",  # so that all state lies in files
}


def missing_cases(rows: list[dict[str, Any]]) -> set[str]:
    """Which of the hard cases the completed checkpoints do not show."""
    pairs = list(itertools.pairwise(rows))
    cuts = {(files_read(row, "a", "a"), files_read(row, "right", "b")) for row in rows}
    cases = {
        "three different cuts": len(cuts) >= 3,
        "two in flight": any(y["triggered_at"] < x["ended_at"] for x, y in pairs),
        "rows held": any(s["held_rows"] > 0 for row in rows for s in row["stages"]),
    }
    return {case for case, met in cases.items() if not met}


@pytest.fixture(scope="module")
def storage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the diamond over files of random sizes, stopped behind all of them; its storage.

    The sources are fed until the durable facts say that every hard case was met, however fast or
    busy this machine is.
    """
    root = tmp_path_factory.mktemp("cut")
    run_until(spark, root, CONF, (400, 80), missing_cases)
    return root / "job"


def test_every_state_is_a_batch_over_the_rows_up_to_the_positions(
    spark: SparkSession, storage: Path
) -> None:
    """State(n) of every stage is a batch over exactly the source rows up to n's positions."""
    rows = completed(spark, storage)
    assert not missing_cases(rows)
    for row in rows:
        positions = {"a": files_read(row, "a", "a"), "b": files_read(row, "right", "b")}
        expected = expected_states(storage.parent, positions)
        for stage, key in (("left", "k"), ("right", "k"), ("join", "g")):
            state = state_at(spark, storage, row, stage, key)
            assert_same_rows(state, expected[stage], [key])
            assert len(state) == stage_of(row, stage)["keys_total"]
        assert state_at(spark, storage, row, "left", "k")["ordered"].all()


def test_the_sink_has_every_row_once(spark: SparkSession, storage: Path) -> None:
    """Nothing is lost and nothing repeated."""
    sink = rows_of(storage.parent / "sink").to_pandas()
    assert_same_rows(sink, expected_sink(storage.parent), ["id", "v"])


def test_a_sink_version_lies_at_every_cut(spark: SparkSession, storage: Path) -> None:
    """The sink's commits up to epoch n hold exactly the rows that are in state n."""
    log = spark.sql(f"DESCRIBE HISTORY delta.`{storage.parent / 'sink'}`").toPandas()
    notes = {
        int(version): metadata
        for version, metadata in zip(log["version"], log["userMetadata"], strict=True)
    }
    epochs = {v: json.loads(m)["epoch"] for v, m in notes.items() if m}
    assert [epochs[v] for v in sorted(epochs)] == sorted(epochs.values())
    for row in completed(spark, storage):
        n = row["checkpoint_id"]
        version = max((v for v, e in epochs.items() if e <= n), default=0)
        sink = spark.read.format("delta").option("versionAsOf", version)
        seen = sink.load(str(storage.parent / "sink")).count()
        state = state_at(spark, storage, row, "join", "g")
        assert seen == state["n"].sum()


def test_ids_rise_and_each_has_one_fact(spark: SparkSession, storage: Path) -> None:
    """Ids are 1, 2, 3, ... and no checkpoint has two ends."""
    ids = [row["checkpoint_id"] for row in facts(spark, storage)]
    assert ids == list(range(1, len(ids) + 1))
