"""Topics of a test's broker, through the Kafka classes in Spark's JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.java_gateway import JavaMember
from py4j.protocol import STATIC_PREFIX
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from absflow.spark.sources.kafka import admin_client

PARTITIONS = 3


@contextmanager
def admin(spark: SparkSession, servers: str) -> Iterator[Any]:
    """A client for what only a client can do."""
    client = admin_client(spark, {"kafka.bootstrap.servers": servers})
    try:
        yield client
    finally:
        client.close()


def create(spark: SparkSession, servers: str, *topics: str) -> None:
    """Create topics of three partitions."""
    jvm: Any = spark.sparkContext._jvm
    new, optional = jvm.java.util.ArrayList(), jvm.java.util.Optional
    for topic in topics:
        new.add(
            jvm.org.apache.kafka.clients.admin.NewTopic(
                topic, optional.of(PARTITIONS), optional.empty()
            )
        )
    with admin(spark, servers) as client:
        client.createTopics(new).all().get()


def delete_before(
    spark: SparkSession, servers: str, topic: str, partition: int, offset: int
) -> None:
    """Do to a partition what its retention would do later."""
    jvm: Any = spark.sparkContext._jvm
    records = jvm.org.apache.kafka.clients.admin.RecordsToDelete
    # Py4J does not find a static method by itself where a getter has its name.
    before = JavaMember("beforeOffset", None, STATIC_PREFIX + records._fqn, records._gateway_client)
    asked = jvm.java.util.HashMap()
    asked.put(jvm.org.apache.kafka.common.TopicPartition(topic, partition), before(offset))
    with admin(spark, servers) as client:
        client.deleteRecords(asked).all().get()


def send(spark: SparkSession, servers: str, *topics: str, first: int, last: int) -> None:
    """Send rows ``id, k, v`` as JSON, by id to a topic and to one of its partitions."""
    by_topic = F.array(*(F.lit(topic) for topic in topics))
    rows = spark.range(first, last).select(
        "id", F.concat(F.lit("k"), F.col("id") % 23).alias("k"), (F.col("id") % 91 - 40).alias("v")
    )
    sent = rows.select(
        F.get(by_topic, (F.col("id") % len(topics)).cast("int")).alias("topic"),
        (F.floor(F.col("id") / len(topics)) % PARTITIONS).cast("int").alias("partition"),
        F.to_json(F.struct("*")).alias("value"),
    ).write.format("kafka")
    # Of several on their way, of which one timed out, a broker may refuse every retry.
    sent = sent.option("kafka.max.in.flight.requests.per.connection", "1")
    sent.option("kafka.bootstrap.servers", servers).save()


def decoded(frame: DataFrame, *beside: str) -> DataFrame:
    """The rows in a frame that reads Kafka, and some of its own columns."""
    row = F.from_json(F.col("value").cast("string"), "id long, k string, v long")
    return frame.select(row.alias("row"), *beside).select("row.*", *beside)
