"""The conf of every session that the tests start, and changes of it for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import class_archive
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """``spark.absflow.*`` settings for the time of a block."""
    with spark_conf(spark, {f"spark.absflow.{name}": value for name, value in values.items()}):
        yield


@contextmanager
def spark_conf(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Spark conf for the time of a block."""
    before = {key: spark.conf.get(key, None) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.unset(key) if value is None else spark.conf.set(key, value)


@contextmanager
def shuffle_partitions(spark: SparkSession, count: int) -> Iterator[None]:
    """So many of them for the time of a block."""
    with spark_conf(spark, {"spark.sql.shuffle.partitions": str(count)}):
        yield


def write_properties(file: Path, conf: Mapping[str, str]) -> None:
    """Spark conf as ``--properties-file`` takes it."""
    file.write_text("".join(f"{name} {value}\n" for name, value in conf.items()))


def with_delta(start: SparkSession.Builder) -> SparkSession.Builder:
    """The conf with Delta's jars, and with the classes that are kept for a driver that is local."""
    if start._options.get("spark.master", "").startswith("local") and (
        kept := class_archive.kept()
    ):
        for key, value in kept.items():
            start = start.config(key, value)
        return start
    return configure_spark_with_delta_pip(start)


def builder() -> SparkSession.Builder:
    """The conf of every session that the tests start, also in other processes."""
    conf = {
        "spark.master": "local[2]",
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": class_archive.JAVA,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        # Without Hadoop's native library the default starts two processes for each commit.
        "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
        # A query without input looks for some a hundred times a second by default.
        "spark.sql.streaming.pollingDelay": "100ms",
        # For a few hundred rows, to write and compile code takes longer than to do without.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    start = SparkSession.builder.appName("absflow-tests")
    for key, value in conf.items():
        start = start.config(key, value)
    return start
