"""Lanes of Kafka: a ``read_committed`` consumer sees each row once, whoever dies or comes late."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from kafka_client import consumed, make_topic, topic_name
from lane_cases import IDS, LANE, MADE, batch, prepared, run

import absflow
from absflow.columnar.publishing import Lane
from absflow.errors import FencedError, GraphError, StorageError
from absflow.protocol.recovery.marker import Marker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def servers(kafka: str) -> str:
    return kafka


@pytest.fixture
def topic(servers: str, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions, named as the test."""
    name = topic_name(request.node.name)
    make_topic(servers, name)
    return name


def values(servers: str, topic: str, level: str = "read_committed") -> list[dict[str, object]]:
    return [json.loads(record.value()) for record in consumed(servers, topic, level)]


def kafka_sink(
    servers: str, topic: str, schema: pa.Schema = IDS, **more: object
) -> absflow.KafkaSink:
    return prepared(absflow.KafkaSink(servers, topic, **more), schema)


def test_published_once(servers: str, topic: str) -> None:
    """In several transactions, again, and the next checkpoint; keys in their order."""
    schema = pa.schema([("key", pa.string()), ("n", pa.int64())])
    sink = kafka_sink(servers, topic, schema, key="key")
    assert sink.marker(LANE) is None
    rows = [(f"k{n % 7}", n) for n in range(500)]
    given = [batch(*rows[at : at + 50], schema=schema) for at in range(0, 500, 50)]
    made = replace(MADE, limit=2000)
    assert run(sink, *given, made=made) == 500
    assert run(sink, *given, made=made) == 0
    run(sink, batch(("k1", 500), schema=schema), made=replace(MADE, checkpoint_id=8))
    assert Marker.from_json(sink.marker(LANE)).published == {1: 8}
    found = consumed(servers, topic)
    assert len(found) == 501
    by_key: dict[bytes, list[int]] = {}
    for record in found:
        by_key.setdefault(record.key(), []).append(json.loads(record.value())["n"])
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert len({(record.key(), record.partition()) for record in found}) == 7


def test_keys_go_where_java_sends_them(servers: str, topic: str) -> None:
    """Murmur2 of these, modulo three, as Java's client has it."""
    schema = pa.schema([("key", pa.binary())])
    sink = kafka_sink(servers, topic, schema, key="key", value="key")
    run(sink, batch((b"21",), (b"foobar",), (b"abc",), schema=schema))
    java = {b"21": -973932308, b"foobar": -790332482, b"abc": 479470107}
    for record in consumed(servers, topic):
        assert record.partition() == (java[record.key()] & 0x7FFFFFFF) % 3


@pytest.mark.parametrize("with_headers", [True, False])
def test_all_of_a_record(servers: str, topic: str, with_headers: bool) -> None:
    schema = pa.schema(
        [
            ("k", pa.string()),
            ("v", pa.binary()),
            ("h", pa.map_(pa.string(), pa.string())),
            ("p", pa.int32()),
            ("t", pa.timestamp("us", tz="UTC")),
        ]
    )
    headers = "h" if with_headers else None
    sink = kafka_sink(
        servers, topic, schema, key="k", value="v", headers=headers, partition="p", timestamp="t"
    )
    at = dt.datetime(2026, 2, 3, 4, 5, 6, 789_000, tzinfo=dt.timezone.utc)
    run(
        sink,
        batch(
            ("k", b"\x00\xff", [("a", "1"), ("b", "2")], 2, at),
            (None, None, None, 1, at),
            schema=schema,
        ),
    )
    second, first = consumed(servers, topic)
    ms = int(at.timestamp() * 1000)
    assert (first.key(), first.value(), first.partition()) == (b"k", b"\x00\xff", 2)
    assert (second.key(), second.value(), second.partition()) == (None, None, 1)
    assert first.timestamp()[1] == second.timestamp()[1] == ms
    assert first.headers() == ([("a", b"1"), ("b", b"2")] if with_headers else None)


def test_what_is_not_committed_is_not_seen(servers: str, topic: str) -> None:
    """Neither while a transaction is open, nor when whoever had it is fenced."""
    sink = kafka_sink(servers, topic)
    with closing(sink.open(LANE)) as older:
        assert older.marker() is None
        older.begin()
        older.write(batch((1, "old")))
        older._producer.flush(30)
        assert len(values(servers, topic, "read_uncommitted")) == 1
        with closing(sink.open(LANE)) as newer:
            assert newer.marker() is None
            newer.begin()
            newer.write(batch((1, "new")))
            newer.commit("2")
            with pytest.raises(FencedError, match="another task has opened the lane since"):
                older.commit("1")
    assert values(servers, topic) == [{"id": 1, "v": "new"}]
    assert sink.marker(LANE) == "2"


def test_who_closes_aborts_at_once(servers: str, topic: str) -> None:
    """Readers are not held up until the transaction times out."""
    sink = kafka_sink(servers, topic)
    with closing(sink.open(LANE)) as lane:
        lane.begin()
        lane.write(batch((1, "a")))
        lane._producer.flush(30)
    with closing(sink.open(LANE + "-other")) as lane:
        write(lane, "b", "1")
    assert values(servers, topic) == [{"id": 0, "v": "b"}]


