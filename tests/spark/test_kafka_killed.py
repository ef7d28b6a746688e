"""Event time over Kafka under SIGKILL: the theorem of ``test_kafka_time.py`` without a clean stop.

Each driver is a process that is killed with all that it has started, at a random moment behind one
of its checkpoints. The answer is that of a batch job, as if nothing had ever been interrupted.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka_broker import CONNECTOR, broker, jars
from kafka_clock import ROWS, TOPIC, check_manifests, check_rows, events, position, send, sent
from kafka_topics import create
from processes import bury, tail
from pyspark.sql import SparkSession
from reading import commits, completed

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1_500)]

PATIENCE_S = 300


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[str]:
    """A broker of its own, for another test has the topic's name, too."""
    (tmp_path / "broker").mkdir()
    with broker(tmp_path / "broker") as running:
        yield running.servers


@contextmanager
def driver(root: Path, servers: str, connector: str, *more: str) -> Iterator[Callable[[], None]]:
    """A driver, killed at the end of the block; what it gives fails if it has ended by itself."""
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    program = str(Path(__file__).with_name("kafka_windows.py"))
    with (root / "driver.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, program, str(root), servers, connector, *more],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield lambda: check_alive(process, root / "driver.log")
    finally:
        bury(process)


def check_alive(process: subprocess.Popen[bytes], log: Path) -> None:
    """Fail with the log's end if it has ended."""
    assert process.poll() is None, tail(log)


def manifests(spark: SparkSession, root: Path) -> list[dict[str, Any]]:
    """Of all checkpoints that have completed."""
    return completed(spark, root / "job") if commits(root / "job" / "checkpoints") else []


def wait(until: Callable[[], bool], alive: Callable[[], None]) -> None:
    """Until a driver has come so far."""
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        alive()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_theorem_over_kills(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    dice = random.Random(25)
    connector = ",".join(jars(CONNECTOR, tmp_path))
    create(spark, kafka, TOPIC)

    def live(*more: str, checkpoints: int = 0, rows: int = 0) -> None:
        """One driver: until so many checkpoints more, or until one stands behind so many rows."""
        before = len(manifests(spark, tmp_path))

        def far_enough() -> bool:
            now = manifests(spark, tmp_path)
            if checkpoints:
                return len(now) >= before + checkpoints
            return len(now) > before and sum(position(now[-1]).values()) >= rows

        with driver(tmp_path, kafka, connector, *more) as alive:
            wait(far_enough, alive)
            time.sleep(dice.random() * 0.5)  # the moment of its death is any

    unaligned = ["checkpoint.mode=unaligned", "channel.max-bytes-per-trigger=16KiB"]
    send(spark, kafka, events(0))
    for _ in range(2):
        live(checkpoints=1)
    live(rows=ROWS)
    send(spark, kafka, events(1))
    for _ in range(2):
        live(*unaligned, checkpoints=1)
    live(*unaligned, rows=2 * ROWS)
    known = manifests(spark, tmp_path)
    middle = next(row for row in known if sum(position(row).values()) >= ROWS // 2)
    send(spark, kafka, events(2))
    restored = [*unaligned, "key-groups=7"]
    live(*restored, f"restore.from={middle['checkpoint_id']}", checkpoints=1)
    live(*restored, checkpoints=2)
    live(*restored, rows=3 * ROWS)

    every = sent(spark, kafka)
    assert every["late"].sum() > 30
    known = manifests(spark, tmp_path)
    assert len(known) > 9
    check_manifests(every, known)
    check_rows(tmp_path, every, known[-1], spark)
