"""A15: retention comes when a lineage is too long; B: with it copies of source logs are merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chain import chain, conf, wait
from diamond import write_source
from pyspark.sql import SparkSession
from reading import facts
from retaining import SETTINGS
from session import settings

from absflow.facts.records import compacted_of
from absflow.facts.spark_reader import SparkStorageReader
from absflow.spark.control import retention
from absflow.spark.sources import copies
from absflow.storage.layout import Layout

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.soak
def test_a15_a_lineage_that_is_longer_than_it_may_be_is_compacted_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though by itself retention would not come for days. Then a restore from merged copies."""
    monkeypatch.setattr(retention, "EVERY", 1e6)
    monkeypatch.setattr(copies, "_AT_ONCE", 2)
    write_source(tmp_path / "a", files=200, rows=20, seed=43)
    with settings(spark, {**conf(tmp_path), **SETTINGS}):
        run = chain(spark, tmp_path, bounded=False).start()

    def compacted() -> bool:
        return any(row["kind"] == "COMPACTED" for row in facts(spark, tmp_path / "job"))

    kept = Path(Layout(str(tmp_path / "job")).source_log("left", "a", 1))
    try:
        wait(lambda: run.progress().completed > 0 and compacted(), run, patience_s=300)
        wait(lambda: any(kept.glob("*.[1-9]*")), run, patience_s=300)
    finally:
        run.stop()
    with settings(spark, conf(tmp_path, restore__from="latest")):
        planned = chain(spark, tmp_path, bounded=False).plan_restore()
    assert planned is not None
    assert planned.problems == ()


def test_what_a_plan_asks_for_is_done(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sets and epochs go in a commit of their own, which Spark has nothing to do with."""
    monkeypatch.setattr(retention, "EVERY", 0.0)
    monkeypatch.setattr(retention, "REST", 0.0)
    removed, taken = retention.remove_files, []

    def remove_files(*given: Any) -> bool:
        taken.append(removed(*given))
        return taken[-1]

    monkeypatch.setattr(retention, "remove_files", remove_files)
    write_source(tmp_path / "a", files=200, rows=20, seed=44)
    with settings(spark, {**conf(tmp_path), **SETTINGS}):
        run = chain(spark, tmp_path, bounded=False).start()
    layout, reader = Layout(str(tmp_path / "job")), SparkStorageReader(spark)

    def went() -> bool:
        made = compacted_of(facts(spark, tmp_path / "job"))
        sets = {stage: reader.sets(layout.state(stage)) for stage in ("left", "tally")}
        first = next((c for c in made if not {*c.replaces} & sets[c.stage].keys()), None)
        return first is not None and 1 not in reader.values(layout.channel("left", 1), "_epoch")

    try:
        wait(lambda: run.progress().completed > 3 and went(), run, patience_s=300)
        assert run.progress().retention.failures == 0
    finally:
        run.stop()
    assert len(taken) > 1
    assert all(taken)
