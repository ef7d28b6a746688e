"""A job that a supervisor starts, always with the same settings."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from chain import chain, conf, expected, run
from diamond import write_source
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, rows_of
from session import settings

import absflow

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FILES = 3


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """With a source."""
    write_source(tmp_path / "a", files=FILES, rows=40, seed=31)
    return tmp_path


def kinds(spark: SparkSession, root: Path) -> list[tuple[int, str]]:
    """Attempt and kind of each fact in ``attempts``, in order."""
    rows = spark.read.format("delta").load(str(root / "job" / "attempts")).collect()
    return [(row.attempt, row.kind) for row in sorted(rows, key=lambda row: row.at)]


def check_sink(spark: SparkSession, root: Path) -> None:
    """Every row is there once."""
    sink = rows_of(root / "sink").to_pandas()
    assert_same_rows(sink, expected(root, FILES)["sink"], ["id"])


def test_latest_begins_a_job_without_a_checkpoint(spark: SparkSession, root: Path) -> None:
    """On an empty root; the next start has a checkpoint and restores it."""
    finished = run(spark, root, restore__from="latest")
    assert kinds(spark, root) == [(1, "STARTED"), (1, "READY"), (1, "ENDED")]
    check_sink(spark, root)
    assert run(spark, root, restore__from="latest") > finished
    assert {attempt for attempt, _ in kinds(spark, root)} == {1, 2}
    check_sink(spark, root)


def test_latest_goes_on_with_an_attempt_without_a_checkpoint(
    spark: SparkSession, root: Path
) -> None:
    """It has rows in the sink already, which must not come twice."""
    with settings(spark, conf(root, restore__from="latest", checkpoint__interval="1h")):
        started = chain(spark, root, bounded=False).start()
        while started.progress().stages["tally"].total_rows == 0:
            assert not started.await_termination(timeout=0.1)
        started.stop()
    assert completed(spark, root / "job") == []
    with settings(spark, conf(root, restore__from="latest")):
        going_on = chain(spark, root, bounded=False).start()
        while going_on.progress().completed < 2:
            assert not going_on.await_termination(timeout=0.1)
        going_on.stop()
    assert {attempt for attempt, _ in kinds(spark, root)} == {1}
    check_sink(spark, root)


def test_a_checkpoint_by_its_id_must_be_there(spark: SparkSession, root: Path) -> None:
    """Only ``latest`` may mean none, and only of the job's own root."""
    for target in ("7", f"{root / 'other'}#latest"):
        with pytest.raises(absflow.NotFoundError):
            run(spark, root, restore__from=target)


def test_sigterm_off_the_main_thread_is_refused_before_anything_starts(
    spark: SparkSession, root: Path
) -> None:
    """Nothing lies under the storage root afterwards, and no query runs."""
    errors = []

    def start() -> None:
        try:
            chain(spark, root).start()
        except absflow.SettingsError as error:
            errors.append(str(error))

    with settings(spark, conf(root, savepoint__on_sigterm="true")):
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
    (error,) = errors
    assert "only that can handle signals" in error
    assert not (root / "job").exists()
    assert spark.streams.active == []
