"""The ways of a snapshot into the state history: as files of the workers, or by staged pages."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chain import chain, conf, expected, wait
from diamond import source_files, write_source
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, stage_of, state_at
from session import settings

from absflow.spark.batch.handover import SnapshotHandover, StagedPages
from absflow.spark.batch.snapshots import SnapshotAppender
from absflow.spark.batch.stage import ChainStage
from absflow.storage.delta import transactions
from absflow.storage.delta.transactions import UncommittedFiles

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FILES = 4


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a source ``a`` of a few small files."""
    write_source(tmp_path / "a", files=FILES, rows=60, seed=7)
    return tmp_path


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The checkpoints of ``left`` whose snapshots were staged, as they come."""
    stage_pages, seen = ChainStage._stage_pages, []

    def noting(self: ChainStage, pages: Any, checkpoint_id: int) -> StagedPages:
        if self.spec.name == "left":
            seen.append(checkpoint_id)
        return stage_pages(self, pages, checkpoint_id)

    monkeypatch.setattr(ChainStage, "_stage_pages", noting)
    return seen


@pytest.fixture
def by_workers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The checkpoints of ``left`` whose snapshots the workers have written."""
    submit, seen = SnapshotAppender.submit, []

    def noting(self: SnapshotAppender, snapshot: SnapshotHandover) -> None:
        if self._spec.name == "left" and isinstance(snapshot.content, UncommittedFiles):
            seen.append(snapshot.checkpoint_id)
        submit(self, snapshot)

    monkeypatch.setattr(SnapshotAppender, "submit", noting)
    return seen


def sets(root: Path) -> dict[int, int]:
    """How many files each snapshot of ``left`` was appended with."""
    found: dict[int, int] = {}
    for commit in (root / "job" / "state" / "left" / "_delta_log").glob("*.json"):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "add" in action and action["add"]["dataChange"]:
                number = int(action["add"]["partitionValues"]["set_id"])
                found[number] = found.get(number, 0) + 1
    return found


def still_staged(root: Path) -> list[Path]:
    """The snapshots of any stage that lie in staging."""
    return list((root / "job" / "work").glob("attempt=*/*/staging/*"))


@pytest.fixture
def by_spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers may not write files of the state history; each table is asked once, not by batch."""
    asked: list[str] = []
    monkeypatch.setattr(
        transactions, "plain_table", lambda _spark, path, _schema: asked.append(path)
    )
    yield
    assert asked
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize("way", ["by workers", "staged"])
def test_both_ways_give_the_same_history(
    spark: SparkSession,
    root: Path,
    staged: list[int],
    request: pytest.FixtureRequest,
    by_workers: list[int],
    way: str,
) -> None:
    """Staged pages are deleted once they are in the history."""
    if way != "by workers":
        request.getfixturevalue("by_spark")
    with settings(spark, conf(root)):
        assert chain(spark, root).start().await_termination(timeout=240)
    there = completed(spark, root / "job")
    due = expected(root, FILES)
    for stage, key in (("left", "k"), ("tally", "g")):
        assert_same_rows(state_at(spark, root / "job", there[-1], stage, key), due[stage], [key])
    files, lineage = sets(root), stage_of(there[-1], "left")["lineage"]
    assert set(lineage) <= files.keys()
    if way == "staged":
        assert staged
        assert set(staged) == files.keys()
    else:
        assert not staged
        assert set(by_workers) == files.keys()
    assert still_staged(root) == []


@pytest.mark.usefixtures("by_spark")
def test_a_snapshot_does_not_pass_one_that_waits(
    spark: SparkSession, tmp_path: Path, staged: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one is being appended, the next is staged behind it; both complete.

    Delta takes the ids of a writer in their order only: the earlier one would be lost.
    """
    append, waits, may_go_on = transactions.append_once, threading.Event(), threading.Event()

    def slow(frame: Any, path: str, *rest: Any, **named: Any) -> Any:
        if "/state/left" in path and threading.current_thread().name == "absflow-history-left":
            waits.set()
            assert may_go_on.wait(120)
        return append(frame, path, *rest, **named)

    monkeypatch.setattr(transactions, "append_once", slow)
    more = {"checkpoint__max_concurrent": "3", "checkpoint__timeout": "120s"}
    files = source_files(tmp_path / "a", rows=60, seed=7)
    next(files)  # Spark wants the folder to be there
    with settings(spark, conf(tmp_path, **more)):
        run = chain(spark, tmp_path, bounded=False).start()
        wait(lambda: next(files) is None and waits.is_set(), run, patience_s=120)
        before = len(staged)
        wait(lambda: next(files) is None and len(staged) > before, run, patience_s=120)
        may_go_on.set()
        wait(lambda: run.progress().completed >= 3, run, patience_s=120)
        run.stop()
    assert set(staged[: before + 1]) <= sets(tmp_path).keys()
