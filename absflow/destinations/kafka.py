"""A topic of Kafka, written in transactions that hold the lane's marker, too.

The markers are records of a compacted topic beside the topic, by the name of the lane. A lane is a
transactional id: whoever opens it makes the broker abort, or finish, what the one before had under
way, and refuse all else of that one. So nothing must be resumed after a crash, and no transaction
is open for longer than a task writes the rows of one (Kafka Connect's source connectors and
Materialize keep their progress in this way; Flink resumes transactions instead, and loses rows if
it comes back too late).
"""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from pyspark.sql import SparkSession

from absflow.destinations.kafka_records import RecordColumns
from absflow.errors import FencedError, GraphError, StorageError
from absflow.transactional import Lane, TransactionalSink

__all__ = ["KafkaSink"]

# The broker aborts what is open for longer.
_TRANSACTION_S = 60
# A call to the broker is repeated for so long while it says that it may succeed.
_PATIENCE_S = 90
_ANSWER_S = 30
# Of the topic of markers; more would change nothing, so that it never has to.
_PARTITIONS = 16
_QUEUED = 200_000
# What a lane decides, or the guarantee rests on.
_OURS = {
    "acks",
    "bootstrap.servers",
    "enable.idempotence",
    "enable.gapless.guarantee",
    "group.id",
    "isolation.level",
    "transactional.id",
    "transaction.timeout.ms",
}
_PARTITIONERS = ("murmur2", "murmur2_random")
_RIGHTS = "WRITE and DESCRIBE on transactional ids that begin with absflow-"
# For so long a topic may not be seen that was made just now.
_MADE_S = 5
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


