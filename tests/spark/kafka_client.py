"""A client of Kafka for the tests: topics are made, and what a reader sees is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType

import pandas as pd
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

__all__ = ["consumed", "frame_of", "make_topic", "topic_name"]

_WAIT_S = 60


def topic_name(name: str) -> str:
    """The name of a topic for something that has this name, as far as it can be."""
    return "".join(c if c.isalnum() else "-" for c in name)


def frame_of(records: Iterable[Message], columns: Sequence[str]) -> pd.DataFrame:
    """The values of records that are JSON objects, as rows."""
    return pd.DataFrame([json.loads(record.value()) for record in records], columns=columns)


def make_topic(
    servers: str,
    name: str,
    partitions: int = 3,
    client: Mapping[str, str] = MappingProxyType({}),
    **config: str,
) -> None:
    """Make a topic on the only broker; ``client`` is more of the client's conf."""
    admin = AdminClient({**client, "bootstrap.servers": servers})
    (made,) = admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values()
    made.result(_WAIT_S)


def consumed(
    servers: str,
    topic: str,
    level: str = "read_committed",
    client: Mapping[str, str] = MappingProxyType({}),
) -> list[Message]:
    """The records of a topic, partition by partition; ``client`` as of :func:`make_topic`."""
    conf = {
        **client,
        "bootstrap.servers": servers,
        "group.id": "test",
        "isolation.level": level,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    }
    found = []
    with closing(Consumer(conf)) as consumer:
        partitions = consumer.list_topics(topic, _WAIT_S).topics[topic].partitions
        for number in partitions:
            consumer.assign([TopicPartition(topic, number, 0)])
            while (record := consumer.poll(_WAIT_S)).error() is None:
                found.append(record)
            assert record.error().code() == KafkaError._PARTITION_EOF, record.error()
    return found
