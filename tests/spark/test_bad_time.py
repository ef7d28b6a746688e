"""Bad event times and timers on real Spark: refused in words, and nothing is committed of them.

What is declared wrongly is refused before anything starts (``tests/test_watermark.py``); what a
packing task and a key group say of bad rows and timers without Spark is in
``tests/columnar/test_event_time_pages.py`` and ``test_timers.py`` there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from bad_time import BAD, again, into_the_past, nothing, passed_on
from pyspark.sql import SparkSession
from reading import completed, files_read, rows_of
from session import settings
from windows import EVENTS, SETTINGS, write_frames

import absflow

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NOON = pd.Timestamp("2026-11-25 12:00", tz="UTC")


def rows(ts: list[pd.Timestamp | None], v: list[int]) -> pd.DataFrame:
    return pd.DataFrame({"p": 0, "k": range(len(v)), "ts": ts, "v": v})


GOOD = rows([NOON, NOON], [1, 2])
LATER = rows([NOON + pd.Timedelta("1h")], [3])


def job_of(spark: SparkSession, root: Path, **more: Any) -> absflow.Job:
    """Source ``events``, stage ``timed``, a sink."""
    frame = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
    job = absflow.Job("bad-time", spark)
    events = job.source(
        "events",
        frame.parquet(str(root / "events")),
        bounded=True,
        event_time=more.get("event_time", "ts"),
        watermark=absflow.Watermark(delay=more.get("delay", "1min"), late=more.get("late", "drop")),
    )
    timed = job.stage(
        "timed",
        events,
        key="k",
        state="n long",
        output="k int, ts timestamp, v long",
        process=more.get("process", passed_on),
        on_timer=more.get("on_timer", nothing),
    )
    job.sink("out", timed, absflow.DeltaSink(str(root / "sink")))
    return job


@pytest.mark.parametrize(
    ("bad", "declared", "words"),
    [
        (rows([None], [BAD]), {}, ["source 'events'", "column 'ts' is null", f"'v': {BAD}"]),
        (
            rows([NOON - pd.Timedelta("1h")], [BAD]),
            {"late": "fail"},
            ["source 'events'", "1 rows come late"],
        ),
        (
            rows([NOON + pd.Timedelta("1h")], [BAD]),
            {"process": into_the_past},
            ["stage 'timed'", "1970-01-01", "for key {'k': 0}", "must be set for later"],
        ),
        (
            LATER,
            {"on_timer": again},
            ["stage 'timed'", "event timers of key {'k': ", "set the next one further ahead"],
        ),
    ],
    ids=["null", "late", "past", "endless"],
)
def test_what_cannot_be_fails_the_job_and_nothing_of_its_batch_is_committed(
    spark: SparkSession,
    tmp_path: Path,
    bad: pd.DataFrame,
    declared: dict[str, Any],
    words: list[str],
) -> None:
    """The file before it stays, in the sink and in checkpoints, and is all that there is."""
    write_frames(tmp_path / "events", [GOOD, bad])
    conf = {"storage.path": str(tmp_path / "job"), **SETTINGS, "restart.attempts": "0"}
    with settings(spark, conf), pytest.raises(absflow.JobFailedError) as failed:
        job_of(spark, tmp_path, **declared).start().await_termination()
    assert all(word in str(failed.value) for word in words), str(failed.value)
    assert isinstance(failed.value.__cause__, absflow.ProcessError)
    assert sorted(rows_of(tmp_path / "sink")["v"].to_pylist()) == [1, 2]
    for fact in completed(spark, tmp_path / "job"):
        assert files_read(fact, "timed", "events") <= 1


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"event_time": "when"}, "'events' has no column 'when' for its event time"),
        ({"event_time": "v"}, "its event time 'v' is a int64, but a timestamp is expected"),
        ({"delay": "-1min"}, "'events': delay of its watermark is '-1min'"),
    ],
)
def test_what_is_declared_wrongly_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, declared: dict[str, Any], words: str
) -> None:
    write_frames(tmp_path / "events", [GOOD])
    with settings(spark, {"storage.path": str(tmp_path / "job")}):
        with pytest.raises(absflow.GraphError, match=words):
            job_of(spark, tmp_path, **declared)
    assert [path.name for path in tmp_path.iterdir()] == ["events"]
