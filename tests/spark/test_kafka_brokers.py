"""A broker that is killed, whose disk is full, or that does not let everybody write."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka_broker import Broker, broker
from kafka_client import consumed, make_topic
from lane_cases import IDS, LANE, MADE, batch, prepared, run

import absflow
from absflow.errors import GraphError, StorageError
from absflow.protocol.recovery.marker import Marker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Broker]:
    with broker(tmp_path) as made:
        yield made


def crash(running: Broker) -> None:
    running.kill()
    running.start()


def ids(servers: str, topic: str) -> list[int]:
    return sorted(json.loads(record.value())["id"] for record in consumed(servers, topic))


@pytest.mark.parametrize("after_s", [0.0, pytest.param(0.01, marks=pytest.mark.soak)])
def test_killed_around_a_commit(running: Broker, after_s: float) -> None:
    """Whatever became of the transaction: behind the next try each row is there once."""
    make_topic(running.servers, "out")
    sink = prepared(absflow.KafkaSink(running.servers, "out"))
    run(sink, batch((0, "before")), made=replace(MADE, checkpoint_id=6))
    with closing(sink.open(LANE)) as lane:
        marker = Marker.from_json(lane.marker())
        lane.begin()
        lane.write(batch(*((n, "in it") for n in range(1, 200))))
        dies = threading.Timer(after_s, crash, (running,))
        dies.start()
        with suppress(StorageError):  # it may be there when the broker is back
            lane.commit(marker.behind_all(1, 7).to_json())
        dies.join()
    run(sink, batch(*((n, "in it") for n in range(1, 200))))
    assert ids(running.servers, "out") == list(range(200))
    assert Marker.from_json(sink.marker(LANE)).published == {1: 7}


@pytest.mark.soak
def test_its_disk_is_full(running: Broker) -> None:
    """The publication fails; on a larger disk it goes on where it was."""
    make_topic(running.servers, "out", 1)
    schema = pa.schema([*IDS, ("more", pa.string())])
    sink = prepared(absflow.KafkaSink(running.servers, "out", transaction_bytes=4 << 20), schema)
    running.stop()
    running.start(largest_file=24 << 20)  # its indexes have 10 MB
    rows = [
        batch(*((n, "v", "x" * 900) for n in range(at, at + 1000)), schema=schema)
        for at in range(0, 40_000, 1000)
    ]
    made = replace(MADE, limit=sink.transaction_bytes)
    with pytest.raises(StorageError, match="topic 'out'"):
        run(sink, *rows, made=made)
    running.ends()
    running.start()
    there = Marker.from_json(sink.marker(LANE)).rows_of(1, 7)
    assert 0 < there < 40_000
    assert run(sink, *rows, made=made) == 40_000 - there
    assert ids(running.servers, "out") == list(range(40_000))


def of_anybody(operation: AclOperation, allowed: AclPermissionType) -> AclBinding:
    """What everybody may do with a topic."""
    at = ResourceType.TOPIC, "closed", ResourcePatternType.LITERAL
    return AclBinding(*at, "User:*", "*", operation, allowed)


def test_no_right_to_write(tmp_path: Path) -> None:
    """It is refused at the start; nobody waits for the first checkpoint."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    given = {"authorizer_class_name": authorizer, "allow_everyone_if_no_acl_found": "true"}
    with broker(tmp_path, **given) as running:
        for topic in ("open", "closed"):
            make_topic(running.servers, topic)
        admin = AdminClient({"bootstrap.servers": running.servers})
        rights = [
            of_anybody(AclOperation.ALL, AclPermissionType.ALLOW),
            of_anybody(AclOperation.WRITE, AclPermissionType.DENY),
        ]
        for made in admin.create_acls(rights).values():
            made.result(60)
        sink = prepared(absflow.KafkaSink(running.servers, "open"))
        run(sink, batch((1, "a")))
        assert ids(running.servers, "open") == [1]
        with pytest.raises(GraphError, match=r"'closed'.*has no right to WRITE"):
            prepared(absflow.KafkaSink(running.servers, "closed"))
