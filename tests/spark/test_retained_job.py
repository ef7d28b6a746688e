"""Retention beside a running job: what stays is exact, the rest goes, wherever it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from chain import chain, expected, wait
from diamond import write_source
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, facts, files_read
from retaining import POINTS, SETTINGS, hurry
from session import settings

import absflow
from absflow.facts.inventory import gather
from absflow.facts.records import deleted_of
from absflow.facts.spark_reader import SparkStorageReader
from absflow.spark.control import retention, tidying
from absflow.storage.layout import Layout

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]

ENOUGH = 500  # files; one is read in a batch, and none of the runs comes to their end
STAGES = (("left", "k"), ("tally", "g"))


def run_program(root: Path, number: int, point: str = "") -> int:
    """Run the program, in a process group of its own; its return code."""
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])]),
    }
    command = [sys.executable, str(Path(__file__).parent / "retaining.py"), str(root), str(number)]
    with (root / "log").open("a") as log:
        done = subprocess.run(
            [*command, point],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=False,
        )
    return done.returncode


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that was killed at each action of retention, and then ran for a while."""
    root = tmp_path_factory.mktemp("retention")
    write_source(root / "a", files=ENOUGH, rows=20, seed=3)
    for point in POINTS:
        died = run_program(root, 60, point)
        assert died == -signal.SIGKILL, (point, (root / "log").read_text()[-3000:])
    assert run_program(root, 12) == 0, (root / "log").read_text()[-3000:]
    return root


def kept(spark: SparkSession, root: Path) -> list[int]:
    """The checkpoints that are there."""
    rows = facts_of(spark, root)
    return sorted({r["checkpoint_id"] for r in rows if r["kind"] == "COMPLETED"} - deleted_of(rows))


def since_plan(there: list[int], root: Path) -> list[int]:
    """Those of the checkpoints that came after the last plan had looked."""
    planned = int((root / "planned").read_text())
    return [n for n in there if n > planned]


def facts_of(spark: SparkSession, root: Path) -> list[dict[str, object]]:
    return facts(spark, root / "job")


def check_exact(spark: SparkSession, root: Path) -> None:
    """Every checkpoint that is there is what its positions say."""
    history = absflow.history(spark, str(root / "job"))
    there = kept(spark, root)
    for row in completed(spark, root / "job"):
        if row["checkpoint_id"] in there:
            due = expected(root, files_read(row, "left", "a"))
            for stage, key in STAGES:
                state = history.state(stage, row["checkpoint_id"]).toPandas()
                assert_same_rows(state, due[stage], [key])


def test_what_is_kept_is_exact(spark: SparkSession, root: Path) -> None:
    """The newest two, and what came while the last plan was not carried out, can be read."""
    there = kept(spark, root)
    assert len(there) >= 2
    assert len(there) - len(since_plan(there, root)) <= 2
    check_exact(spark, root)


def test_what_is_deleted_is_refused(spark: SparkSession, root: Path) -> None:
    """Reading it, or restoring from it, says that it was deleted."""
    history = absflow.history(spark, str(root / "job"))
    gone = max(deleted_of(facts_of(spark, root)))
    with pytest.raises(absflow.NotFoundError, match=f"checkpoint {gone} was deleted"):
        history.state("left", gone)
    status = {r.checkpoint_id: r.status for r in history.checkpoints().collect()}
    assert status[gone] == "DELETED"
    more = {"storage.path": str(root / "job"), "restore.from": str(gone)}
    with (
        settings(spark, SETTINGS | more),
        pytest.raises(absflow.NotFoundError, match=f"checkpoint {gone} was deleted"),
    ):
        chain(spark, root, bounded=False).plan_restore()


def test_the_views_and_changes_read_what_is_kept(spark: SparkSession, root: Path) -> None:
    """Views show the state at each checkpoint that is there; changes lead from one to the next."""
    history = absflow.history(spark, str(root / "job"))
    history.create_views("kept_")
    there = kept(spark, root)
    for stage, key in STAGES:
        seen: dict[object, tuple[object, ...]] = {}
        rows = history.changes(stage).collect()
        assert {r.checkpoint_id for r in rows} <= set(there)
        for n in there:
            state = history.state(stage, n).toPandas()
            view = spark.sql(f"SELECT * FROM kept_{stage}_state WHERE at_checkpoint = {n}")
            assert_same_rows(view.toPandas(), state, [key])
            for r in rows:
                if r.checkpoint_id == n:
                    assert r.op == "upsert"
                    seen[r[key]] = tuple(r[2:])
            assert sorted(seen.values(), key=str) == sorted(
                (tuple(r) for r in history.state(stage, n).collect()), key=str
            )


def test_the_storage_is_bounded(spark: SparkSession, root: Path) -> None:
    """Sets, epochs and attempts are few, though many checkpoints have completed."""
    layout = Layout(str(root / "job"))
    found = gather(SparkStorageReader(spark), layout, {})
    there = found.inventory
    late = len(since_plan(kept(spark, root), root))  # of which nothing is tidied yet
    assert found.known.done_count > 30
    assert len(there.completed) < 12 + late  # the others are summed up
    assert found.known.done_before > 20
    assert all(len(sets) <= 12 + late for sets in there.sets.values())
    assert all(len(c.epochs) <= 8 + late for c in there.channels if c.attempt == there.attempt)
    assert there.working == {there.attempt}
    assert {c.attempt for c in there.channels} == {there.attempt}
    for stage, _ in STAGES:
        on_disk = {p.parent.name for p in (root / "job" / "state" / stage).rglob("*.parquet")}
        assert len([name for name in on_disk if name.startswith("set_id")]) <= 24 + late


def test_the_oldest_that_is_kept_can_be_restored(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that goes on from it is exact, and retention goes on with it."""
    for name in ("EVERY", "REST", "SUM_UP_EVERY"):
        monkeypatch.setattr(retention, name, getattr(retention, name))
    for name in ("RETAIN", "VACUUM_EVERY", "MANY_FILES"):
        monkeypatch.setattr(tidying, name, getattr(tidying, name))
    hurry()
    oldest = kept(spark, root)[0]
    more = {"storage.path": str(root / "job"), "restore.from": str(oldest)}
    with settings(spark, SETTINGS | more):
        run = chain(spark, root, bounded=False).start()
    wait(lambda: run.progress().completed >= 8, run)
    wait(lambda: oldest in deleted_of(facts_of(spark, root)), run)
    run.stop()
    check_exact(spark, root)
