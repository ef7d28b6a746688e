"""A broker that speaks TLS only, and lets in only who has a password."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kafka_broker import broker, java
from kafka_client import consumed, make_topic
from lane_cases import IDS, batch, prepared, run

import absflow
from absflow.errors import StorageError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PASSWORD = "correct-horse-battery"
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def certified(folder: Path) -> dict[str, object]:
    """A certificate of the broker's own; its conf, and beside the stores ``ca.pem`` for clients."""
    tool = str(Path(java()).with_name("keytool")) if "/" in java() else "keytool"

    def keytool(*arguments: str) -> None:
        command = [tool, *arguments, "-storepass", PASSWORD, "-storetype", "PKCS12"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)

    keytool(
        *("-genkeypair", "-alias", "broker", "-keyalg", "RSA", "-validity", "2"),
        *("-dname", "CN=127.0.0.1", "-ext", "SAN=ip:127.0.0.1", "-keystore", "broker.p12"),
    )
    keytool("-exportcert", "-alias", "broker", "-rfc", "-file", "ca.pem", "-keystore", "broker.p12")
    keytool(
        *("-importcert", "-noprompt", "-alias", "ca", "-file", "ca.pem", "-keystore", "trust.p12")
    )
    return {
        "ssl_keystore_location": folder / "broker.p12",
        "ssl_keystore_type": "PKCS12",
        "ssl_keystore_password": PASSWORD,
        "ssl_truststore_location": folder / "trust.p12",
        "ssl_truststore_type": "PKCS12",
        "ssl_truststore_password": PASSWORD,
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[absflow.KafkaSink]:
    """A sink that is let in; its topic is made."""
    keys = tmp_path_factory.mktemp("keys")
    user = f'{_LOGIN} username="ada" password="{PASSWORD}" user_ada="{PASSWORD}";'
    conf = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(keys / "ca.pem"),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ada",
        "sasl.password": PASSWORD,
    }
    with broker(
        tmp_path_factory.mktemp("broker"),
        "SECURE",
        listener_security_protocol_map="SECURE:SASL_SSL,CONTROLLER:PLAINTEXT",
        inter_broker_listener_name="SECURE",
        sasl_enabled_mechanisms="PLAIN",
        sasl_mechanism_inter_broker_protocol="PLAIN",
        listener_name_secure_plain_sasl_jaas_config=user,
        **certified(keys),
    ) as running:
        make_topic(running.servers, "out", client=conf)
        yield absflow.KafkaSink(running.servers, "out", conf=conf)


def test_rows_are_written_and_read(secured: absflow.KafkaSink) -> None:
    """By lanes, as without TLS; and nothing is let in that has no password."""
    run(prepared(secured), batch((1, "a"), (2, "b")))
    records = consumed(secured.servers, "out", client=secured.conf)
    assert sorted(json.loads(record.value())["id"] for record in records) == [1, 2]


@pytest.mark.soak
def test_a_wrong_password_is_refused_at_the_start(
    secured: absflow.KafkaSink, caplog: pytest.LogCaptureFixture
) -> None:
    """In a line that says so; no password is in it, nor in what shows the sink, nor in a log."""
    wrong = replace(secured, conf={**secured.conf, "sasl.password": "incorrect-horse"})
    with caplog.at_level(logging.DEBUG), pytest.raises(StorageError) as refused:
        wrong.prepare(None, IDS)
    said = f"{refused.value} {refused.value.__cause__} {wrong!r} {wrong.describe()} {caplog.text}"
    assert "uthentication failed" in said
    assert "horse" not in said


@pytest.mark.soak
def test_a_certificate_that_nobody_vouches_for_is_refused(secured: absflow.KafkaSink) -> None:
    conf = {name: value for name, value in secured.conf.items() if name != "ssl.ca.location"}
    with pytest.raises(StorageError, match="certificate verify failed"):
        replace(secured, conf=conf).prepare(None, IDS)
