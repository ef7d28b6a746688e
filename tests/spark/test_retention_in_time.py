"""A15: retention comes when a lineage is too long; B: with it copies of source logs are merged."""

from __future__ import annotations

from pathlib import Path

import pytest
from chain import chain, conf, wait
from diamond import write_source
from pyspark.sql import SparkSession
from reading import facts
from retaining import SETTINGS
from session import settings

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
