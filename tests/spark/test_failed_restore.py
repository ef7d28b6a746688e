"""A restore that fails in the middle, and what would have failed later and is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from chain import chain, check, conf, run
from diamond import source_files
from pyspark.sql import SparkSession
from reading import completed, stage_of
from session import settings, spark_conf

import absflow
from absflow.spark.start import restore_run

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(600)]

START = "absflow.spark.start.attempt"


def kinds(spark: SparkSession, root: Path) -> list[tuple[int, str]]:
    """The facts of the attempts, in their order."""
    table = spark.read.format("delta").load(str(root / "job" / "attempts"))
    rows = table.where("kind IS NOT NULL").collect()
    return [
        (r["attempt"], r["kind"]) for r in sorted(rows, key=lambda r: (r["incarnation"], r["at"]))
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one job for both tests."""
    return tmp_path_factory.mktemp("failed-restore")


def test_after_a_restore_that_failed_the_attempt_before_goes_on(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files go between its plan and its end: it goes on, until a sink was put back; then not."""
    source = source_files(root / "a", rows=60, seed=3)
    for _ in range(3):
        next(source)
    run(spark, root)
    oldest = completed(spark, root / "job")[0]
    first = stage_of(oldest, "left")["lineage"][0]
    file = next((root / "job" / "state" / "left" / f"set_id={first}").glob("*.parquet"))

    def without_a_file(*given: Any) -> None:
        file.rename(root / file.name)
        try:
            restore_run.bring_state(*given)
        finally:
            (root / file.name).rename(file)

    older = str(oldest["checkpoint_id"])
    with monkeypatch.context() as patch:
        patch.setattr(f"{START}.bring_state", without_a_file)
        with pytest.raises(Exception, match=file.name):
            run(spark, root, restore__from=older)
    assert kinds(spark, root)[-2:] == [(2, "STARTED"), (2, "FAILED")]
    with settings(spark, conf(root)):
        assert chain(spark, root).plan_restore() is None
    next(source)
    check(spark, root, run(spark, root), 4)
    assert kinds(spark, root)[-2:] == [(1, "DRIVER"), (1, "ENDED")]

    def failing(*_: Any) -> None:
        raise absflow.StorageError("the sink's storage is gone")

    with monkeypatch.context() as patch:
        patch.setattr("absflow.sinks.DeltaSink.restore", failing)
        with pytest.raises(absflow.StorageError, match="the sink's storage is gone"):
            run(spark, root, restore__from=older)
    assert kinds(spark, root)[-3:] == [(3, "STARTED"), (3, "RESTORED"), (3, "FAILED")]
    check(spark, root, run(spark, root), 4)
    due = ["STARTED", "RESTORED", "READY", "ENDED"]
    assert kinds(spark, root)[-4:] == [(4, kind) for kind in due]


def problems(spark: SparkSession, root: Path, checkpoint_id: object) -> tuple[str, ...]:
    """What a plan says against a restore."""
    with settings(spark, conf(root, restore__from=str(checkpoint_id))):
        planned = chain(spark, root).plan_restore()
    assert planned is not None
    return planned.problems


def test_a_sink_that_cannot_go_back_is_named(spark: SparkSession, root: Path) -> None:
    """Delta would not go back so far; the files that it needs went with somebody's VACUUM."""
    oldest = completed(spark, root / "job")[0]["checkpoint_id"]
    sink = f"delta.`{root / 'sink'}`"
    spark.sql(f"OPTIMIZE {sink}")
    assert problems(spark, root, oldest) == ()
    retention = "delta.deletedFileRetentionDuration"
    spark.sql(f"ALTER TABLE {sink} SET TBLPROPERTIES ('{retention}' = 'interval 0 hours')")
    (problem,) = problems(spark, root, oldest)
    assert re.search(rf"sink' cannot go back to version \d+: .*; set {retention} and", problem)
    spark.sql(f"ALTER TABLE {sink} UNSET TBLPROPERTIES ('{retention}')")
    with spark_conf(spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
        spark.sql(f"VACUUM {sink} RETAIN 0 HOURS")
    (problem,) = problems(spark, root, oldest)
    assert re.search(r"sink' cannot go back to version \d+: \d+ of its files are gone", problem)
    assert re.search(r"taken after version \d+ \(OPTIMIZE, ", problem)
    assert problems(spark, root, "latest") == ()
