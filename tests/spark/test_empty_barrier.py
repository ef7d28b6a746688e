"""A checkpoint of a job to which nothing has come costs one commit per table that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from chain import chain, conf, wait
from diamond import write_source
from pyspark.sql import SparkSession
from reading import completed
from session import settings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

IDLE = 4  # checkpoints without rows that are looked at


def commits(root: Path) -> dict[str, list[int]]:
    """When each commit of each table below ``root`` was written, in ns, ascending."""
    return {
        str(log.parent.relative_to(root)): sorted(c.stat().st_mtime_ns for c in log.glob("*.json"))
        for log in root.rglob("_delta_log")
    }


def test_an_empty_barrier_is_one_commit_per_table(spark: SparkSession, tmp_path: Path) -> None:
    """The trigger, the barrier in each channel, the manifest; no rows, no state, no sink."""
    write_source(tmp_path / "a", files=1, rows=50, seed=1)
    with settings(spark, conf(tmp_path, checkpoint__interval="2s")):
        started = chain(spark, tmp_path, bounded=False).start()
        while not (there := completed(spark, tmp_path / "job")) or changes(there[-1]):
            started.await_termination(timeout=0.5)
        first = commits(tmp_path)["job/checkpoints"]
        target = len(there) + 1 + IDLE  # one more may have completed since ``there``
        wait(lambda: started.progress().completed >= target, started, patience_s=120)
        last = commits(tmp_path)["job/checkpoints"]  # the stop gives up one that is under way
        started.stop()
    # A checkpoint's manifest is its last commit, and no other checkpoint runs beside it. So
    # what lies between two manifests is whole checkpoints, whenever one happens to look.
    new = {
        table: sum(first[-1] < at <= last[-1] for at in all_)
        for table, all_ in commits(tmp_path).items()
    }
    taken = manifests(spark, tmp_path, len(last)) - manifests(spark, tmp_path, len(first))
    assert taken >= IDLE
    for table in ("job/barriers", "job/channels/left/attempt=1", "job/checkpoints"):
        assert new.pop(table) == taken, (table, taken, new)
    assert set(new.values()) == {0}, new


def manifests(spark: SparkSession, root: Path, commits: int) -> int:
    """How many checkpoints had completed when their table had this many commits."""
    then = spark.read.format("delta").option("versionAsOf", commits - 1)
    return then.load(str(root / "job/checkpoints")).where("kind = 'COMPLETED'").count()


def changes(row):
    """How many keys a checkpoint has written, or -1 if it is older than the rows."""
    stages = row["stages"]
    return sum(s["rows_changed"] for s in stages) if all(s["keys_total"] for s in stages) else -1
