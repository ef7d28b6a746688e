"""A job on a cluster whose storage root and sink are on a store, which no machine has mounted."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import standalone
from diamond import write_source
from hdfs_server import hdfs
from on_store import class_path, run_to_end
from s3_server import s3_server

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

FILES = 3


def test_executors_write_to_the_bucket_as_the_driver_does(tmp_path: Path) -> None:
    """By classes that they get from it: state of Spark's own is put, and nothing is renamed."""
    write_source(tmp_path / "a", files=FILES, rows=50, seed=26)
    path = class_path(tmp_path)
    with s3_server(tmp_path) as server, standalone(tmp_path) as cluster:
        bucket = server.bucket("cluster")
        conf = {**cluster.conf(), "spark.executor.extraClassPath": path}
        said = run_to_end(tmp_path, bucket, server, path, conf)
        counts = server.counts()
    assert " is right" in said
    assert len(cluster.executors()) == len(cluster.workers)
    assert any(path.endswith(".delta") for method, path in counts if method == "PUT")
    assert not [path for method, path in counts if method == "PUT" and path.endswith(".tmp")]


def test_executors_reach_hdfs_by_the_jvm_beside_each(tmp_path: Path) -> None:
    """State and data files go there, from machines that have the driver's conf and no other."""
    write_source(tmp_path / "a", files=FILES, rows=50, seed=26)
    (tmp_path / "hdfs").mkdir()
    with hdfs(tmp_path / "hdfs") as there, standalone(tmp_path) as cluster:
        conf = {**cluster.conf(), "spark.absflow.state.max-inline": "1KiB"}
        said = run_to_end(tmp_path, f"{there.root}/some", there, more=conf)
    assert " is right" in said
    assert len(cluster.executors()) == len(cluster.workers)
