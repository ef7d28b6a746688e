"""A job whose sinks are outside: each row is there once, whatever stops, dies, or goes back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from chain import chain, conf, expected, wait
from diamond import source_files
from kafka_client import consumed, frame_of, make_topic
from postgres_server import Postgres, postgres, table_rows
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, files_read, rows_of
from session import settings

import absflow
from absflow.spark.control.lanes import Lanes

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FILES = 6
ORDER = ["id", "g", "v"]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


def job(
    spark: SparkSession, root: Path, *, bounded: bool = True, **sinks: absflow.Sink
) -> absflow.Job:
    """The chain, with a Delta sink as well that publishes with checkpoints."""
    made = chain(spark, root, mode="on-checkpoint", bounded=bounded)
    for name, sink in sinks.items():
        made.sink(name, "tally", sink)
    return made


def run(spark: SparkSession, root: Path, restore: int | None = None, **sinks: absflow.Sink) -> None:
    """To the end of its files."""
    more = {} if restore is None else {"restore__from": str(restore)}
    with settings(spark, conf(root, checkpoint__aligned_timeout="1h", **more)):
        assert job(spark, root, **sinks).start().await_termination(timeout=300)


def wait_for(condition: Callable[[], bool], run: absflow.Run) -> None:
    wait(condition, run, patience_s=120)


def lite(root: Path, **more: object) -> absflow.SqlSink:
    return absflow.SqlSink(f"sqlite:///{root / 'lite.db'}", "out", **more)


def lite_rows(root: Path) -> pd.DataFrame:
    with closing(sqlite3.connect(root / "lite.db")) as connection:
        return pd.read_sql_query("SELECT id, g, v FROM out", connection)


@pytest.mark.soak
def test_sinks_of_every_kind_in_one_job(
    spark: SparkSession, tmp_path: Path, server: Postgres, kafka: str
) -> None:
    """They go on where they were; a restore to the newest checkpoint repeats nothing; an older one
    says in its plan what stays.
    """
    source = source_files(tmp_path / "a", rows=60, seed=5)
    make_topic(kafka, "every")
    sinks = {
        "lite": lite(tmp_path, key="id"),
        "sql": absflow.SqlSink(server.url, "every", lanes=2),
        "topic": absflow.KafkaSink(kafka, "every", lanes=2),
    }

    def check(again: pd.DataFrame | None = None) -> None:
        due = expected(tmp_path, read)["sink"]
        assert_same_rows(rows_of(tmp_path / "sink").to_pandas(), due, ["id"])
        assert_same_rows(lite_rows(tmp_path), due, ["id"])  # a row that comes again is the same
        due = due if again is None else pd.concat([due, again])
        assert_same_rows(table_rows(server.url, "every", ORDER), due, ORDER)
        assert_same_rows(frame_of(consumed(kafka, "every"), ORDER), due, ORDER)

    read = 0
    for _ in range(3):
        next(source)
        read += 1
    run(spark, tmp_path, **sinks)
    check()
    older = completed(spark, tmp_path / "job")[-1]
    next(source)
    read += 1
    run(spark, tmp_path, **sinks)
    check()
    newest = completed(spark, tmp_path / "job")[-1]["checkpoint_id"]
    next(source)
    read += 1
    run(spark, tmp_path, newest, **sinks)
    check()

    last = completed(spark, tmp_path / "job")[-1]["checkpoint_id"]
    known = [r for r in consumed(kafka, "every-absflow") if r.key().endswith(b"-topic")]
    assert json.loads(known[-1].value()) == {"attempt": 2, "complete": last}
    with settings(spark, conf(tmp_path, restore__from=str(older["checkpoint_id"]))):
        planned = job(spark, tmp_path, **sinks).plan_restore()
    assert planned.problems == ()
    for name in sinks:
        words = planned.sinks[name].note
        assert "published rows behind the checkpoint stay in t" in words
        # Of the first attempt what is behind, and all of the second.
        assert f"checkpoints behind {older['checkpoint_id']} up to {newest} (attempt 1)" in words
        assert f"up to {last} (attempt 2)" in words
    run(spark, tmp_path, older["checkpoint_id"], **sinks)
    then = expected(tmp_path, files_read(older, "left", "a"))["sink"]
    due = expected(tmp_path, read)["sink"]
    check(again=due[~due["id"].isin(then["id"])])
    next(source)
    read += 1
    run(spark, tmp_path, **sinks)
    check(again=expected(tmp_path, read - 1)["sink"].pipe(lambda d: d[~d["id"].isin(then["id"])]))


def test_a_sink_that_is_down_holds_back_only_itself(
    spark: SparkSession, tmp_path: Path, server: Postgres
) -> None:
    """The others publish; it catches up, also in a start while it is still down."""
    source = source_files(tmp_path / "a", rows=60, seed=7)
    sinks = {"sql": absflow.SqlSink(server.url, "down"), "lite": lite(tmp_path)}
    given = conf(tmp_path, checkpoint__aligned_timeout="1h", restart__max_delay="1s")

    def due(files: int) -> int:
        return len(expected(tmp_path, files)["sink"])

    next(source)
    try:
        with settings(spark, given):
            started = job(spark, tmp_path, bounded=False, **sinks).start()
            wait_for(lambda: len(lite_rows(tmp_path)) == due(1), started)
            wait_for(lambda: len(table_rows(server.url, "down", ORDER)) == due(1), started)
            server.kill()
            next(source)
            wait_for(lambda: len(lite_rows(tmp_path)) == due(2), started)
            wait_for(lambda: started.progress().sinks["sql"].failures > 1, started)
            seen = started.progress().sinks
            assert seen["sql"].waiting > 0
            assert "refused" in seen["sql"].error
            assert (seen["lite"].error, seen["out"].error) == ("", "")
            assert seen["sql"].published < seen["lite"].published
            with pytest.raises(absflow.JobFailedError, match="not be published to sink 'sql'"):
                started.stop()
            next(source)
            started = job(spark, tmp_path, bounded=False, **sinks).start()
            wait_for(lambda: len(lite_rows(tmp_path)) == due(3), started)
            server.start()
            wait_for(lambda: len(table_rows(server.url, "down", ORDER)) == due(3), started)
            wait_for(lambda: not started.progress().sinks["sql"].waiting, started)
            assert started.progress().sinks["sql"].error == ""
            started.stop()
    finally:
        server.kill()
        server.start()
    rows = expected(tmp_path, 3)["sink"]
    assert_same_rows(table_rows(server.url, "down", ORDER), rows, ["id"])
    assert_same_rows(lite_rows(tmp_path), rows, ["id"])


@pytest.mark.soak
def test_lanes_come_and_go(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between publications; one that is not ended in all lanes is ended in those that it had."""
    source = source_files(tmp_path / "a", rows=60, seed=9)
    for files, lanes in enumerate([2, 1, 3], 1):
        next(source)
        run(spark, tmp_path, lite=lite(tmp_path, lanes=lanes))
        assert_same_rows(lite_rows(tmp_path), expected(tmp_path, files)["sink"], ["id"])
    next(source)
    publish, runs = Lanes._run, []

    def half(self: Lanes, rows: object, made: object) -> None:
        runs.append(made)
        publish(self, rows.where("_key_group % 3 = 0"), made)
        # The other lanes have published nothing.
        with closing(sqlite3.connect(tmp_path / "lite.db")) as connection:
            text = connection.execute("SELECT marker FROM absflow_lanes").fetchall()[0][0]
            before = {**json.loads(text)}
            before["published"]["1"] -= 1
            connection.execute(
                "UPDATE absflow_lanes SET marker = ? WHERE lane NOT LIKE '%-0'",
                [json.dumps(before)],
            )
            connection.commit()
        raise OSError("killed in the middle")

    with monkeypatch.context() as patch, pytest.raises(absflow.JobFailedError, match="middle"):
        patch.setattr(Lanes, "_run", half)
        run(spark, tmp_path, lite=lite(tmp_path, lanes=3))
    assert len(runs[0].names) == 3
    next(source)
    run(spark, tmp_path, lite=lite(tmp_path, lanes=1))
    assert_same_rows(lite_rows(tmp_path), expected(tmp_path, 5)["sink"], ["id"])


