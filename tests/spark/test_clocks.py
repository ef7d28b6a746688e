"""Trap 14: a restore from long ago finds what waits for processing time overdue, or moves it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from session import settings

import absflow
from absflow.cli import tables
from absflow.cli.options import open_console
from absflow.storage import clock

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(300)]

KEYS, HOUR_MS = 40, 3_600_000


def remember(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """A key, and a timer half an hour on by the clock."""
    at = datetime.datetime.fromtimestamp(context.time_ms / 1_000, datetime.timezone.utc)
    half = at + datetime.timedelta(minutes=30)
    times = pa.array([half] * state.num_rows, pa.timestamp("us", tz="UTC"))
    timers = state.select(["k"]).append_column("time", times)
    timers = timers.append_column("domain", pa.array(["processing"] * state.num_rows))
    ones = pa.array([1] * state.num_rows)
    return absflow.Result(state=state.set_column(1, "n", ones), timers=timers)


def alert(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    return absflow.Result(output=state.select(["k"]))


def job_of(spark: SparkSession, root: Path) -> absflow.Job:
    job = absflow.Job("clocks", spark)
    frame = spark.readStream.schema("k long").parquet(str(root / "in"))
    stage = job.stage(
        "keys", job.source("rows", frame, bounded=True), key="k", state="n long",
        output="k long", process=remember, on_timer=alert, ttl=absflow.Ttl("1h"),
    )  # fmt: skip
    job.sink("out", stage, absflow.DeltaSink(str(root / "out")))
    return job


def times_of(spark: SparkSession, root: Path) -> list[tuple[Any, ...]]:
    history = absflow.history(spark, str(root / "job"))
    touched = history.state("keys").selectExpr("k", "unix_micros(_touched) AS t").collect()
    timers = history.timers("keys").selectExpr("k", "unix_micros(time) AS t").collect()
    return [tuple(sorted((row["k"], row["t"]) for row in rows)) for rows in (touched, timers)]


def test_trap_14_clocks_at_a_restore(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"k": range(KEYS)}), tmp_path / "in" / "1.parquet")
    given = {"storage.path": str(tmp_path / "job"), "key-groups": "4"}
    with settings(spark, given):
        assert job_of(spark, tmp_path).start().await_termination(120)
    before = times_of(spark, tmp_path)
    assert [len(of) for of in before] == [KEYS, KEYS]

    now_ms, lag_ms = clock.now_ms, 2 * HOUR_MS
    with settings(spark, {**given, "restore.from": "latest"}):
        for later, due in ((0, (0, 0)), (HOUR_MS // 2, (KEYS, 0)), (lag_ms, (KEYS, KEYS))):
            monkeypatch.setattr(clock, "now_ms", lambda later=later: now_ms() + later)
            plan = job_of(spark, tmp_path).plan_restore()
            assert plan is not None
            found = plan.overdue["keys"]
            assert (found.timers, found.keys) == due
        for block in tables.plan(plan.document()):
            open_console().print(block)
    printed = " ".join(capsys.readouterr().out.split())
    assert "waits for the clock timers overdue keys expired since" in printed
    assert f"keys {KEYS} {KEYS}" in printed

    with settings(spark, {**given, "restore.from": "latest", "restore.clocks": "shift"}):
        monkeypatch.setattr(clock, "now_ms", lambda: now_ms() + lag_ms)
        run = job_of(spark, tmp_path).start()
        monkeypatch.setattr(clock, "now_ms", now_ms)
        assert run.await_termination(120)
    after = times_of(spark, tmp_path)
    # All of them by one and the same time: from the checkpoint to the restore.
    moved = {
        now[1] - then[1] for was, is_ in zip(before, after, strict=True)
        for then, now in zip(was, is_, strict=True)
    }  # fmt: skip
    assert len(moved) == 1
    (by_us,) = moved
    assert lag_ms * 1_000 <= by_us < (lag_ms + HOUR_MS // 2) * 1_000

    with settings(spark, {**given, "restore.from": "1"}):
        assert job_of(spark, tmp_path).start().await_termination(120)
    assert times_of(spark, tmp_path) == before
