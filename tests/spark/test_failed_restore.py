"""A restore that fails in the middle: what the next start goes on with, and what it has by then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chain import chain, check, conf, run
from diamond import write_source
from pyspark.sql import SparkSession
from reading import completed, stage_of
from session import settings

import absflow
from absflow.spark.start import restore_run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

START = "absflow.spark.start.attempt"


def kinds(spark: SparkSession, root: Path) -> list[tuple[int, str]]:
    """The facts of the attempts, in their order."""
    table = spark.read.format("delta").load(str(root / "job" / "attempts"))
    rows = table.where("kind IS NOT NULL").collect()
    return [
        (r["attempt"], r["kind"]) for r in sorted(rows, key=lambda r: (r["incarnation"], r["at"]))
    ]


def test_after_a_restore_that_failed_the_attempt_before_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files go between its plan and its end: it goes on, until a sink was put back; then not."""
    write_source(tmp_path / "a", files=3, rows=60, seed=3)
    run(spark, tmp_path)
    oldest = completed(spark, tmp_path / "job")[0]
    first = stage_of(oldest, "left")["lineage"][0]
    file = next((tmp_path / "job" / "state" / "left" / f"set_id={first}").glob("*.parquet"))

    def without_a_file(*given: Any) -> None:
        file.rename(tmp_path / file.name)
        try:
            restore_run.bring_state(*given)
        finally:
            (tmp_path / file.name).rename(file)

    older = str(oldest["checkpoint_id"])
    with monkeypatch.context() as patch:
        patch.setattr(f"{START}.bring_state", without_a_file)
        with pytest.raises(Exception, match=file.name):
            run(spark, tmp_path, restore__from=older)
    assert kinds(spark, tmp_path)[-2:] == [(2, "STARTED"), (2, "FAILED")]
    with settings(spark, conf(tmp_path)):
        assert chain(spark, tmp_path).plan_restore() is None
    write_source(tmp_path / "a", files=4, rows=60, seed=3)
    check(spark, tmp_path, run(spark, tmp_path), 4)
    assert kinds(spark, tmp_path)[-2:] == [(1, "DRIVER"), (1, "ENDED")]

    def failing(*_: Any) -> None:
        raise absflow.StorageError("the sink's storage is gone")

    with monkeypatch.context() as patch:
        patch.setattr("absflow.sinks.DeltaSink.restore", failing)
        with pytest.raises(absflow.StorageError, match="the sink's storage is gone"):
            run(spark, tmp_path, restore__from=older)
    assert kinds(spark, tmp_path)[-3:] == [(3, "STARTED"), (3, "RESTORED"), (3, "FAILED")]
    check(spark, tmp_path, run(spark, tmp_path), 4)
    due = ["STARTED", "RESTORED", "READY", "ENDED"]
    assert kinds(spark, tmp_path)[-4:] == [(4, kind) for kind in due]
