"""One Spark session for all tests of this folder, and small jobs with known answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from delta import configure_spark_with_delta_pip
from kafka_broker import CONNECTOR, broker, jars
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with Delta and the Kafka connector, as small as it can be."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # The workers import the tests' process functions.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    connector = ",".join(jars(CONNECTOR, tmp_path_factory.mktemp("connector")))
    start = configure_spark_with_delta_pip(builder()).config("spark.jars", connector)
    session = start.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The ``kafka.bootstrap.servers`` of a broker."""
    with broker(tmp_path_factory.mktemp("kafka")) as servers:
        yield servers


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


def builder() -> SparkSession.Builder:
    """The conf of every session that the tests start, also in other processes."""
    conf = {
        "spark.master": "local[2]",
        "spark.driver.memory": "3g",
        # Tests are short: the optimising compiler would take its time from them.
        "spark.driver.extraJavaOptions": (
            "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=200m -XX:+UseSerialGC"
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        # Without Hadoop's native library the defaults start two processes for each file's rename.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing."
            "FileSystemBasedCheckpointFileManager"
        ),
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
