"""A restore goes on where each source stood at the checkpoint, whatever kind of source it is."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from every_source import (
    ENDING,
    PARTS,
    ROWS,
    SOURCES,
    TOPIC,
    commit_the_rest,
    expected_sink,
    expected_state,
    job_of,
    prepare,
    rows_before,
)
from kafka_topics import PARTITIONS, delete_before
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, durable_files, rows_of, stage_of, state_at
from session import settings, shuffle_partitions

import absflow

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ALL = PARTS * ROWS
# A checkpoint takes a second or two; with these batches it comes to its end before the sources do.
CONF = {"checkpoint.interval": "500ms", "trigger.interval": "1500ms", "key-groups": "3"}


def read_at(row: dict[str, Any]) -> dict[str, int]:
    """How many rows of each source stand before its position in a manifest."""
    positions = dict(stage_of(row, "tally")["positions"])
    return {name: rows_before(name, positions[name]) for name in SOURCES}


def is_middle(row: dict[str, Any]) -> bool:
    """Whether it cuts every source behind its beginning and before its end.

    One of the two Delta tables inside of its initial snapshot, the other one behind it.
    """
    read = read_at(row)
    begun = all(read.values()) and read["delta"] > ROWS
    return begun and all(read[name] < ALL for name in ENDING)


def wait_for(
    spark: SparkSession, run: absflow.Run, root: Path, met: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    """Wait until the completed checkpoints are as wanted; they."""
    deadline = time.monotonic() + 120
    rows: list[dict[str, Any]] = []
    seen = 0
    while not met(rows):
        assert time.monotonic() < deadline, [read_at(row) for row in rows]
        run.await_termination(timeout=0.1)
        if seen < (seen := run.progress().completed):
            rows = completed(spark, root / "job")
    return rows


def wait_for_rows(run: absflow.Run, sink: Path, due: int) -> None:
    """Wait until the sink has so many rows of each source that ends."""
    deadline = time.monotonic() + 120
    seen: dict[str, int] = {}
    while any(seen.get(name, 0) < due for name in ENDING):
        assert time.monotonic() < deadline, seen
        run.await_termination(timeout=0.3)
        seen = DeltaTable(sink).to_pyarrow_table()["source"].to_pandas().value_counts().to_dict()


@pytest.fixture(scope="module")
def root(spark: SparkSession, kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job over every source that was stopped behind a checkpoint in the middle of each."""
    root = tmp_path_factory.mktemp("every-source")
    prepare(spark, kafka, root)
    with settings(spark, {**CONF, "storage.path": str(root / "job")}):
        run = job_of(spark, kafka, root).start()
        wait_for(spark, run, root, bool)
        commit_the_rest(root)
        wait_for(spark, run, root, lambda rows: any(map(is_middle, rows[:-1])))
        run.stop()
    return root


@pytest.fixture(scope="module")
def middle(spark: SparkSession, root: Path) -> dict[str, Any]:
    """That checkpoint."""
    return next(row for row in completed(spark, root / "job") if is_middle(row))


def forget_what_was_read(
    spark: SparkSession, servers: str, root: Path, middle: dict[str, Any]
) -> None:
    """Let go what stands before the positions of a checkpoint, as retention does."""
    positions = dict(stage_of(middle, "tally")["positions"])
    (root / "files" / "00.parquet").unlink()
    for partition, offset in json.loads(positions["kafka"])[TOPIC].items():
        delete_before(spark, servers, TOPIC, int(partition), offset)
    clean_log(root / "delta", json.loads(positions["delta"])["reservoirVersion"])


def clean_log(table: Path, before: int) -> None:
    """Delete the commits before a version, behind a checkpoint of the log."""
    DeltaTable(table).create_checkpoint()
    for commit in (table / "_delta_log").glob("*.json"):
        if int(commit.stem) < before:
            commit.unlink()


