"""A5: files that no version of a table names go, and never one that a commit names."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chain import chain, conf, expected, wait
from deltalake import DeltaTable
from diamond import write_source
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, files_read
from retaining import SETTINGS
from session import settings

import absflow
from absflow.spark.batch.handover import SnapshotHandover
from absflow.spark.batch.snapshots import SnapshotAppender
from absflow.spark.control import retention, tidying
from absflow.storage.delta import transactions
from absflow.storage.delta.log import actions_of
from absflow.storage.delta.transactions import UncommittedFiles
from absflow.storage.layout import Layout
from absflow.storage.stores.mounted import local

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

FACTS = ("attempts", "barriers", "checkpoints")


def data_files(table: Path) -> set[str]:
    """What lies there, from the table's path on."""
    return {str(path.relative_to(table)) for path in table.rglob("part-*.parquet")}


def named(table: Path) -> set[str]:
    """What the newest version names."""
    return {str(Path(uri).relative_to(table)) for uri in DeltaTable(table).file_uris()}


def number_of(path: str) -> int:
    """The epoch or the set of a file."""
    return int(path.partition("/")[0].partition("=")[2])


@pytest.mark.soak
def test_a5_what_tasks_that_ran_twice_have_left_is_swept_beside_the_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no checkpoint is behind yet stays, and what lies in a sink is left to its owner."""
    for name in ("EVERY", "REST"):
        monkeypatch.setattr(retention, name, 0.0)
    monkeypatch.setattr(tidying, "VACUUM_EVERY", 0.0)
    monkeypatch.setattr(tidying.Tidying, "_vacuum", lambda *_: None)  # it takes none of these
    twice(monkeypatch)
    layout = Layout(str(tmp_path / "job"))
    channel, history = Path(layout.channel("left", 1)), Path(layout.state("left"))
    sink = tmp_path / "sink"
    write_source(tmp_path / "a", files=300, rows=20, seed=47)
    with settings(spark, {**conf(tmp_path), **SETTINGS, "lineage.max-sets": "50"}):
        run = chain(spark, tmp_path, bounded=False).start()
    try:
        wait(lambda: run.progress().completed >= 1, run, patience_s=300)
        # As a driver leaves it that dies between a file and its commit.
        planted = []
        for table in FACTS:
            facts = Path(layout.root, table)
            one = sorted(data_files(facts))[0]
            planted.append(facts / one.replace("part-00000-", "part-00000-left-"))
            shutil.copy(facts / one, planted[-1])
        ahead = [channel / "_epoch=1000000", history / "set_id=1000000"]
        for directory in ahead:
            directory.mkdir()
            (directory / "part-00000-x-c000.snappy.parquet").write_bytes(b"being written")

        wait(lambda: run.progress().completed >= 4, run, patience_s=300)
        done = run.progress().checkpoint_id
        left = [
            table / path
            for table in (channel, history)
            for path in data_files(table) - ever(table)
            if number_of(path) < done
        ]
        assert {path.parts[-3] for path in left} == {"attempt=1", "left"}
        planted += left
        wait(lambda: not any(path.exists() for path in planted), run, patience_s=600)
    finally:
        run.stop()
    assert run.progress().retention.failing == ()
    for table in (channel, history, Path(layout.state("tally")), sink):
        assert named(table) <= data_files(table)
    assert all(any(directory.iterdir()) for directory in ahead)
    assert data_files(sink) - named(sink)  # for a VACUUM of its owner
    newest = completed(spark, tmp_path / "job")[-1]
    due = expected(tmp_path, files_read(newest, "left", "a"))
    for stage, key in (("left", "k"), ("tally", "g")):
        state = absflow.history(spark, layout.root).state(stage, newest["checkpoint_id"])
        assert_same_rows(state.toPandas(), due[stage], [key])


def ever(table: Path) -> set[str]:
    """What any version of a table names or has named."""
    texts = [path.read_text() for path in (table / "_delta_log").glob("*.json")]
    actions = [action for text in texts for action in actions_of(text)]
    return {action["add"]["path"] for action in actions if "add" in action}


def twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks have written each file twice, and one of the two is named.

    Those that write rows do run twice. A stage must not, so its snapshots are copied.
    """
    once: Callable[..., Any] = transactions._by_workers
    submit = SnapshotAppender.submit

    def again(*given: Any) -> Any:
        once(*given)
        return once(*given)

    def copied(self: SnapshotAppender, snapshot: SnapshotHandover) -> None:
        assert isinstance(snapshot.content, UncommittedFiles | None)
        if snapshot.content is not None:
            for action in snapshot.content.adds:
                file = Path(local(snapshot.content.table.folder), action["add"]["path"])
                other = file.name.replace("part-00000-", "part-00000-again-")
                shutil.copy(file, file.with_name(other))
        submit(self, snapshot)

    monkeypatch.setattr(transactions, "_by_workers", again)
    monkeypatch.setattr(SnapshotAppender, "submit", copied)