@pytest.mark.soak
def test_a_new_sink_and_a_fork(spark: SparkSession, tmp_path: Path) -> None:
    """Both get the rows behind the checkpoint; a fork into the same table has lanes of its own."""
    source = source_files(tmp_path / "a", rows=60, seed=11)
    next(source)
    run(spark, tmp_path)
    first = completed(spark, tmp_path / "job")[-1]["checkpoint_id"]
    next(source)
    run(spark, tmp_path, first, lite=lite(tmp_path))
    due = expected(tmp_path, 2)["sink"]
    behind = due[~due["id"].isin(expected(tmp_path, 1)["sink"]["id"])]
    assert_same_rows(lite_rows(tmp_path), behind, ["id"])
    fork = tmp_path / "fork"
    more = {"storage__path": str(fork / "job"), "restore__from": f"{tmp_path / 'job'}#{first}"}
    given = {**conf(tmp_path, **more), "storage.path": str(fork / "job")}
    with settings(spark, given):
        made = chain(spark, tmp_path, fork / "sink", mode="on-checkpoint")
        made.sink("lite", "tally", lite(tmp_path))
        assert made.start().await_termination(timeout=300)
    assert_same_rows(lite_rows(tmp_path), pd.concat([behind, behind]), ["id", "g", "v"])


@pytest.mark.soak
def test_markers_that_have_gone_back_are_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """A database that was put back to an older state: nothing is left out in silence."""
    source = source_files(tmp_path / "a", rows=60, seed=13)
    next(source)
    run(spark, tmp_path, lite=lite(tmp_path))
    saved = (tmp_path / "lite.db").read_bytes()
    kept = completed(spark, tmp_path / "job")[-1]["checkpoint_id"]
    next(source)
    run(spark, tmp_path, lite=lite(tmp_path))
    (tmp_path / "lite.db").write_bytes(saved)
    next(source)
    words = f"its markers say {kept}: it was put back to an older state"
    with pytest.raises(absflow.JobFailedError, match=words):
        run(spark, tmp_path, lite=lite(tmp_path))
    run(spark, tmp_path, kept, lite=lite(tmp_path))
    assert_same_rows(lite_rows(tmp_path), expected(tmp_path, 3)["sink"], ["id"])


def test_a_mode_that_it_has_not(spark: SparkSession, tmp_path: Path) -> None:
    made = absflow.Job("mode", spark)
    with pytest.raises(absflow.GraphError, match="SqlSink publishes with checkpoints"):
        made.sink("out", "stage", lite(tmp_path), mode="immediate")
