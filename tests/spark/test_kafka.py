"""A job over Kafka: two topics of three partitions, a real broker, and what it says of offsets."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from diamond import OUTPUT, STATE, expected_state, to_group
from kafka_topics import create, decoded, delete_before, send
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, rows_of, stage_of, state_at
from session import settings

import absflow
from absflow.spark.sources.kafka import Offsets, available_offsets

pytestmark = pytest.mark.spark

CONF = {"checkpoint.interval": "1s", "key-groups": "3"}
TOPICS = ("job-a", "job-b")


def job_of(spark: SparkSession, servers: str, root: Path) -> absflow.Job:
    """Kafka to one stage to a Delta sink, in batches of up to 120 rows."""
    job = absflow.Job("kafka", spark)
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", ",".join(TOPICS))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 120)
        .load()
    )
    source = job.source("topics", decoded(frame))
    stage = job.stage("tally", source, key="k", state=STATE, output=OUTPUT, process=to_group)
    job.sink("out", stage, absflow.DeltaSink(str(root / "sink")))
    return job


def position_of(row: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The source's position in a manifest."""
    text = dict(stage_of(row, "tally")["positions"])["topics"]
    return {} if text == "-" else json.loads(text)


def read_until(spark: SparkSession, servers: str, root: Path, rows: int) -> None:
    """Run the job until a completed checkpoint stands behind so many rows, then stop it."""
    with settings(spark, {**CONF, "storage.path": str(root / "job")}):
        run = job_of(spark, servers, root).start()
        deadline = time.monotonic() + 200
        read = 0
        while read < rows:
            assert time.monotonic() < deadline, f"{read} of {rows} rows"
            run.await_termination(timeout=0.2)
            for row in completed(spark, root / "job")[-1:]:
                read = sum(sum(parts.values()) for parts in position_of(row).values())
        run.stop()


def sent(spark: SparkSession, servers: str) -> pd.DataFrame:
    """All rows with their places, by a batch query."""
    frame = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
    rows = frame.option("subscribe", ",".join(TOPICS)).load()
    return decoded(rows, "topic", "partition", "offset").toPandas()


def test_a_job_over_kafka_is_exact(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """Through a stop and a start: the sink has each row once, and every checkpoint is a cut.

    A position is the next offset of each partition, in the form of Spark's ``startingOffsets``.
    What those were at the very start, Spark keeps beside its offset log.
    """
    create(spark, kafka, *TOPICS)
    send(spark, kafka, *TOPICS, first=0, last=200)
    read_until(spark, kafka, tmp_path, 200)
    send(spark, kafka, *TOPICS, first=200, last=420)
    read_until(spark, kafka, tmp_path, 420)

    rows = sent(spark, kafka)
    assert sorted(rows["id"]) == list(range(420))
    sink = rows_of(tmp_path / "sink").to_pandas()
    assert_same_rows(sink, rows.assign(g=rows["id"] % 7)[["id", "g", "v"]], ["id"])
    manifests = completed(spark, tmp_path / "job")
    for row in manifests:
        position = position_of(row)
        place = zip(rows["topic"], rows["partition"], rows["offset"], strict=True)
        before = [offset < position.get(t, {}).get(str(p), 0) for t, p, offset in place]
        state = state_at(spark, tmp_path / "job", row, "tally", "k")
        assert_same_rows(state, expected_state(rows[before], "k"), ["k"])
    sources = tmp_path / "job" / "work" / "attempt=1" / "tally" / "spark" / "sources"
    (initial,) = (p for p in sources.glob("*/*") if not p.name.startswith("."))
    assert initial == sources / "0" / "0"
    first = {topic: {"0": 0, "1": 0, "2": 0} for topic in TOPICS}
    assert initial.read_bytes() == b"\0v1\n" + json.dumps(first, separators=(",", ":")).encode()
    assert position_of(manifests[-1]) == {topic: {"0": 70, "1": 70, "2": 70} for topic in TOPICS}


def test_available_offsets(spark: SparkSession, kafka: str) -> None:
    """By partition, also behind what retention has deleted; what is gone is left out."""
    create(spark, kafka, "kept", "expired")
    send(spark, kafka, "kept", "expired", first=0, last=60)
    delete_before(spark, kafka, "expired", 1, 4)
    position = {"kept": {"0": 3, "2": 10}, "expired": {"1": 2, "7": 2}, "gone": {"0": 5}}
    options = {"kafka.bootstrap.servers": kafka, "startingoffsets": "latest"}
    assert available_offsets(spark, options, json.dumps(position)) == {
        ("kept", 0): Offsets(0, 10),
        ("kept", 2): Offsets(0, 10),
        ("expired", 1): Offsets(4, 10),
    }


def test_a_cluster_that_does_not_answer_is_told(spark: SparkSession) -> None:
    """By its address."""
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.default.api.timeout.ms": "1000",
        "kafka.request.timeout.ms": "500",
    }
    with pytest.raises(absflow.StorageError, match=r"ask Kafka at '127\.0\.0\.1:1'.*Timeout"):
        available_offsets(spark, options, '{"t":{"0":1}}')
