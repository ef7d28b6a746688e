"""A job goes on behind logs of which only what its stages may still ask for is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from chain import chain, conf, wait
from deltalake import DeltaTable
from diamond import write_source
from pyspark.sql import SparkSession
from session import settings

from absflow.facts.lock import RootLock
from absflow.spark.control.tidying import Tidying
from absflow.storage.layout import Layout
from absflow.storage.root import StorageRoot

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TIMES_MS = {"kept": 3_600_000, "gone": -3_600_000}


def versions(table: str) -> list[int]:
    """The commits in a table's log."""
    log = Path(table.removeprefix("file:")) / "_delta_log"
    return sorted(int(name.stem) for name in log.glob("*.json"))


def test_a_job_goes_on_behind_trimmed_logs(spark: SparkSession, tmp_path: Path) -> None:
    """What is old goes, but for what the stopped stages ask for when they start again."""
    write_source(tmp_path / "a", files=2, rows=50, seed=1)
    with settings(spark, conf(tmp_path)):
        job = chain(spark, tmp_path, bounded=False)
        run = job.start()
        wait(lambda: run.progress().completed >= 4, run)
        run.stop()
        root = StorageRoot.open(spark, str(tmp_path / "job"))
        layout: Layout = root.layout
        tidying = Tidying(spark, root, job._checked(), RootLock("", None), lambda: None)
        for table in (layout.barriers, layout.checkpoints):
            DeltaTable(table.removeprefix("file:")).create_checkpoint()
            whole = versions(table)
            tidying._trim(table, 1, TIMES_MS["kept"])
            assert versions(table) == whole
            tidying._trim(table, 1, TIMES_MS["gone"])
            assert versions(table) == [v for v in whole if v >= versions(table)[0]]
            assert versions(table)[0] > 0
        assert len(versions(layout.checkpoints)) == 1
        run = chain(spark, tmp_path, bounded=False).start()
        wait(lambda: run.progress().completed >= 2, run)
        run.stop()
