"""What of a lane lies in Kafka: its marker, a record of the compacted topic of markers."""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from absflow.errors import FencedError, StorageError

__all__ = [
    "ANSWER_S",
    "PARTITIONS",
    "PATIENCE_S",
    "TRANSACTION_S",
    "a_producer",
    "patiently",
    "place_of",
    "read_marker",
]

# The broker aborts what is open for longer.
TRANSACTION_S = 60
# A call to the broker is repeated for so long while it says that it may succeed.
PATIENCE_S = 90
ANSWER_S = 30
# Of the topic of markers; more would change nothing, so that it never has to.
PARTITIONS = 16
# What brokers say that have not learnt of a topic yet, or of its new leader.
_LATER = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
}
_FENCED = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
}

_T = TypeVar("_T")


def patiently(place: str, call: Callable[[], _T]) -> _T:
    """Call, and again for as long as the broker may still say yes.

    Raises:
        FencedError: somebody has opened the lane since.
        StorageError: it said no.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except KafkaException as error:
            said = error.args[0]
            if said.code() in _FENCED:
                raise FencedError(f"{place}: another task has opened the lane since") from error
            later = said.retriable() or said.code() in _LATER
            if not later or time.monotonic() > end:
                raise StorageError(f"{place}: {said.str()}") from error
            time.sleep(0.05)


@contextmanager
def a_producer(conf: Mapping[str, Any]) -> Iterator[Producer]:
    """A producer without transactions for the time of a block; what is left then is dropped.

    Not by its close(), which waits for a broker that is gone for ever.
    """
    made = Producer({**conf, "enable.idempotence": True})
    try:
        yield made
    finally:
        with suppress(KafkaException):
            made.purge(blocking=False)


def place_of(lane: str) -> int:
    """Where the marker of a lane is."""
    return zlib.crc32(lane.encode()) % PARTITIONS


def read_marker(client: Mapping[str, Any], topic: str, lane: str) -> str | None:
    """The newest committed record of the lane.

    Up to what the partition had when this began, committed or not, for a transaction of the lane
    that ends now would be missed otherwise. Transactions of other lanes hold this up until they
    end.

    Raises:
        StorageError: they did not end for longer than a transaction may be open.
    """
    common = {
        **client,
        "group.id": f"absflow-{uuid.uuid4().hex}",  # which is never used
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 20,
    }
    at = TopicPartition(topic, place_of(lane))
    with closing(Consumer({**common, "isolation.level": "read_uncommitted"})) as consumer:
        begin, end = patiently(
            f"topic {topic!r}",
            partial(consumer.get_watermark_offsets, at, ANSWER_S, cached=False),
        )
    if begin >= end:
        return None
    newest: str | None = None
    deadline = time.monotonic() + TRANSACTION_S + PATIENCE_S
    with closing(Consumer({**common, "isolation.level": "read_committed"})) as consumer:
        consumer.assign([TopicPartition(topic, at.partition, begin)])
        while time.monotonic() < deadline:
            record = consumer.poll(1.0)
            if record is None:
                continue
            error, offset = record.error(), record.offset()
            assert offset is not None
            if error is None:
                if record.key() == lane.encode():
                    text = record.value()
                    newest = None if text is None else text.decode()
                offset += 1
            elif error.code() != KafkaError._PARTITION_EOF:
                raise StorageError(f"topic {topic!r}: {error.str()}")
            if offset >= end:
                return newest
    raise StorageError(
        f"the marker of lane {lane!r} could not be read: a transaction in topic {topic!r} does not "
        "end"
    )
