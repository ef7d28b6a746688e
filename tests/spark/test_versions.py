"""Spark and Delta of another version are refused in one sentence, before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from chain import chain, conf
from diamond import write_source
from pyspark.sql import SparkSession
from session import settings

import absflow
from absflow.spark import versions
from absflow.spark.versions import DELTA, SPARK, FoundVersions, check_versions, problems

pytestmark = pytest.mark.spark

RIGHT = FoundVersions(SPARK, SPARK, DELTA, DELTA, 17, "io.delta.sql.DeltaSparkSessionExtension")


def test_what_runs_here_is_known(spark: SparkSession) -> None:
    """The versions are read from the JVM and from the packages."""
    check_versions(spark)
    assert problems(versions._find(spark)) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"spark": "4.1.0"}, "found Spark 4.1.0, absflow knows the internals of 4.2.0 only"),
        ({"pyspark": "4.1.0"}, "found pyspark 4.1.0: pip install pyspark==4.2.0"),
        ({"delta": None}, "--packages io.delta:delta-spark_4.2_2.13:4.4.0"),
        ({"delta": "4.4.1"}, "found the Delta jar 4.4.1"),
        ({"delta_spark": None}, "found no package delta-spark"),
        ({"java": 11}, "found Java 11, absflow needs 17 or newer"),
        ({"extensions": ""}, "found spark.sql.extensions=''"),
    ],
)
def test_each_difference_is_one_sentence(changed: dict[str, object], words: str) -> None:
    """What was seen, and what to do."""
    (problem,) = problems(replace(RIGHT, **changed))
    assert words in problem


def test_a_start_on_another_version_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One error of absflow's own, and an empty storage root."""
    write_source(tmp_path / "a", files=1, rows=10, seed=1)
    monkeypatch.setattr(versions, "DELTA", "9.9.9")
    job = chain(spark, tmp_path)
    with (
        settings(spark, conf(tmp_path)),
        pytest.raises(absflow.VersionError, match=r"found the Delta jar 4\.4\.0"),
    ):
        job.start()
    assert not (tmp_path / "job").exists()
