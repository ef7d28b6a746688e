"""Drivers in processes of their own that start at once, with no lock between them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from chain import expected
from diamond import write_source
from pyspark.sql import SparkSession
from reading import assert_same_rows, facts, rows_of

from absflow.storage.delta.log import newest_version, parse_commit

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

DRIVERS = 3
FILES = 4
PATIENCE_S = 600


def test_of_drivers_that_start_together_one_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """The others end with FencedError; attempts has the facts of one, and the sink each row once.

    All have decided before any claims, so all have the same incarnation.
    """
    write_source(tmp_path / "a", files=FILES, rows=50, seed=21)
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    program = str(Path(__file__).parent / "claiming.py")
    drivers = []
    try:
        for number in range(DRIVERS):
            with (tmp_path / f"{number}.said").open("w") as said:
                command = [sys.executable, program, str(tmp_path), str(number), str(DRIVERS)]
                drivers.append(
                    subprocess.Popen(
                        command, env=environment, stdout=subprocess.DEVNULL, stderr=said
                    )
                )
        codes = [driver.wait(PATIENCE_S) for driver in drivers]
    finally:
        for driver in drivers:
            if driver.poll() is None:
                driver.kill()
                driver.wait()
    said = [(tmp_path / f"{number}.said").read_text() for number in range(DRIVERS)]
    assert sorted(code == 0 for code in codes) == [False, False, True], said
    for code, text in zip(codes, said, strict=True):
        if code:
            assert "absflow.errors.FencedError: a commit to " in text
            assert "a driver that started with this one took incarnation 1 first" in text

    rows = spark.read.format("delta").load(str(tmp_path / "job" / "attempts")).collect()
    kinds = [(row.incarnation, row.kind) for row in sorted(rows, key=lambda row: row.at)]
    assert kinds == [(1, "STARTED"), (1, "READY"), (1, "ENDED")]
    assert len(named(tmp_path / "job" / "attempts")) == 1
    assert named(tmp_path / "job" / "checkpoints") == named(tmp_path / "job" / "attempts")
    assert facts(spark, tmp_path / "job")[-1]["kind"] == "COMPLETED"
    sink = rows_of(tmp_path / "sink").to_pandas()
    assert_same_rows(sink, expected(tmp_path, FILES)["sink"], ["id"])


def named(table: Path) -> set[str]:
    """The drivers that the commits of a table name."""
    log = table / "_delta_log"
    newest = newest_version(path.name for path in log.iterdir())
    assert newest is not None
    notes = [parse_commit(n, (log / f"{n:020d}.json").read_text()).note for n in range(newest + 1)]
    return {note["driver"] for note in notes if "driver" in note}
