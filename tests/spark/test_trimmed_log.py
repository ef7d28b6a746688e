"""A job goes on behind logs of which only what somebody may still ask for is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from chain import chain, check, conf, wait
from deltalake import DeltaTable
from diamond import write_source
from pyspark.sql import SparkSession
from session import settings, spark_conf

from absflow.facts.inventory import gather
from absflow.facts.spark_reader import SparkStorageReader
from absflow.spark.control import old_logs
from absflow.spark.control.old_logs import OldLogs
from absflow.storage import sql
from absflow.storage.files import Files
from absflow.storage.layout import Layout

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FILES = 6
NOW = {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}


def names(table: str, ending: str) -> list[int]:
    """The versions of a log that have a file with this ending."""
    log = Path(table.removeprefix("file:")) / "_delta_log"
    return sorted(int(path.stem) for path in log.glob(f"0*{ending}") if path.stem.isdecimal())


@pytest.mark.soak
def test_a_job_goes_on_behind_trimmed_logs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is old goes, but for what the stopped stages ask for when they start again."""
    write_source(tmp_path / "a", files=FILES, rows=50, seed=1)
    with settings(spark, conf(tmp_path)):
        job = chain(spark, tmp_path, bounded=False)
        run = job.start()
        wait(lambda: run.progress().completed >= 4, run)
        run.stop()
        checked = job._checked()
    layout = Layout(str(tmp_path / "job"))
    streamed = [layout.barriers, layout.channel("left", 1)]
    others = [layout.checkpoints, layout.state("left")]
    checkpoints: dict[str, int] = {}
    for table in (*streamed, *others):
        DeltaTable(table).create_checkpoint()
        checkpoints[table] = DeltaTable(table).version()
        with spark_conf(spark, NOW):
            spark.sql(f"VACUUM {sql.table(table)} LITE RETAIN 0 HOURS")
    whole = {table: names(table, ".json") for table in (*streamed, *others)}
    logs = OldLogs(spark, Files(spark), layout, checked)

    def trim() -> None:
        logs._due = 0
        for _, act in logs.due(gather(SparkStorageReader(spark), layout, {})):
            act()

    for _ in range(2):
        trim()
    assert {table: names(table, ".json") for table in (*streamed, *others)} == whole
    monkeypatch.setattr(old_logs, "KEPT_MS", -3_600_000)
    for _ in range(2):
        trim()
    for table in (*streamed, *others):
        left = names(table, ".json")
        assert left == [version for version in whole[table] if version >= left[0]]
        assert left[0] > 0
        assert min(names(table, ".crc")) >= left[0]
    assert names(layout.checkpoints, ".json")[0] == checkpoints[layout.checkpoints]
    with settings(spark, conf(tmp_path)):
        run = chain(spark, tmp_path).start()
        assert run.await_termination(timeout=240)
    assert run.finished_checkpoint is not None
    check(spark, tmp_path, run.finished_checkpoint, FILES)
    for table in others:
        with spark_conf(spark, NOW):
            spark.sql(f"VACUUM {sql.table(table)} LITE RETAIN 0 HOURS")
