"""A topic of Kafka that each micro-batch writes at once: **at least once**, and headers show it.

A micro-batch that failed runs again, and writes again. A record has the same headers then, and
those of one task go up within a partition of the topic: by attempt, batch, epoch and number. So a
consumer that cares leaves out what does not go on where the lane had been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from confluent_kafka import KafkaException, Producer
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.destinations.kafka_markers import PATIENCE_S, a_producer
from absflow.destinations.kafka_records import RecordColumns
from absflow.errors import StorageError
from absflow.sinks import SinkCut, SinkPublication, SinkRestore, SinkWrite
from absflow.spark.worker.any_names import map_in_arrow
from absflow.spark.worker.stage_call import freeze_loaded_modules

__all__ = ["KafkaBatches"]

_QUEUED = 100_000
_WRITTEN = pa.schema([pa.field("rows", pa.int64())])


class Topic(Protocol):
    """What is written: a :class:`~absflow.KafkaSink`."""

    @property
    def topic(self) -> str:
        """Its name."""

    @property
    def packages(self) -> tuple[str, ...]:
        """What executors must have installed."""

    @property
    def columns(self) -> RecordColumns:
        """What of a row is what of a record."""

    def check(self, name: str, schema: pa.Schema) -> None:
        """Refuse columns that no record takes."""

    def prepare_topic(self, schema: pa.Schema) -> None:
        """Refuse to begin where it cannot be written."""

    def producer_conf(self) -> dict[str, Any]:
        """What producers have in common."""

    def describe(self) -> str:
        """Where rows go, for people."""


@dataclass(frozen=True)
class KafkaBatches:
    """A :class:`~absflow.KafkaSink` in the mode ``immediate``.

    Attributes:
        to: the topic, and what of a row is what of a record.
    """

    to: Topic
    reads_all: ClassVar[bool] = True

    @property
    def packages(self) -> tuple[str, ...]:
        """What executors must have installed."""
        return self.to.packages

    def check(self, name: str, schema: pa.Schema) -> None:
        """Of :class:`~absflow.sinks.ChecksColumns`."""
        self.to.check(name, schema)

    def prepare(self, spark: SparkSession, schema: pa.Schema) -> None:
        """See that the topic is there, and takes rows of this schema from this user."""
        self.to.prepare_topic(schema)

    def write(self, rows: DataFrame, made: SinkWrite | SinkPublication) -> None:
        """Write, and return once the brokers have all rows.

        Raises:
            StorageError: they do not take one.
        """
        assert isinstance(made, SinkWrite)
        function = _write_function(self.to, made)
        map_in_arrow(rows, function, from_arrow_schema(_WRITTEN)).collect()

    def position(self, spark: SparkSession) -> tuple[str, int | None]:
        """Nothing is known of a topic's versions."""
        return "", None

    def plan_restore(self, spark: SparkSession, cut: SinkCut) -> SinkRestore:
        """A topic takes nothing back."""
        return SinkRestore(
            "",
            note=f"what was written after checkpoint {cut.checkpoint_id} stays in "
            f"{self.to.describe()} (absflow-epoch > {cut.checkpoint_id}), and is written again, "
            "with another absflow-attempt",
        )

    def restore(self, spark: SparkSession, planned: SinkRestore, note: Mapping[str, Any]) -> None:
        """Nothing can be done."""


def _write_function(
    sink: Topic, made: SinkWrite
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: writes a partition, and says how many rows it had."""
    columns = sink.columns
    common = [
        ("absflow-attempt", str(made.attempt).encode()),
        ("absflow-batch", str(made.batch_id).encode()),
        ("absflow-epoch", str(made.epoch).encode()),
    ]

    def write_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded_modules()
        context = TaskContext.get()
        assert context is not None
        lane = ("absflow-lane", f"{made.stage}-{context.partitionId()}".encode())
        number = 0
        with a_producer(sink.producer_conf()) as producer:
            records = _Records(sink, producer)
            for rows in batches:
                for record in columns.records(rows):
                    own = ("absflow-seq", str(number).encode())
                    headers = [*(record.pop("headers", None) or ()), lane, *common, own]
                    records.add({**record, "headers": headers})
                    number += 1
            records.await_all()
        yield pa.RecordBatch.from_arrays([pa.array([number], pa.int64())], schema=_WRITTEN)

    return write_partition


class _Records:
    """Records on their way to the topic."""

    def __init__(self, sink: Topic, producer: Producer) -> None:
        self._sink = sink
        self._producer = producer
        self._failed: list[str] = []

    def add(self, record: Mapping[str, Any]) -> None:
        while len(self._producer) >= _QUEUED:
            self._producer.poll(0.01)
        try:
            self._producer.produce(self._sink.topic, on_delivery=self._told, **record)
        except KafkaException as error:
            raise StorageError(
                f"{self._sink.describe()} does not take the record {record!r}: {error}"
            ) from error
        self._producer.poll(0)
        self._check()

    def await_all(self) -> None:
        left = self._producer.flush(PATIENCE_S)
        self._check()
        if left:
            raise StorageError(
                f"{self._sink.describe()}: {left} records were not taken in {PATIENCE_S} s"
            )

    def _told(self, error: object, _record: object) -> None:
        if error is not None:
            self._failed.append(str(error))

    def _check(self) -> None:
        if self._failed:
            raise StorageError(f"{self._sink.describe()} does not take a record: {self._failed[0]}")
