"""Sinks with transactions where tasks are begun twice, and executors die."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from chain import expected
from cluster import standalone
from diamond import source_files
from in_cluster import driver
from kafka_broker import broker
from outside_sinks import outside
from places import Disk
from test_cluster_faults import SPECULATES, WORKERS

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]


def test_each_row_once_whoever_publishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker is slow, so its lanes are published by two tasks; then all executors die."""
    (root := tmp_path / "root").mkdir()
    (brokers := tmp_path / "kafka").mkdir()
    files, count = source_files(root / "a", rows=100, seed=23), 0
    with (
        broker(brokers) as running,
        outside(running.servers, tmp_path, monkeypatch) as there,
        standalone(tmp_path, WORKERS) as cluster,
        driver(cluster, Disk(root), SPECULATES) as job,
    ):
        for _ in range(3):
            for _ in itertools.islice(files, 4):
                count += 1
            job.await_files(count)
            job.wait(lambda: there.begun_again() > 0)
            assert any(worker.kill_executor() for worker in cluster.workers)
        assert job.end() > 0
        there.check(expected(root, count)["sink"])
