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


def commits(root: Path) -> dict[str, int]:
    """How many commits each table below ``root`` has."""
    logs = root.rglob("_delta_log")
    return {str(log.parent.relative_to(root)): len(list(log.glob("*.json"))) for log in logs}


def test_an_empty_barrier_is_one_commit_per_table(spark: SparkSession, tmp_path: Path) -> None:
    """The trigger, the barrier in each channel, the manifest; no rows, no state, no sink."""
    write_source(tmp_path / "a", files=1, rows=50, seed=1)
    with settings(spark, conf(tmp_path, checkpoint__interval="2s")):
        started = chain(spark, tmp_path, bounded=False).start()
        while not (there := completed(spark, tmp_path / "job")) or changes(there[-1]):
            started.await_termination(timeout=0.5)
        before, first = commits(tmp_path), len(there)
        wait(lambda: started.progress().completed >= first + IDLE, started, patience_s=120)
        started.stop()
    taken = len(completed(spark, tmp_path / "job")) - first
    assert taken >= IDLE
    after = commits(tmp_path)
    new = {table: after[table] - before[table] for table in after}
    written = {"job/barriers", "job/channels/left/attempt=1", "job/checkpoints"}
    # One may have been under way at either count.
    for table in written:
        assert taken - 1 <= new.pop(table) <= taken + 1, (table, before, after)
    # The end of the run: it is a fact, and gives up what is pending.
    del new["job/attempts"], new["job/overtakes"]
    assert set(new.values()) == {0}, new


def changes(row):
    """How many keys a checkpoint has written, or -1 if it is older than the rows."""
    stages = row["stages"]
    return sum(s["rows_changed"] for s in stages) if all(s["keys_total"] for s in stages) else -1
