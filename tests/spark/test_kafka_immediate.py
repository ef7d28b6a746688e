"""KafkaSink in the mode ``immediate``: at least once, and a consumer sees what came again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from chain import chain, conf, expected
from confluent_kafka import Message
from diamond import source_files
from kafka_client import consumed, frame_of, make_topic
from pyspark.sql import DataFrame, SparkSession
from reading import assert_same_rows, completed
from session import settings

import absflow

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ORDER = ["id", "g", "v"]


def run(spark: SparkSession, root: Path, topic: absflow.KafkaSink, flag: Path, **more: str) -> None:
    """To the end of the files; a micro-batch fails behind its write to Kafka while a flag is up."""

    def fails(_rows: DataFrame, _made: absflow.SinkWrite) -> None:
        if flag.exists():
            flag.unlink()
            raise OSError("once")

    with settings(spark, conf(root, restart__max_delay="1s", **more)):
        job = chain(spark, root)
        job.sink("topic", "tally", topic, mode="immediate")
        job.sink("then", "tally", absflow.ForeachBatchSink(fails))
        assert job.start().await_termination(timeout=300)


def headers(record: Message) -> dict[str, str]:
    return {name: value.decode() for name, value in record.headers() or ()}


def once(records: Iterable[Message]) -> Iterator[Message]:
    """What a consumer that leaves out repetitions sees, as docs/kafka.md has it."""
    newest: dict[tuple[int, str], tuple[int, ...]] = {}
    for record in records:
        of = headers(record)
        at = tuple(int(of[f"absflow-{name}"]) for name in ("attempt", "batch", "epoch", "seq"))
        lane = record.partition(), of["absflow-lane"]
        if at > newest.get(lane, ()):
            newest[lane] = at
            yield record


@pytest.mark.soak
def test_what_comes_again_has_the_same_headers(
    spark: SparkSession, tmp_path: Path, kafka: str
) -> None:
    """A micro-batch fails when its rows are in the topic, and runs again."""
    make_topic(kafka, "again", 1)
    source, flag = source_files(tmp_path / "a", rows=200, seed=3), tmp_path / "flag"
    next(source)
    flag.touch()
    sink = absflow.KafkaSink(kafka, "again")
    run(spark, tmp_path, sink, flag)
    assert not flag.exists()
    due, records = expected(tmp_path, 1)["sink"], consumed(kafka, "again")
    assert len(records) > len(due)
    by_id: dict[str, set[bytes]] = {}
    for record in records:
        by_id.setdefault(json.dumps(headers(record), sort_keys=True), set()).add(record.value())
    assert {len(values) for values in by_id.values()} == {1}
    assert_same_rows(frame_of(once(records), ORDER), due, ORDER)

    first = completed(spark, tmp_path / "job")[-1]["checkpoint_id"]
    next(source)
    run(spark, tmp_path, sink, flag)
    with settings(spark, conf(tmp_path, restore__from=str(first))):
        job = chain(spark, tmp_path)
        job.sink("topic", "tally", sink, mode="immediate")
        job.sink("then", "tally", absflow.ForeachBatchSink(lambda rows, made: None))
        note = job.plan_restore().sinks["topic"].note
    assert f"absflow-epoch > {first}" in note
    assert "is written again, with another absflow-attempt" in note
    run(spark, tmp_path, sink, flag, restore__from=str(first))
    seen = list(once(consumed(kafka, "again")))
    kept = [
        record
        for record in seen
        if int((of := headers(record))["absflow-attempt"]) > 1 or int(of["absflow-epoch"]) <= first
    ]
    assert len(seen) > len(kept)
    assert_same_rows(frame_of(kept, ORDER), expected(tmp_path, 2)["sink"], ORDER)


def test_other_sinks_have_no_such_mode(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with settings(spark, conf(tmp_path)):
        job = chain(spark, tmp_path)
        with pytest.raises(absflow.GraphError, match="a SqlSink publishes with checkpoints"):
            job.sink("sql", "tally", absflow.SqlSink("sqlite://", "t"), mode="immediate")
        topic = absflow.KafkaSink("127.0.0.1:1", "t")
        with pytest.raises(absflow.GraphError, match="a KafkaSink publishes with checkpoints"):
            job.sink("topic", "tally", topic, mode="immediate", of="state")
