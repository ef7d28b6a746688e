"""What a Kafka cluster still holds of a source, asked through the classes of Spark's connector."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from absflow.errors import StorageError

__all__ = ["Offsets", "admin_client", "available_offsets", "partitions_in"]

_PREFIX = "kafka."


class Offsets(NamedTuple):
    """What can be read of one topic-partition: ``earliest <= offset <= latest``."""

    earliest: int
    latest: int


def available_offsets(
    spark: SparkSession, options: Mapping[str, str], position: str
) -> dict[tuple[str, int], Offsets]:
    """The offsets that can be read now, by (topic, partition) of a recorded position.

    Args:
        spark: a session with Spark's Kafka connector.
        options: the source's, by name in lower case.
        position: the source's line in Spark's offset log, ``{"topic":{"0":17}}``.

    Returns:
        One entry for each topic-partition that is still there.

    Raises:
        StorageError: the cluster cannot be asked.
    """
    jvm: Any = spark.sparkContext._jvm
    admin = admin_client(spark, options)
    try:
        wanted = [
            (topic, int(partition))
            for topic, partitions in json.loads(position).items()
            for partition in partitions
        ]
        there = _partitions(admin, jvm, {topic for topic, _ in wanted})
        found = [pair for pair in wanted if pair in there]
        earliest, latest = (
            _list_offsets(admin, jvm, found, spec)
            for spec in (
                jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest(),
                jvm.org.apache.kafka.clients.admin.OffsetSpec.latest(),
            )
        )
        return {pair: Offsets(earliest[pair], latest[pair]) for pair in found}
    except Py4JJavaError as error:
        raise StorageError(
            f"could not ask Kafka at {options.get('kafka.bootstrap.servers')!r} for its offsets: "
            f"{error.java_exception.toString()}"
        ) from error
    finally:
        admin.close()


def partitions_in(position: str) -> list[str]:
    """The topic-partitions of a recorded position, as ``topic/partition``."""
    return [
        f"{topic}/{partition}"
        for topic, partitions in json.loads(position).items()
        for partition in partitions
    ]


def admin_client(spark: SparkSession, options: Mapping[str, str]) -> Any:
    """Kafka's ``AdminClient`` with a source's own settings, and Spark's token if it has one.

    The caller closes it.
    """
    jvm: Any = spark.sparkContext._jvm
    given = jvm.java.util.HashMap()
    for name, value in options.items():
        if name.startswith(_PREFIX):
            given.put(name.removeprefix(_PREFIX), value)
    settings = jvm.org.apache.spark.kafka010.KafkaConfigUpdater(
        "absflow", jvm.PythonUtils.toScalaMap(given)
    )
    return jvm.org.apache.kafka.clients.admin.AdminClient.create(
        settings.setAuthenticationConfigIfNeeded().build()
    )


def _partitions(admin: Any, jvm: Any, topics: set[str]) -> set[tuple[str, int]]:
    """Which topic-partitions these topics have; a topic that is gone has none."""
    names = admin.listTopics().names().get()
    asked = jvm.java.util.ArrayList()
    for topic in topics:
        if names.contains(topic):
            asked.add(topic)
    described = admin.describeTopics(asked).allTopicNames().get()
    return {
        (topic, partition.partition())
        for topic in described
        for partition in described[topic].partitions()
    }


def _list_offsets(
    admin: Any, jvm: Any, partitions: list[tuple[str, int]], spec: Any
) -> dict[tuple[str, int], int]:
    asked = jvm.java.util.HashMap()
    for topic, number in partitions:
        asked.put(jvm.org.apache.kafka.common.TopicPartition(topic, number), spec)
    answer = admin.listOffsets(asked).all().get()
    return {(key.topic(), key.partition()): answer[key].offset() for key in answer}
