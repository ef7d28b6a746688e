"""Event time over Kafka: three partitions, one that lags and one that falls silent.

The watermark at every checkpoint is what a batch job computes from the checkpoint's positions; late
rows, windows and state are what it computes from the rows. Over stops and starts, checkpoints that
overtake, a restore to an older checkpoint and from 4 to 7 key groups.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kafka_clock import (
    ROWS,
    TOPIC,
    check_manifests,
    check_rows,
    events,
    position,
    send,
    sent,
    source,
)
from kafka_topics import create
from pyspark.sql import SparkSession
from reading import completed
from session import settings
from windows import SETTINGS, windows

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(600)]


def run_to(spark: SparkSession, servers: str, root: Path, rows: int, **more: str) -> None:
    """The job until a checkpoint stands behind so many rows, and has been computed by all."""
    given = {name.replace("__", ".").replace("_", "-"): value for name, value in more.items()}
    conf = {"storage.path": str(root / "job"), **SETTINGS, "checkpoint.interval": "400ms", **given}
    with settings(spark, conf):
        run = windows(spark, root, source(spark, servers)).start()
        deadline, read = time.monotonic() + 300, 0
        before = len(completed(spark, root / "job"))
        while read < rows:
            assert time.monotonic() < deadline, f"{read} of {rows} rows"
            assert not run.await_termination(timeout=0.3)
            newest = completed(spark, root / "job")
            read = sum(position(newest[-1]).values()) if len(newest) > before else 0
        run.stop(savepoint=True)


def test_the_theorem(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    create(spark, kafka, TOPIC)
    send(spark, kafka, events(0))
    run_to(spark, kafka, tmp_path, ROWS)
    send(spark, kafka, events(1))
    run_to(spark, kafka, tmp_path, 2 * ROWS, checkpoint__mode="unaligned")
    rows = completed(spark, tmp_path / "job")
    middle = next(r for r in rows if sum(position(r).values()) >= ROWS // 2)
    send(spark, kafka, events(2))
    run_to(
        spark,
        kafka,
        tmp_path,
        3 * ROWS,
        restore__from=str(middle["checkpoint_id"]),
        key_groups="7",
        checkpoint__mode="unaligned",
    )
    every = sent(spark, kafka)
    assert every["late"].sum() > 30
    manifests = completed(spark, tmp_path / "job")
    assert len(manifests) > 6
    check_manifests(every, manifests)
    check_rows(tmp_path, every, manifests[-1], spark)