def write(lane: Lane, value: str, marker: str) -> None:
    lane.begin()
    lane.write(batch((0, value)))
    lane.commit(marker)


KILLED = """
import sys, time
import pyarrow as pa
import absflow
servers, topic, lane, at = sys.argv[1:]
sink = absflow.KafkaSink(servers, topic)
opened = sink.open(lane)
opened.begin()
opened.write(pa.record_batch([[1], ["killed"]], ["id", "v"]))
opened._producer.flush(30)
if at == "committed":
    opened.commit("killed's")
print("there", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("at", ["written", "committed"])
def test_killed_with_sigkill(servers: str, topic: str, at: str) -> None:
    """Nobody waits for the transaction's end by time: who opens the lane next ends it."""
    sink = kafka_sink(servers, topic)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, servers, topic, LANE, at],
        stdout=subprocess.PIPE,
        cwd=Path(absflow.__file__).parent.parent,
    )
    try:
        assert process.stdout.readline() == b"there\n"
    finally:
        process.kill()
        process.wait()
    with closing(sink.open(LANE)) as lane:
        expected = "killed's" if at == "committed" else None
        assert lane.marker() == expected
        write(lane, "next", "next's")
    seen = [row["v"] for row in values(servers, topic)]
    assert sorted(seen) == (["killed", "next"] if at == "committed" else ["next"])
    assert sink.marker(LANE) == "next's"


def test_markers_of_many_lanes(servers: str, topic: str) -> None:
    """Each has its own, also where several are in one partition of that topic."""
    sink = kafka_sink(servers, topic)
    for number in range(40):
        with closing(sink.open(f"{LANE}{number}")) as lane:
            lane.begin()
            lane.commit(f"m{number}")
    assert [sink.marker(f"{LANE}{number}") for number in range(40)] == [
        f"m{number}" for number in range(40)
    ]
    assert sink.marker(f"{LANE}-none") is None
    config = ConfigResource(ResourceType.TOPIC, sink.progress_topic)
    admin = AdminClient({"bootstrap.servers": servers})
    (described,) = admin.describe_configs([config]).values()
    assert described.result(30)["cleanup.policy"].value == "compact"


@pytest.mark.soak
def test_a_record_says_that_several_lanes_have_a_checkpoint(servers: str, topic: str) -> None:
    """And one is not, for its marker says it."""
    sink = kafka_sink(servers, topic, lanes=2)
    lanes = ["absflow-0b5c-out-0", "absflow-0b5c-out-1"]
    sink.complete(lanes[:1], 1, 6)
    sink.complete(lanes, 1, 7)
    (record,) = consumed(servers, sink.progress_topic)
    assert record.key() == b"absflow-0b5c-out"
    assert json.loads(record.value()) == {"attempt": 1, "complete": 7}


def test_refused_at_the_start(servers: str, topic: str) -> None:
    with pytest.raises(GraphError, match=r"topic 'none' of .*there is no such topic"):
        kafka_sink(servers, "none")
    make_topic(servers, f"{topic}-absflow", 16)
    with pytest.raises(GraphError, match=r"has cleanup\.policy=delete and 16 partitions"):
        kafka_sink(servers, topic)
    make_topic(servers, f"{topic}-few", 2, **{"cleanup.policy": "compact"})
    with pytest.raises(GraphError, match=r"cleanup\.policy=compact and 2 partitions"):
        kafka_sink(servers, topic, progress=f"{topic}-few")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"key": "w"}, "key='w' is none of the stage's output columns"),
        ({"key": "id"}, "key='id' is int64, must be text or bytes"),
        ({"value": "id"}, "value='id' is int64"),
        ({"headers": "v"}, "headers='v' is string, must be map<string, string>"),
        ({"partition": "v"}, "partition='v' is string, must be an integer"),
        ({"timestamp": "v"}, "timestamp='v' is string, must be a timestamp"),
        ({"conf": {"transactional.id": "mine"}}, "conf has 'transactional.id'"),
        ({"conf": {"partitioner": "random"}}, "partitioner 'random', which sends keys to other"),
    ],
)
def test_what_no_record_can_be_made_of(more: dict[str, object], words: str) -> None:
    with pytest.raises(GraphError, match=f"sink 'out': .*{words}"):
        absflow.KafkaSink("127.0.0.1:1", "out", **more).check("out", IDS)


def test_a_row_that_is_too_large_is_named(servers: str, topic: str) -> None:
    """And nothing of its transaction is there."""
    sink = kafka_sink(servers, topic, value="v")
    with pytest.raises(StorageError, match=r"does not take the row \{'id': 2, .*too large"):
        run(sink, batch((1, "a"), (2, "b" * 3_000_000)))
    assert (consumed(servers, topic), sink.marker(LANE)) == ([], None)


def test_passwords_are_nowhere_to_be_seen() -> None:
    sink = absflow.KafkaSink("127.0.0.1:1", "out", conf={"sasl.password": "secret"})
    assert "secret" not in repr(sink) + sink.describe()
