"""The pytest fixtures of the testing kit: jobs on a local Spark, in a pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import class_archive
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
CONFTEST = f"""
import pytest


@pytest.fixture(scope="session")
def absflow_conf():
    return {class_archive.kept()!r}
"""
TESTS = """
import absflow
import pytest
from absflow.testing import assert_same_rows


def count(state, row):
    if row[0] == "mallory":
        raise ValueError("mallory again")
    n = (state[0] if state else 0) + 1
    return (n,), [(row[0], n)]


def shop(folder, bounded=True):
    def declare(spark):
        frame = spark.readStream.schema("user string").parquet(f"{folder}/clicks")
        job = absflow.Job("shop", spark)
        source = job.source("clicks", frame, bounded=bounded)
        visits = job.stage("visits", source, key="user", state="n long",
                           output="user string, n long", process=count, form="per-row")
        job.sink("counts", visits, absflow.DeltaSink(f"{folder}/counts"))
        return job
    return declare


def test_a_job_runs_to_its_end_and_goes_on(absflow_local):
    local = absflow_local
    local.write("clicks/1.parquet", [("ada",), ("bob",), ("ada",)], "user string")
    first = local.run(shop(local.folder)).finished_checkpoint
    local.write("clicks/2.parquet", [{"user": "ada"}], "user string")
    local.run(shop(local.folder), {"spark.absflow.checkpoint.interval": "2s"})
    assert_same_rows(local.state("visits"), [("ada", 3), ("bob", 1)])
    assert_same_rows(local.state("visits", first), [("ada", 2), ("bob", 1)])
    assert_same_rows(local.read("counts"), [("ada", 1), ("ada", 2), ("ada", 3), ("bob", 1)])
    assert_same_rows(local.spark.read.format("delta").load(str(local.folder / "counts")),
                     local.read("counts"))
    assert local.history().checkpoint(first).title == f"checkpoint {first}"
    assert local.spark.conf.get("spark.absflow.storage.path", None) is None


def test_what_still_runs_is_stopped(absflow_local):
    local = absflow_local
    local.write("clicks/1.parquet", [("ada",)], "user string")
    run = local.start(shop(local.folder, bounded=False))
    run.savepoint()
    assert run.is_active


def test_nothing_runs_any_more(absflow_local):
    assert absflow_local.spark.streams.active == []


def test_a_job_without_an_end_is_stopped_in_time(absflow_local):
    local = absflow_local
    local.write("clicks/1.parquet", [("ada",)], "user string")
    with pytest.raises(TimeoutError, match="has not ended in 1 s; if its sources are not bounded"):
        local.run(shop(local.folder, bounded=False), timeout_s=1)


def test_a_failure_is_raised(absflow_local):
    local = absflow_local
    local.write("clicks/1.parquet", [("mallory",)], "user string")
    with pytest.raises(absflow.JobFailedError, match="mallory again"):
        local.run(shop(local.folder), {"spark.absflow.restart.attempts": "0"})
"""


@pytest.mark.soak
def test_jobs_run_in_a_pytest_of_their_own(tmp_path: Path) -> None:
    """Bounded ones to their end, others until the test is over; failures are raised."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_shop.py").write_text(TESTS)
    paths = [str(ROOT), *filter(None, sys.path)]
    inherited = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "_absflow_pytestplugin", "-p", "no:xdist"],
        cwd=tmp_path,
        env={**inherited, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
