"""A12: a deletion that was asked for while no driver ran."""

from __future__ import annotations

from pathlib import Path

import pytest
from chain import chain, conf, run
from click.testing import CliRunner
from diamond import source_files
from pyspark.sql import SparkSession
from reading import durable_files, facts
from session import settings

import absflow
from absflow.cli.commands import absflow as command

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_a12_a_deletion_that_stands_is_obeyed_by_the_next_driver_however_short_it_lives(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Until then a restore of the checkpoint is refused, and afterwards there is none."""
    files = source_files(tmp_path / "a", rows=20, seed=3)
    next(files)
    first = run(spark, tmp_path)
    next(files)
    run(spark, tmp_path)
    given = ["delete", str(first), "--yes", "--storage", str(tmp_path / "job")]
    stands = CliRunner().invoke(command, given)
    assert (stands.exit_code, "the request stands" in stands.stdout) == (0, True)

    before = durable_files(tmp_path / "job")
    with (
        settings(spark, conf(tmp_path, restore__from=str(first))),
        pytest.raises(absflow.RestoreError, match=f"asked for checkpoint {first} to be deleted"),
    ):
        chain(spark, tmp_path).start()
    assert durable_files(tmp_path / "job") == before

    with settings(spark, conf(tmp_path)):
        short = chain(spark, tmp_path).start()
        answers = [row["kind"] for row in facts(spark, tmp_path / "job") if row["request"]]
        assert answers == ["DELETED"]  # it has only just been started
        short.stop()
    with (
        settings(spark, conf(tmp_path, restore__from=str(first))),
        pytest.raises(absflow.NotFoundError, match=f"checkpoint {first} was deleted"),
    ):
        chain(spark, tmp_path).start()
