"""Checkpoints that somebody wants deleted: by the driver that runs, or by the next one."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from chain import chain, conf, expected, wait
from click.testing import CliRunner
from deltalake import write_deltalake
from diamond import source_files
from pyspark.sql import SparkSession
from reading import assert_same_rows, facts, files_read
from session import settings

import absflow
from absflow.cli.commands import absflow as command
from absflow.facts.columns import REQUESTS
from absflow.facts.records import deleted_of
from absflow.spark.control import retention, tidying
from absflow.spark.control.run import Run

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(400)]

STAGES = (("left", "k"), ("tally", "g"))


@contextmanager
def running(spark: SparkSession, root: Path) -> Iterator[Run]:
    """A chain job without an end, of which retention keeps one checkpoint."""
    with settings(spark, conf(root, checkpoint__retained="1")):
        run = chain(spark, root, bounded=False).start()
    try:
        yield run
    finally:
        run.stop()


def files_of(root: Path, set_id: int) -> list[Path]:
    """The files of a set, of any stage."""
    return list((root / "job" / "state").glob(f"*/set_id={set_id}/*.parquet"))


def check_exact(spark: SparkSession, root: Path) -> set[int]:
    """Every checkpoint that is there is what its positions say; which these are."""
    history = absflow.history(spark, str(root / "job"))
    rows = spark.read.format("delta").load(str(root / "job" / "checkpoints")).toArrow().to_pylist()
    gone = deleted_of(rows)
    there = {r["checkpoint_id"]: r for r in rows if r["kind"] == "COMPLETED"}
    for n in there.keys() - gone:
        due = expected(root, files_read(there[n], "left", "a"))
        for stage, key in STAGES:
            assert_same_rows(history.state(stage, n).toPandas(), due[stage], [key])
    return there.keys() - gone


def test_a_deletion_is_obeyed_by_the_driver_that_runs_else_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files go, but not what others read; a restore from it is refused; others are exact."""
    for name, at_once in (("EVERY", 1.0), ("REST", 1.0)):
        monkeypatch.setattr(retention, name, at_once)
    monkeypatch.setattr(tidying, "VACUUM_EVERY", 0.0)
    monkeypatch.setattr(tidying, "RETAIN", "RETAIN 0 HOURS")
    files = source_files(tmp_path / "a", rows=100, seed=5)
    next(files)
    # As an earlier version has left it: without a column for deletions.
    earlier = pa.schema([column for column in REQUESTS if column.name != "delete"])
    old = pa.Table.from_pylist([{"request": "old", "incarnation": 7}], schema=earlier)
    write_deltalake(tmp_path / "job" / "requests", old)
    given = ["--yes", "--storage", str(tmp_path / "job")]

    def go_on(run: Run) -> int:
        newest = run.progress().checkpoint_id
        for _ in itertools.islice(files, 2):
            pass
        wait(lambda: run.progress().checkpoint_id > newest, run)
        return run.progress().checkpoint_id

    with running(spark, tmp_path) as run:
        first = run.savepoint(timeout=120)
        go_on(run)
        second = run.savepoint(timeout=120)
        go_on(run)
        asked = subprocess.run(
            [sys.executable, "-m", "absflow.cli.main", "delete", str(first), *given],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert (asked.returncode, asked.stderr) == (0, "")
        assert asked.stdout.splitlines()[-1].startswith(f"deleted savepoint {first} of the job ")
        # Retention may have deleted others, for nobody.
        rows = [r for r in facts(spark, tmp_path / "job") if r["kind"] == "DELETED"]
        assert [r["checkpoint_id"] for r in rows if r["request"]] == [first]
        wait(lambda: not files_of(tmp_path, first), run)
    assert second in check_exact(spark, tmp_path)

    stands = CliRunner().invoke(command, ["delete", str(second), *given])
    assert (stands.exit_code, "the request stands" in stands.stdout) == (0, True)
    twice = CliRunner().invoke(command, ["delete", str(second), *given])
    assert twice.exit_code == 0
    with running(spark, tmp_path) as run:
        until = time.monotonic() + 120
        answers: list[str] = []
        while len(answers) < 3 and time.monotonic() < until:
            run.await_termination(timeout=1)
            rows = spark.read.format("delta").load(str(tmp_path / "job" / "checkpoints"))
            asked_for = rows.where("request IS NOT NULL AND kind IN ('DELETED', 'REFUSED')")
            answers = sorted(row.kind for row in asked_for.collect())
    assert answers == ["DELETED", "DELETED", "REFUSED"]
    there = check_exact(spark, tmp_path)
    assert there.isdisjoint({first, second})
    # What the job took after it was laid on it.
    assert files_of(tmp_path, second) or min(there) > second
    with (
        settings(spark, conf(tmp_path, restore__from=str(second))),
        pytest.raises(absflow.NotFoundError, match=f"checkpoint {second} was deleted"),
    ):
        chain(spark, tmp_path, bounded=False).plan_restore()
