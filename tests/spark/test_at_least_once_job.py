"""Checkpoints without alignment: nothing is lost, and what comes twice was announced."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from diamond import diamond, expected_sink, holds_all, source_files
from pyspark.sql import SparkSession
from reading import completed, rows_of
from session import settings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

CONF = {
    "checkpoint.mode": "at-least-once",
    "checkpoint.interval": "1s",
    "checkpoint.max-concurrent": "2",
    "checkpoint.retained": "1000",
    "key-groups": "2",
}


def run_until_early(spark: SparkSession, root: Path) -> dict[int, dict[str, int]]:
    """Feed the job until a checkpoint has early rows, however fast this machine is.

    Returns:
        The early rows of each stage, by checkpoint; all rows that were fed are in the newest.
    """
    a = source_files(root / "a", rows=100, seed=1)
    b = source_files(root / "b", rows=40, seed=2, first_id=1_000_000)
    next(a), next(b)  # Spark wants the folders to be there
    written = 1
    with settings(spark, {**CONF, "storage.path": str(root / "job")}):
        run = diamond(spark, root).start()
        found: dict[int, dict[str, int]] = {}
        rows: list[dict[str, Any]] = []
        deadline = time.monotonic() + 300
        early = False
        while not (early and holds_all(rows, written)):
            assert time.monotonic() < deadline, found
            if not early and written < run.progress().stages["a"].batch_id + 3:
                next(a), next(b)
                written += 1
            run.await_termination(timeout=0.1)
            if len(rows) < run.progress().completed:
                rows = completed(spark, root / "job")
                found = {row["checkpoint_id"]: early_rows(row) for row in rows}
                early = any(sum(of.values()) for of in found.values())
        run.stop()
    return found


def early_rows(row: dict[str, Any]) -> dict[str, int]:
    return {stage["stage"]: stage["early_rows"] for stage in row["stages"]}


def sink_rows(root: Path) -> Counter[tuple[int, int]]:
    sink = rows_of(root / "sink").to_pydict()
    return Counter(zip(sink["id"], sink["v"], strict=True))


def test_a_restore_repeats_what_was_early(spark: SparkSession, tmp_path: Path) -> None:
    """As many rows as the manifest says; without a restore nothing comes twice."""
    found = run_until_early(spark, tmp_path)
    due = expected_sink(tmp_path)
    wanted = Counter(zip(due["id"], due["v"], strict=True))
    assert sink_rows(tmp_path) == wanted
    most = max(found, key=lambda n: sum(found[n].values()))

    given = {**CONF, "storage.path": str(tmp_path / "job"), "restore.from": str(most)}
    with settings(spark, given):
        planned = diamond(spark, tmp_path, bounded=True).plan_restore()
        assert planned.problems == ()
        words = [line for line in planned.differences if "reads them again" in line]
        assert len(words) == sum(count > 0 for count in found[most].values())
        assert diamond(spark, tmp_path, bounded=True).start().await_termination(timeout=300)
    assert not wanted - sink_rows(tmp_path)
    assert (sink_rows(tmp_path) - wanted).total() == sum(found[most].values())
