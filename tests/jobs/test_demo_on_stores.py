"""The demo on each kind of store: ``make demo STORE=``, on some weeks of the year."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import flights_data
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

DEMO = Path(__file__).resolve().parents[1] / "spark/demo.py"
UNTIL = dt.date(2013, 1, 29)


@pytest.mark.parametrize(
    "store", [pytest.param("s3", marks=pytest.mark.soak), pytest.param("hdfs")]
)
def test_the_demo_ends_equal_to_pandas(tmp_path: Path, store: str) -> None:
    """Sinks and states; the server is started by the command itself, and ends with it."""
    flights_data.prepare(tmp_path / "data", until=UNTIL)
    run = subprocess.run(
        [sys.executable, DEMO, store, f"spark.flights.data={tmp_path}/data"],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "equal row for row to plain pandas" in run.stdout
    assert "hours of airports, equal to plain pandas" in run.stdout


def test_a_store_that_nobody_knows_is_named() -> None:
    """With those that there are."""
    run = subprocess.run(
        [sys.executable, DEMO, "ftp"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stdout == "found STORE=ftp; expected one of s3, hdfs, or none for this disk\n"
