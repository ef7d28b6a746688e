"""Avro into Kafka with a real schema registry: any reader that asks it has the rows."""

from __future__ import annotations

import datetime as dt
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka_client import consumed, make_topic
from lane_cases import MADE, batch, prepared, run
from registry_server import registry, with_password

import absflow
from absflow.errors import GraphError, StorageError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

AT = dt.datetime(2026, 2, 3, 4, 5, 6, tzinfo=dt.timezone.utc)
ROWS = pa.schema([("user", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def values(servers: str, topic: str, url: str) -> list[object]:
    """As Confluent's own reader has them."""
    reader = AvroDeserializer(SchemaRegistryClient({"url": url}))
    context = SerializationContext(topic, MessageField.VALUE)
    return [reader(record.value(), context) for record in consumed(servers, topic)]


def must_be(url: str, subject: str, compatibility: str) -> None:
    request = urllib.request.Request(
        f"{url}/config/{subject}",
        json.dumps({"compatibility": compatibility}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        method="PUT",
    )
    urllib.request.urlopen(request, timeout=30).close()


def test_rows_are_read_by_their_schema_also_when_it_changes(kafka: str, url: str) -> None:
    """A column more is another version; a column of another type is refused at the start."""
    make_topic(kafka, "avro", 1)
    sink = prepared(absflow.KafkaSink(kafka, "avro", key="user", registry=url), ROWS)
    must_be(url, "avro-value", "FULL")
    run(sink, batch(("ada", 1, AT), ("bob", None, None), schema=ROWS))
    wider = ROWS.append(pa.field("tags", pa.list_(pa.string())))
    prepared(sink, wider)
    later = batch(("ada", 2, AT, ["x", None]), schema=wider)
    run(sink, later, made=replace(MADE, checkpoint_id=8))
    assert values(kafka, "avro", url) == [
        {"user": "ada", "n": 1, "at": AT},
        {"user": "bob", "n": None, "at": None},
        {"user": "ada", "n": 2, "at": AT, "tags": ["x", None]},
    ]
    other = pa.schema([("user", pa.string()), ("n", pa.string())])
    words = "subject 'avro-value' of the schema registry .* does not take the schema"
    with pytest.raises(GraphError, match=words):
        prepared(sink, other)


def test_a_registry_that_wants_a_password(kafka: str, url: str) -> None:
    """Workers give it as the driver does; without it, or with another, nothing starts."""
    make_topic(kafka, "locked", 1)
    with with_password(url, "me", "secret") as locked:
        sink = absflow.KafkaSink(kafka, "locked", key="user", registry=locked)
        mine = replace(sink, registry_conf={"basic.auth.user.info": "me:secret"})
        run(prepared(mine, ROWS), batch(("ada", 1, AT), schema=ROWS))
        for wrong in (sink, replace(sink, registry_conf={"basic.auth.user.info": "me:guess"})):
            with pytest.raises(StorageError, match="does not let this client in") as refused:
                prepared(wrong, ROWS)
            assert "guess" not in str(refused.value)
    assert values(kafka, "locked", url) == [{"user": "ada", "n": 1, "at": AT}]
    odd = replace(sink, registry_conf={"no.such": ["option", "of any kind"]})
    with pytest.raises(GraphError, match="does not take the options"):
        prepared(odd, ROWS)


def test_refused_before_anything_is_asked(url: str) -> None:
    sink = absflow.KafkaSink("127.0.0.1:1", "avro", value="user", registry=url)
    with pytest.raises(GraphError, match="it has value='user' and a registry"):
        sink.check("out", ROWS)
    odd = pa.schema([("größe", pa.int64())])
    with pytest.raises(GraphError, match="column 'größe': Avro's names"):
        replace(sink, value=None).check("out", odd)
    kept = replace(sink, registry_conf={"basic.auth.user.info": "me:secret"})
    assert "secret" not in repr(kept) + kept.describe()