@dataclass(frozen=True)
class KafkaSink(TransactionalSink):
    """Writes rows to a topic of Kafka, each exactly once for who reads ``read_committed``.

    The rows of a key of the stage are in the topic in the order in which they were emitted. Records
    go to the partitions to which Java's clients send keys.

    Attributes:
        servers: ``host:port``, several with commas.
        topic: the topic; it must be there.
        key: the column that is the record's key, text or bytes; without, records have none.
        value: the column that is its value, text or bytes; without, the value is a JSON object of
            all columns but those below.
        headers: a column of type ``map<string, string>`` or ``map<string, binary>``.
        partition: a column of integers: the partition.
        timestamp: a column of timestamps: the record's.
        lanes: by so many tasks are rows published at a time. With more than one, a checkpoint
            becomes visible lane by lane.
        progress: the topic of the markers; ``<topic>-absflow`` if it is not given. It is made if it
            is not there.
        conf: more options of librdkafka, as ``security.protocol`` and passwords; never shown.
        transaction_bytes: as of :class:`absflow.TransactionalSink`.
    """

    servers: str
    topic: str
    key: str | None = None
    value: str | None = None
    headers: str | None = None
    partition: str | None = None
    timestamp: str | None = None
    lanes: int = 1
    progress: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    transaction_bytes: int | None = 16 << 20
    packages: ClassVar[tuple[str, ...]] = ("confluent-kafka", "orjson")

    @property
    def _columns(self) -> RecordColumns:
        return RecordColumns(self.key, self.value, self.headers, self.partition, self.timestamp)

    @property
    def progress_topic(self) -> str:
        """The topic of the markers."""
        return self.progress or f"{self.topic}-absflow"

    def check(self, name: str, schema: pa.Schema) -> None:
        """Refuse columns that no record takes, and options that would break the guarantee."""
        self._columns.check(name, schema)
        for option in sorted(_OURS & self.conf.keys()):
            raise GraphError(
                f"sink {name!r}: conf has {option!r}, which absflow sets; leave it out"
            )
        partitioner = self.conf.get("partitioner", _PARTITIONERS[0])
        if partitioner not in _PARTITIONERS:
            raise GraphError(
                f"sink {name!r}: conf has partitioner {partitioner!r}, which sends keys to other "
                f"partitions than Java's clients; must be one of {list(_PARTITIONERS)}"
            )

    def prepare(self, spark: SparkSession, schema: pa.Schema) -> None:
        """See that the topic is there; make that of the markers.

        Raises:
            GraphError: there is no such topic, or that of the markers is not as it must be.
            KafkaException: the brokers do not answer, or forbid it.
        """
        admin = AdminClient(self._client())
        there = _seen(admin, self.topic, _MADE_S)
        if self.topic not in there.topics:
            raise GraphError(
                f"{self.describe()}: there is no such topic that this user sees; make it first"
            )
        if self.progress_topic not in there.topics:
            self._make_progress(admin, min(3, len(there.brokers)))
            there = _seen(admin, self.progress_topic, _ANSWER_S)
        self._check_rights(admin)
        self._check_progress(admin, len(there.topics[self.progress_topic].partitions))
        broker = ConfigResource(ResourceType.BROKER, str(next(iter(there.brokers))))
        most = int(_described(admin, broker).get("transaction.max.timeout.ms") or 900_000)
        if most < _TRANSACTION_S * 1000:
            raise GraphError(
                f"{self.describe()}: the brokers have transaction.max.timeout.ms={most}, must be "
                f"{_TRANSACTION_S * 1000} at least"
            )

    def describe(self) -> str:
        """The topic, and the brokers."""
        return f"topic {self.topic!r} of {self.servers}"

    def marker(self, lane: str) -> str | None:
        """The marker of a lane; None if there is none."""
        return _read_marker(self._client(), self.progress_topic, lane)

    def open(self, lane: str) -> Lane:
        """Open a lane: a producer with its transactional id."""
        return _KafkaLane(self, lane)

    def _client(self) -> dict[str, Any]:
        return {**self.conf, "bootstrap.servers": self.servers, "log_level": 3}

    def _make_progress(self, admin: AdminClient, replicas: int) -> None:
        config = {"cleanup.policy": "compact"}
        topic = NewTopic(self.progress_topic, _PARTITIONS, replicas, config=config)
        (made,) = admin.create_topics([topic]).values()
        try:
            made.result(_ANSWER_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _check_rights(self, admin: AdminClient) -> None:
        """Of transactional ids the brokers say nothing; the job's first claim of its lanes does."""
        wanted = {
            self.topic: {AclOperation.WRITE},
            self.progress_topic: {AclOperation.WRITE, AclOperation.READ},
        }
        topics = TopicCollection([*wanted])
        for name, asked in admin.describe_topics(
            topics, include_authorized_operations=True
        ).items():
            allowed = asked.result(_ANSWER_S).authorized_operations
            # Nothing is said where everybody may do everything.
            lacking = sorted(of.name for of in wanted[name] - {*allowed}) if allowed else []
            if lacking:
                raise GraphError(
                    f"topic {name!r} of {self.servers}: this user has no right to "
                    f"{' and '.join(lacking)}; give it that, and {_RIGHTS}"
                )

    def _check_progress(self, admin: AdminClient, partitions: int) -> None:
        found = _described(admin, ConfigResource(ResourceType.TOPIC, self.progress_topic))
        policy = found.get("cleanup.policy")
        if policy != "compact" or partitions < _PARTITIONS:
            raise GraphError(
                f"topic {self.progress_topic!r} has cleanup.policy={policy} and {partitions} "
                f"partitions; what absflow keeps there needs cleanup.policy=compact, or it would "
                f"be deleted, and {_PARTITIONS} partitions. Delete the topic, or name another one "
                "by progress="
            )


class _KafkaLane:
    """A lane that this process has opened last."""

    def __init__(self, sink: KafkaSink, lane: str) -> None:
        self._sink = sink
        self._lane = lane
        self._open = False
        self._producer = Producer(
            {
                "partitioner": "murmur2_random",
                "linger.ms": 20,
                "queue.buffering.max.messages": 2 * _QUEUED,
                **sink._client(),
                "transactional.id": lane,
                "transaction.timeout.ms": _TRANSACTION_S * 1000,
            }
        )
        self._try(lambda: self._producer.init_transactions(_ANSWER_S))

    def marker(self) -> str | None:
        return _read_marker(self._sink._client(), self._sink.progress_topic, self._lane)

    def begin(self) -> None:
        self._producer.begin_transaction()
        self._open = True

    def write(self, rows: pa.RecordBatch) -> None:
        sink, producer = self._sink, self._producer
        while len(producer) + rows.num_rows > _QUEUED and len(producer):
            producer.poll(0.01)
        columns = sink._columns
        records = columns.records(rows)
        if columns.plain:
            producer.produce_batch(sink.topic, records)
            failed = next((at for at, record in enumerate(records) if "_error" in record), None)
            if failed is not None:
                raise self._refused(rows, failed, records[failed]["_error"])
        else:
            for at, record in enumerate(records):
                try:
                    producer.produce(sink.topic, **record)
                except KafkaException as error:
                    raise self._refused(rows, at, error) from error
        producer.poll(0)

    def commit(self, marker: str) -> None:
        topic, partition = self._sink.progress_topic, _partition(self._lane)
        self._try(lambda: self._producer.produce(topic, marker, self._lane, partition))
        self._try(lambda: self._producer.commit_transaction(_ANSWER_S))
        self._open = False

    def close(self) -> None:
        if self._open:  # else the broker would hold readers up until it times out
            with suppress(KafkaException):
                self._producer.purge()
                self._producer.abort_transaction(_ANSWER_S)
        # Not by its close(), which waits for a broker that is gone for ever.
        with suppress(KafkaException):
            self._producer.purge(blocking=False)
        del self._producer

    def _refused(self, rows: pa.RecordBatch, at: int, error: object) -> StorageError:
        row = rows.slice(at, 1).to_pylist()[0]
        return StorageError(f"{self._sink.describe()} does not take the row {row!r}: {error}")

    def _try(self, call: Callable[[], object]) -> None:
        """Call; errors as of :func:`_patiently`, and a FencedError if the lane was opened since."""
        try:
            _patiently(self._sink.describe(), call)
        except FencedError:
            self._open = False
            raise


_T = TypeVar("_T")


def _patiently(place: str, call: Callable[[], _T]) -> _T:
    """Call, and again for as long as the broker may still say yes.

    Raises:
        FencedError: somebody has opened the lane since.
        StorageError: it said no.
    """
    end = time.monotonic() + _PATIENCE_S
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


def _partition(lane: str) -> int:
    """Where the marker of a lane is."""
    return zlib.crc32(lane.encode()) % _PARTITIONS


def _read_marker(client: Mapping[str, Any], topic: str, lane: str) -> str | None:
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
    at = TopicPartition(topic, _partition(lane))
    with closing(Consumer({**common, "isolation.level": "read_uncommitted"})) as consumer:
        begin, end = _patiently(
            f"topic {topic!r}",
            partial(consumer.get_watermark_offsets, at, _ANSWER_S, cached=False),
        )
    if begin >= end:
        return None
    newest: str | None = None
    deadline = time.monotonic() + _TRANSACTION_S + _PATIENCE_S
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


def _seen(admin: AdminClient, topic: str, wait_s: float) -> ClusterMetadata:
    """The cluster, once it knows a topic, which may just have been made, or after some time."""
    end = time.monotonic() + wait_s
    while True:
        there = admin.list_topics(timeout=_ANSWER_S)
        if topic in there.topics or time.monotonic() > end:
            return there
        time.sleep(0.2)


def _described(admin: AdminClient, resource: ConfigResource) -> dict[str, str | None]:
    (found,) = admin.describe_configs([resource]).values()
    return {name: entry.value for name, entry in found.result(_ANSWER_S).items()}
