"""A4: a part of retention that always fails stops no other part, and takes nothing away."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from chain import chain, conf, expected
from click.testing import CliRunner
from diamond import write_source
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, facts, files_read
from retaining import SETTINGS
from session import settings

import absflow
from absflow.cli.commands import absflow as command
from absflow.facts.records import deleted_of
from absflow.spark.control import retention
from absflow.spark.control.retention import Retention
from absflow.storage.layout import Layout

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

PATIENCE_S = 600


def test_a4_a_compaction_that_fails_stops_nothing_else_and_is_shown(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of ``left``: what it would replace stays, the rest goes; progress and gc say why."""
    monkeypatch.setattr(retention, "EVERY", 0.0)
    monkeypatch.setattr(retention, "REST", 0.0)
    compact, tried = Retention._compact, []

    def failing(self: Retention, fact: Any, found: Any) -> Any:
        tried.append(fact.stage)
        if fact.stage == "left":
            raise OSError("no space left on device")
        return compact(self, fact, found)

    monkeypatch.setattr(Retention, "_compact", failing)
    write_source(tmp_path / "a", files=300, rows=20, seed=41)
    with settings(spark, {**conf(tmp_path), **SETTINGS}):
        run = chain(spark, tmp_path, bounded=False).start()
        end = time.monotonic() + PATIENCE_S
        while not (in_a_row(run) >= 2 and "tally" in tried and went(spark, tmp_path)):
            assert run.is_active
            assert time.monotonic() < end, tried
            time.sleep(0.2)
        shown = run.progress().retention
        run.stop()
    what = "compaction of stage left"
    assert shown.failures >= 2
    assert [(f.what, f.error) for f in shown.failing] == [(what, "no space left on device")]
    asked = ["gc", "--dry-run", "--json", "--storage", str(tmp_path / "job")]
    (failure,) = json.loads(CliRunner().invoke(command, asked).stdout)["failing"]
    assert failure["what"] == what
    assert failure["error"] == "no space left on device"
    assert failure["in_a_row"] >= 2
    rows = facts(spark, tmp_path / "job")
    assert {row["stage"] for row in rows if row["kind"] == "COMPACTED"} == {"tally"}
    history = absflow.history(spark, str(tmp_path / "job"))
    kept = [r for r in completed(spark, tmp_path / "job") if r["checkpoint_id"] not in gone(rows)]
    assert kept
    for row in kept:
        due = expected(tmp_path, files_read(row, "left", "a"))
        for stage, key in (("left", "k"), ("tally", "g")):
            state = history.state(stage, row["checkpoint_id"]).toPandas()
            assert_same_rows(state, due[stage], [key])


def in_a_row(run: absflow.Run) -> int:
    """How many plans have failed one after the other at the same."""
    return max((failure.in_a_row for failure in run.progress().retention.failing), default=0)


def gone(rows: list[dict[str, Any]]) -> set[int]:
    return set(deleted_of(rows))


def went(spark: SparkSession, root: Path) -> bool:
    """Whether checkpoints were deleted, and the first epochs of the channel are gone."""
    if not gone(facts(spark, root / "job")):
        return False
    channel = spark.read.format("delta").load(Layout(str(root / "job")).channel("left", 1))
    return channel.where("_epoch <= 1").isEmpty()