@pytest.fixture(scope="module")
def last(spark: SparkSession, kafka: str, root: Path, middle: dict[str, Any]) -> dict[str, Any]:
    """A savepoint behind all rows, of the job restored from the middle in another shape.

    What was before the middle, and Spark's own checkpoints, are gone.
    """
    shutil.rmtree(root / "job" / "work")
    forget_what_was_read(spark, kafka, root, middle)
    more = {"checkpoint.interval": "1h", "key-groups": "5", "storage.path": str(root / "job")}
    more["restore.from"] = str(middle["checkpoint_id"])
    with settings(spark, more), shuffle_partitions(spark, 3):
        run = job_of(spark, kafka, root, bounded=True).start()
        wait_for_rows(run, root / "sink", ALL)
        run.stop(savepoint=True, drain=True)
    return completed(spark, root / "job")[-1]


def test_one_table_is_cut_inside_of_its_initial_snapshot(middle: dict[str, Any]) -> None:
    """The other one behind it; see the fixture."""
    positions = dict(stage_of(middle, "tally")["positions"])
    assert '"isStartingVersion":true' in positions["delta-snapshot"]
    assert '"isStartingVersion":false' in positions["delta"]


@pytest.mark.parametrize("source", SOURCES)
def test_nothing_is_lost_and_nothing_twice(
    spark: SparkSession, root: Path, last: dict[str, Any], source: str
) -> None:
    """Sink and state are a plain computation over the rows before the position at the end."""
    rows = {source: read_at(last)[source]}
    assert rows[source] >= (ALL if source in ENDING else 1)
    sink = rows_of(root / "sink").to_pandas()
    ids = sorted(sink[sink["source"] == source]["id"])
    assert ids == expected_sink(rows)[source]
    state = state_at(spark, root / "job", last, "tally", "source")
    assert_same_rows(state[state["source"] == source], expected_state(rows), ["source"])


@pytest.fixture(scope="module")
def refusal(
    spark: SparkSession, kafka: str, root: Path, middle: dict[str, Any], last: dict[str, Any]
) -> str:
    """The error of a start from the middle when what is behind it is gone; it changed nothing."""
    positions = {name: text for name, text in stage_of(middle, "tally")["positions"]}
    read = read_at(middle)
    (root / "files" / f"{read['files'] // ROWS:02d}.parquet").unlink()
    # This one only the restored attempt has read.
    (root / "files" / f"{PARTS - 1:02d}.parquet").unlink()
    delete_before(spark, kafka, TOPIC, 0, ALL // PARTITIONS)
    clean_log(root / "delta", json.loads(positions["delta"])["reservoirVersion"] + 1)
    snapshot = DeltaTable(root / "delta-snapshot")
    snapshot.optimize.compact()
    snapshot.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    (root / "job" / "positions" / "attempt=1" / "tally" / "rate" / "0").unlink()
    conf = {**CONF, "storage.path": str(root / "job")}
    conf["restore.from"] = str(middle["checkpoint_id"])
    before = durable_files(root / "job"), durable_files(root / "sink")
    with settings(spark, conf), pytest.raises(absflow.RestoreError) as raised:
        job_of(spark, kafka, root).start()
    assert (durable_files(root / "job"), durable_files(root / "sink")) == before
    return str(raised.value)


GONE = {
    "files": r"2 files that were read behind it are gone, 'file:.*\.parquet' first",
    "kafka": r"partition 0 of topic 'every-source' has offsets 18 to 18, wanted \d+",
    "delta": r"table '[^']*/delta' has versions \d+ to 8, wanted \d+",
    "delta-snapshot": r"\d+ files of '.*/delta-snapshot', yet to be read, are gone",
    "rate": r"file:.*/positions/attempt=1/tally/rate/0 is gone, which says when it began",
}


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_gone_is_refused(middle: dict[str, Any], refusal: str, source: str) -> None:
    """By source and position, all at once, before anything is changed.

    What only its author knows to be there is believed.
    """
    position = dict(stage_of(middle, "tally")["positions"])[source]
    start = f"source {source!r} cannot go on at {position}: "
    assert (start in refusal) == (source in GONE)
    if source in GONE:
        what = refusal.partition(start)[2]
        assert re.match(GONE[source] + ".*; choose a newer checkpoint, or bring back", what), what
