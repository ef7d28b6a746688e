"""One Spark session for all tests of this folder, and one broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from appends import create
from kafka_broker import CONNECTOR, broker, jars
from pyspark.sql import SparkSession
from session import builder, with_delta


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with Delta and the Kafka connector, as small as it can be."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # The workers import the tests' process functions.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    connector = ",".join(jars(CONNECTOR, tmp_path_factory.mktemp("connector")))
    start = with_delta(builder()).config("spark.jars", connector)
    session = start.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The ``kafka.bootstrap.servers`` of a broker."""
    with broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running.servers


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> str:
    """An empty table, partitioned by ``p``, with a checkpoint of its log after every 3 commits."""
    path = str(tmp_path / "table")
    create(spark, path)
    return path
