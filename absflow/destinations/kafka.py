"""A topic of Kafka, written in transactions that hold the lane's marker, too.

The markers are records of a compacted topic beside the topic, by the name of the lane. A lane is a
transactional id: whoever opens it makes the broker abort, or finish, what the one before had under
way, and refuse all else of that one. So nothing must be resumed after a crash, and no transaction
is open for longer than a task writes the rows of one (Kafka Connect's source connectors and
Materialize keep their progress in this way; Flink resumes transactions instead, and loses rows if
it comes back too late).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from pyspark.sql import SparkSession

from absflow.destinations.kafka_batches import KafkaBatches
from absflow.destinations.kafka_markers import (
    ANSWER_S,
    PARTITIONS,
    TRANSACTION_S,
    a_producer,
    patiently,
    place_of,
    read_marker,
)
from absflow.destinations.kafka_records import RecordColumns, json_values
from absflow.errors import FencedError, GraphError, StorageError, VersionError
from absflow.sinks import Sink
from absflow.transactional import Lane, TransactionalSink

if TYPE_CHECKING:
    from absflow.destinations.avro import Registry

__all__ = ["KafkaSink"]

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


@dataclass(frozen=True)
class KafkaSink(TransactionalSink):
    """Writes rows to a topic of Kafka, each exactly once for who reads ``read_committed``.

    The rows of a key of the stage are in the topic in the order in which they were emitted. Records
    go to the partitions to which Java's clients send keys.

    Attributes:
        servers: ``host:port``, several with commas.
        topic: the topic; it must be there.
        key: the column that is the record's key, text or bytes; without, records have none.
        value: the column that is its value, text or bytes; without, the value is made of all
            columns but those below: a JSON object, or a record of Avro if there is a registry.
        headers: a column of type ``map<string, string>`` or ``map<string, binary>``.
        partition: a column of integers: the partition.
        timestamp: a column of timestamps: the record's.
        lanes: by so many tasks are rows published at a time. With more than one, a checkpoint
            becomes visible lane by lane; a record in the topic of the markers says when all
            have it.
        progress: the topic of the markers; ``<topic>-absflow`` if it is not given. It is made if it
            is not there.
        conf: more options of librdkafka, as ``security.protocol`` and passwords; never shown.
        registry: the URL of a schema registry with Confluent's interface (``absflow[avro]``); its
            subject is ``<topic>-value``.
        registry_conf: more options of its client, as ``basic.auth.user.info``; never shown.
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
    registry: str | None = None
    registry_conf: Mapping[str, Any] = field(default_factory=dict, repr=False)
    transaction_bytes: int | None = 16 << 20

    @property
    def packages(self) -> tuple[str, ...]:
        """What executors must have installed."""
        avro = () if self.registry is None else ("fastavro",)
        return ("confluent-kafka", "orjson", *avro)

    @property
    def columns(self) -> RecordColumns:
        """What of a row is what of a record."""
        registry = self._registry
        values = json_values if registry is None else registry.values
        parts = self.key, self.value, self.headers, self.partition, self.timestamp
        return RecordColumns(*parts, values)

    @property
    def _registry(self) -> Registry | None:
        if self.registry is None:
            return None
        try:
            from absflow.destinations.avro import Registry
        except ModuleNotFoundError as error:
            raise VersionError(
                f"a KafkaSink with a registry needs {error.name}, which is not installed: "
                "pip install 'absflow[avro]'"
            ) from error
        return Registry(self.registry, self.registry_conf, f"{self.topic}-value")

    @property
    def progress_topic(self) -> str:
        """The topic of the markers."""
        return self.progress or f"{self.topic}-absflow"

    def check(self, name: str, schema: pa.Schema) -> None:
        """Refuse columns that no record takes, and options that would break the guarantee."""
        self.columns.check(name, schema)
        if self.registry is not None and self.value is not None:
            raise GraphError(
                f"sink {name!r}: it has value={self.value!r} and a registry; a value is one or "
                "the other, so leave one out"
            )
        if (registry := self._registry) is not None:
            registry.check(self.columns.in_value(schema))
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
            GraphError: as of :meth:`prepare_topic`; that of the markers is not as it must be.
            StorageError: the brokers do not answer, or forbid it.
        """
        with self._asking() as admin:
            self._prepare_topics(admin, schema)

    def _prepare_topics(self, admin: AdminClient, schema: pa.Schema) -> None:
        there = self._prepare_topic(admin, schema)
        if self.progress_topic not in there.topics:
            self._make_progress(admin, min(3, len(there.brokers)))
            there = _seen(admin, self.progress_topic, ANSWER_S)
        self._check_rights(admin, self.progress_topic, AclOperation.WRITE, AclOperation.READ)
        self._check_progress(admin, len(there.topics[self.progress_topic].partitions))
        broker = ConfigResource(ResourceType.BROKER, str(next(iter(there.brokers))))
        most = int(_described(admin, broker).get("transaction.max.timeout.ms") or 900_000)
        if most < TRANSACTION_S * 1000:
            raise GraphError(
                f"{self.describe()}: the brokers have transaction.max.timeout.ms={most}, must be "
                f"{TRANSACTION_S * 1000} at least"
            )

    def prepare_topic(self, schema: pa.Schema) -> None:
        """See that the topic is there, and that its subject takes rows of this schema.

        Raises:
            GraphError: no such topic, no right to write to it, or the registry does not take it.
            StorageError: the registry or the brokers do not answer, or forbid it.
        """
        with self._asking() as admin:
            self._prepare_topic(admin, schema)

    @contextmanager
    def _asking(self) -> Iterator[AdminClient]:
        """A client for the time of a block; why brokers refuse what it asks is said in one line.

        Raises:
            StorageError: they do, or do not answer.
        """
        # The answer to a call says little; why there is none comes this way, as a wrong password.
        seen: list[KafkaError] = []
        conf: dict[str, Any] = {**self._client(), "error_cb": seen.append}
        admin = AdminClient(conf)
        try:
            yield admin
        except KafkaException as error:
            admin.poll(0)
            reasons = [*dict.fromkeys(each.str() for each in (*seen, error.args[0]))]
            raise StorageError(
                f"{self.describe()}: {'; '.join(reasons)}. See that the brokers are up and that "
                "the sink's conf lets it in"
            ) from error

    def _prepare_topic(self, admin: AdminClient, schema: pa.Schema) -> ClusterMetadata:
        there = _seen(admin, self.topic, _MADE_S)
        if self.topic not in there.topics:
            raise GraphError(
                f"{self.describe()}: there is no such topic that this user sees; make it first"
            )
        self._check_rights(admin, self.topic, AclOperation.WRITE)
        if (registry := self._registry) is not None:
            registry.register(self.columns.in_value(schema))
        return there

    def immediate(self, name: str) -> Sink:
        """As a sink that each micro-batch writes at once: at least once."""
        return KafkaBatches(self)

    def producer_conf(self) -> dict[str, Any]:
        """What producers of any mode have in common."""
        return {"partitioner": "murmur2_random", "linger.ms": 20, **self._client()}

    def describe(self) -> str:
        """The topic, and the brokers."""
        return f"topic {self.topic!r} of {self.servers}"

    def marker(self, lane: str) -> str | None:
        """The marker of a lane; None if there is none."""
        return read_marker(self._client(), self.progress_topic, lane)

    def open(self, lane: str) -> Lane:
        """Open a lane: a producer with its transactional id."""
        return _KafkaLane(self, lane)

    def complete(self, lanes: Sequence[str], attempt: int, checkpoint_id: int) -> None:
        """With several lanes, a record in the topic of markers; its key is that of all lanes."""
        if len(lanes) == 1:
            return
        key = lanes[0].rpartition("-")[0]
        text = json.dumps({"attempt": attempt, "complete": checkpoint_id})
        with a_producer(self.producer_conf()) as producer:
            producer.produce(self.progress_topic, text, key, place_of(key))
            if producer.flush(ANSWER_S):
                raise StorageError(f"topic {self.progress_topic!r} took no record in {ANSWER_S} s")

    def _client(self) -> dict[str, Any]:
        return {**self.conf, "bootstrap.servers": self.servers, "log_level": 3}

    def _make_progress(self, admin: AdminClient, replicas: int) -> None:
        config = {"cleanup.policy": "compact"}
        topic = NewTopic(self.progress_topic, PARTITIONS, replicas, config=config)
        (made,) = admin.create_topics([topic]).values()
        try:
            made.result(ANSWER_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _check_rights(self, admin: AdminClient, topic: str, *wanted: AclOperation) -> None:
        """Of transactional ids the brokers say nothing; the job's first claim of its lanes does."""
        (asked,) = admin.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True
        ).values()
        allowed = asked.result(ANSWER_S).authorized_operations
        # Nothing is said where everybody may do everything.
        lacking = sorted(of.name for of in {*wanted} - {*allowed}) if allowed else []
        if lacking:
            raise GraphError(
                f"topic {topic!r} of {self.servers}: this user has no right to "
                f"{' and '.join(lacking)}; give it that, and {_RIGHTS}"
            )

    def _check_progress(self, admin: AdminClient, partitions: int) -> None:
        found = _described(admin, ConfigResource(ResourceType.TOPIC, self.progress_topic))
        policy = found.get("cleanup.policy")
        if policy != "compact" or partitions < PARTITIONS:
            raise GraphError(
                f"topic {self.progress_topic!r} has cleanup.policy={policy} and {partitions} "
                f"partitions; what absflow keeps there needs cleanup.policy=compact, or it would "
                f"be deleted, and {PARTITIONS} partitions. Delete the topic, or name another one "
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
                "queue.buffering.max.messages": 2 * _QUEUED,
                **sink.producer_conf(),
                "transactional.id": lane,
                "transaction.timeout.ms": TRANSACTION_S * 1000,
            }
        )
        self._try(lambda: self._producer.init_transactions(ANSWER_S))

    def marker(self) -> str | None:
        return read_marker(self._sink._client(), self._sink.progress_topic, self._lane)

    def begin(self) -> None:
        self._producer.begin_transaction()
        self._open = True

    def write(self, rows: pa.RecordBatch) -> None:
        sink, producer = self._sink, self._producer
        while len(producer) + rows.num_rows > _QUEUED and len(producer):
            producer.poll(0.01)
        columns = sink.columns
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
        topic, partition = self._sink.progress_topic, place_of(self._lane)
        self._try(lambda: self._producer.produce(topic, marker, self._lane, partition))
        self._try(lambda: self._producer.commit_transaction(ANSWER_S))
        self._open = False

    def close(self) -> None:
        if self._open:  # else the broker would hold readers up until it times out
            with suppress(KafkaException):
                self._producer.purge()
                self._producer.abort_transaction(ANSWER_S)
        # Not by its close(), which waits for a broker that is gone for ever.
        with suppress(KafkaException):
            self._producer.purge(blocking=False)
        del self._producer

    def _refused(self, rows: pa.RecordBatch, at: int, error: object) -> StorageError:
        row = rows.slice(at, 1).to_pylist()[0]
        return StorageError(f"{self._sink.describe()} does not take the row {row!r}: {error}")

    def _try(self, call: Callable[[], object]) -> None:
        """Call; errors as of :func:`patiently`, and a FencedError if the lane was opened since."""
        try:
            patiently(self._sink.describe(), call)
        except FencedError:
            self._open = False
            raise


def _seen(admin: AdminClient, topic: str, wait_s: float) -> ClusterMetadata:
    """The cluster, once it knows a topic, which may just have been made, or after some time."""
    end = time.monotonic() + wait_s
    while True:
        there = admin.list_topics(timeout=ANSWER_S)
        if topic in there.topics or time.monotonic() > end:
            return there
        time.sleep(0.2)


def _described(admin: AdminClient, resource: ConfigResource) -> dict[str, str | None]:
    (found,) = admin.describe_configs([resource]).values()
    return {name: entry.value for name, entry in found.result(ANSWER_S).items()}
