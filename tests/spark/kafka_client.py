"""A client of Kafka for the tests: topics are made, and what a reader sees is read."""

from __future__ import annotations

from contextlib import closing

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

__all__ = ["consumed", "make_topic"]

_WAIT_S = 60


def make_topic(servers: str, name: str, partitions: int = 3, **config: str) -> None:
    """Make a topic on the only broker."""
    admin = AdminClient({"bootstrap.servers": servers})
    (made,) = admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values()
    made.result(_WAIT_S)


def consumed(servers: str, topic: str, level: str = "read_committed") -> list[Message]:
    """The records of a topic, partition by partition."""
    conf = {
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
