"""A driver killed with SIGKILL anywhere, and started again with the same command, is exact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from chain import BEFORE_SPARK_COMMIT, POINTS, expected
from diamond import write_source
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, facts, files_read, state_at

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

FILES = 18


def run_chain(root: Path, point: str | None = None) -> int:
    """Run the program, in a process group of its own; its return code."""
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).parent),
    }
    command = [sys.executable, str(Path(__file__).parent / "chain.py"), str(root)]
    with (root / "log").open("a") as log:
        done = subprocess.run(
            command + ([point] if point else []),
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=False,
        )
    return done.returncode


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One job, killed at every point in turn, then run to its end."""
    root = tmp_path_factory.mktemp("kill")
    write_source(root / "a", files=FILES, rows=200, seed=3)
    for point in [*POINTS, BEFORE_SPARK_COMMIT]:
        assert run_chain(root, point) == -signal.SIGKILL, (
            point,
            (root / "log").read_text()[-3000:],
        )
    assert run_chain(root) == 0, (root / "log").read_text()[-3000:]
    return root


def test_the_sink_is_exact(spark: SparkSession, root: Path) -> None:
    """After all these kills every row is in the sink once."""
    sink = spark.read.format("delta").load(str(root / "sink")).toPandas()
    assert_same_rows(sink, expected(root, FILES)["sink"], ["id"])


def test_every_checkpoint_is_exact(spark: SparkSession, root: Path) -> None:
    """Every completed checkpoint of every life of the driver is a consistent cut."""
    for row in completed(spark, root / "job"):
        due = expected(root, files_read(row, "left", "a"))
        for stage, key in (("left", "k"), ("tally", "g")):
            assert_same_rows(state_at(spark, root / "job", row, stage, key), due[stage], [key])
        # Only here: `tally` merges the rows of several key groups of `left`.
        assert state_at(spark, root / "job", row, "left", "k")["ordered"].all()


def test_pending_checkpoints_were_aborted_and_later_ones_complete(
    spark: SparkSession, root: Path
) -> None:
    """What a kill left pending has ended as DRIVER_RESTART; the last checkpoint holds all input."""
    rows = facts(spark, root / "job")
    ids = [row["checkpoint_id"] for row in rows]
    assert ids == sorted(set(ids))
    triggers = spark.read.format("delta").load(str(root / "job" / "barriers")).toPandas()
    assert set(triggers["checkpoint_id"]) == set(ids)
    aborted = [row for row in rows if row["kind"] == "ABORTED"]
    assert len(aborted) >= 2
    assert {row["reason"] for row in aborted} == {"DRIVER_RESTART"}
    assert rows[-1]["kind"] == "COMPLETED"
    assert files_read(rows[-1], "left", "a") == FILES
