"""``docs/deploy.md`` on a real YARN: what it says is all that a job needs there."""

from __future__ import annotations

import re
import sys
import tarfile
import time
from pathlib import Path

import on_store
import pyspark
import pytest
from cluster import python_path
from diamond import write_source
from hdfs_server import hdfs
from places import attempts, commits, hdfs_place
from processes import bury, tail
from yarn import yarn

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1200)]

DOCS = Path(__file__).parents[2] / "docs/deploy.md"
FILES = 10
PATIENCE_S = 800
# Of this machine: small, with one data node, and Spark need not be sent along.
HERE = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "512m",
    "spark.hadoop.dfs.replication": "1",
    "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
}
# The program makes its session with the conf of all tests; these are for it to leave alone.
GIVEN = ("spark.master", "spark.sql.shuffle.partitions")


def documented() -> dict[str, str]:
    """What the page says for every cluster, and for YARN."""
    blocks = re.findall(r"```properties\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (for_yarn,) = (block for block in blocks if re.search(r"^spark.master +yarn$", block, re.M))
    lines = (blocks[0] + for_yarn).splitlines()
    return {name: value for name, value in (line.split(maxsplit=1) for line in lines)}


def environment(folder: Path) -> Path:
    """An archive as ``venv-pack`` makes it, whose Python is this one."""
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{python_path()}"\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    archive = folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(python, "bin/python")
    return archive


def test_a_driver_that_dies_is_started_again_and_goes_on(tmp_path: Path) -> None:
    """In the cluster, by the conf of the page; each row is there once."""
    write_source(tmp_path / "a", files=FILES, rows=50, seed=26)
    conf = documented() | HERE | {"spark.archives": f"{environment(tmp_path)}#environment"}
    (tmp_path / "hdfs").mkdir()
    with hdfs(tmp_path / "hdfs") as there, yarn(tmp_path / "yarn", there) as cluster:
        place = hdfs_place(there, "jobs", tmp_path)
        words = [str(tmp_path), "hdfs:///jobs", "spark.absflow.trigger.interval=2s"]
        words += [f"{name}={conf[name]}" for name in GIVEN]
        log = tmp_path / "submit.log"
        submitted = cluster.submit(Path(on_store.__file__), words, conf, log)
        try:
            end = time.monotonic() + PATIENCE_S
            while commits(place, "sink") < 3:
                assert submitted.poll() is None, cluster.said() + tail(log)
                assert time.monotonic() < end, cluster.said() + tail(log)
                time.sleep(0.5)
            assert cluster.kill_driver()
            code = submitted.wait(PATIENCE_S)
        finally:
            bury(submitted)
        said = cluster.said()
        assert code == 0, said + tail(log)
        assert said.count(" is right") == 1
        assert attempts(place) == [(1, "STARTED"), (1, "READY"), (2, "DRIVER"), (2, "ENDED")]
