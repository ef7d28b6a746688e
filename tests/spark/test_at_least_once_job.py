"""Checkpoints without alignment: nothing is lost, and what comes twice was announced."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from diamond import diamond, expected_sink, run_until
from pyspark.sql import SparkSession
from reading import rows_of
from session import settings

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(600)]

CONF = {
    "checkpoint.mode": "at-least-once",
    "checkpoint.interval": "1s",
    "checkpoint.max-concurrent": "2",
    "checkpoint.retained": "1000",
    "key-groups": "2",
}


def missing(rows: list[dict[str, Any]]) -> str:
    early = any(sum(early_rows(row).values()) for row in rows)
    return "" if early else "early rows"


def early_rows(row: dict[str, Any]) -> dict[str, int]:
    return {stage["stage"]: stage["early_rows"] for stage in row["stages"]}


def sink_rows(root: Path) -> Counter[tuple[int, int]]:
    sink = rows_of(root / "sink").to_pydict()
    return Counter(zip(sink["id"], sink["v"], strict=True))


def test_a_restore_repeats_what_was_early(spark: SparkSession, tmp_path: Path) -> None:
    """As many rows as the manifest says; without a restore nothing comes twice."""
    facts = run_until(spark, tmp_path, CONF, (100, 40), missing)
    found = {row["checkpoint_id"]: early_rows(row) for row in facts}
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
