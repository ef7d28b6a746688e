"""Event time end to end: watermarks through a channel, timers, late rows, over restores."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, files_read, rows_of, stage_of
from session import settings
from windows import (
    DELAY_S,
    SETTINGS,
    expected,
    on_time,
    open_windows,
    reached,
    windows,
    write_events,
)

import absflow

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FILES, ROWS = 10, 300


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """Files of events; of each row its file."""
    root = tmp_path_factory.mktemp("events")
    return root, write_events(root / "events", FILES, ROWS, seed=7)


def linked(events: tuple[Path, pd.DataFrame], root: Path) -> pd.DataFrame:
    """The same files below another root."""
    (root / "events").symlink_to(events[0] / "events")
    return events[1]


def run(spark: SparkSession, root: Path, **more: str) -> absflow.Run:
    """The job to its end."""
    given = {name.replace("__", ".").replace("_", "-"): value for name, value in more.items()}
    with settings(spark, {"storage.path": str(root / "job"), **SETTINGS, **given}):
        started = windows(spark, root).start()
        assert started.await_termination(timeout=300)
    return started


def check_sinks(root: Path, events: pd.DataFrame) -> None:
    """Every window and every day of the rows that are on time, once; the others are late."""
    all_windows, days = expected(events, DELAY_S)
    found = rows_of(root / "windows").to_pandas()
    assert_same_rows(found[["k", "w", "n", "total"]], all_windows, ["k", "w"])
    assert_same_rows(rows_of(root / "days").to_pandas(), days, ["k", "d"])


@pytest.fixture(scope="module")
def finished(
    spark: SparkSession, events: tuple[Path, pd.DataFrame], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, pd.DataFrame, absflow.Run]:
    """One run without an accident, with many checkpoints."""
    root = tmp_path_factory.mktemp("finished")
    rows = linked(events, root)
    return root, rows, run(spark, root, checkpoint__interval="300ms")


Finished = tuple[Path, pd.DataFrame, absflow.Run]


def test_windows_and_days_are_those_of_the_rows_on_time(finished: Finished) -> None:
    """And at the end of bounded inputs all timers have fired, though the watermark stands still."""
    root, events, _ = finished
    check_sinks(root, events)


def test_late_rows_are_in_a_table_and_counted(finished: Finished, spark: SparkSession) -> None:
    root, events, _ = finished
    late = events[~on_time(events, DELAY_S)]
    assert len(late) > 20
    found = rows_of(root / "job" / "late" / "events").to_pandas()
    assert_same_rows(found[["p", "k", "ts", "v"]], late[["p", "k", "ts", "v"]], ["ts", "k", "v"])
    counts = [stage_of(row, "windows")["late_rows"] for row in completed(spark, root / "job")]
    assert sum(counts) == len(late)


def test_the_watermark_at_a_checkpoint_follows_from_its_positions(
    finished: Finished, spark: SparkSession
) -> None:
    """Also that of the stage behind the channel, which has read no source."""
    root, events, run = finished
    rows = completed(spark, root / "job")
    assert len(rows) >= 3
    for row in rows:
        due = reached(events, files_read(row, "windows", "events"))
        for stage in ("windows", "days"):
            found = stage_of(row, stage)["watermark"]
            assert (None if found is None else pd.Timestamp(found)) == due, (stage, row)
    progress = run.progress().stages
    assert {pd.Timestamp(progress[name].watermark) for name in ("windows", "days")} == {
        reached(events, FILES)
    }


def test_the_history_has_the_timers_of_every_checkpoint(
    finished: Finished, spark: SparkSession
) -> None:
    """One for each window that is open: nothing fires twice, early, or not at all."""
    root, events, _ = finished
    history = absflow.history(spark, str(root / "job"))
    rows = completed(spark, root / "job")
    middle = [r for r in rows if 0 < files_read(r, "windows", "events") < FILES]
    assert middle
    for row in middle:
        due = open_windows(events, files_read(row, "windows", "events"))
        due = due.assign(time=due["w"] + pd.Timedelta(seconds=600))[["k", "w", "time"]]
        timers = history.timers("windows", row["checkpoint_id"]).toPandas()
        assert set(timers["domain"]) == {"event"}
        for name in ("time", "w"):
            timers[name] = pd.to_datetime(timers[name], utc=True)
        assert_same_rows(timers, due, ["k", "w"])
    assert history.timers("windows", rows[-1]["checkpoint_id"]).isEmpty()


def test_a_restore_with_other_key_groups_gives_what_no_restore_gives(
    finished: Finished, spark: SparkSession
) -> None:
    """From a checkpoint in the middle: late rows are late again, windows and days are the same."""
    root, events, _ = finished
    rows = completed(spark, root / "job")
    middle = next(r for r in rows if files_read(r, "windows", "events") >= FILES // 2)
    run(spark, root, restore__from=str(middle["checkpoint_id"]), key_groups="7")
    check_sinks(root, events)
    late = rows_of(root / "job" / "late" / "events").to_pandas()
    last = late[late["_attempt"] == 2]
    behind = events[~on_time(events, DELAY_S)]
    behind = behind[behind["file"] >= files_read(middle, "windows", "events")]
    assert_same_rows(last[["p", "k", "ts", "v"]], behind[["p", "k", "ts", "v"]], ["ts", "k", "v"])
    # What was late before the middle, and what is late since: each row once.
    history = absflow.history(spark, str(root / "job"))
    counting = history.late("events").toArrow().to_pandas()
    behind = events[~on_time(events, DELAY_S)]
    assert len(counting) < len(late)
    assert_same_rows(
        counting[["p", "k", "ts", "v"]], behind[["p", "k", "ts", "v"]], ["ts", "k", "v"]
    )
    with pytest.raises(absflow.NotFoundError, match="no late rows of source 'windows'"):
        history.late("windows")


@pytest.mark.soak
def test_a_chain_of_one_query_and_checkpoints_that_overtake_give_the_same(
    spark: SparkSession, events: tuple[Path, pd.DataFrame], tmp_path: Path
) -> None:
    rows = linked(events, tmp_path)
    run(spark, tmp_path, checkpoint__mode="unaligned", checkpoint__interval="200ms")
    check_sinks(tmp_path, rows)


@pytest.mark.soak
def test_timers_may_be_written_with_the_state(
    spark: SparkSession, events: tuple[Path, pd.DataFrame], tmp_path: Path
) -> None:
    """In any order, and one of them twice; the first that fires ends the window."""
    linked(events, tmp_path)
    given = spark.sql(
        "SELECT 99 AS k, w, 5L AS n, 7L AS total, array("
        " named_struct('time', w + INTERVAL 2 HOURS, 'name', 'b'),"
        " named_struct('time', w + INTERVAL 1 HOUR, 'name', 'a'),"
        " named_struct('time', w + INTERVAL 2 HOURS, 'name', 'b')) AS _event_timers"
        " FROM (SELECT timestamp_seconds(1700000400) AS w)"
    )
    with settings(spark, {"storage.path": str(tmp_path / "job"), **SETTINGS}):
        savepoint = windows(spark, tmp_path).write_savepoint({"windows": given})
    timers = absflow.history(spark, str(tmp_path / "job")).timers("windows", savepoint)
    assert [row["name"] for row in timers.collect()] == ["a", "b"]
    run(spark, tmp_path)
    (ended,) = (row for row in rows_of(tmp_path / "windows").to_pylist() if row["k"] == 99)
    assert (ended["n"], ended["total"]) == (5, 7)
