"""A storm of due timers on Spark: pieces come by themselves, barriers pass, a restore goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from reading import commits, completed, rows_of, stage_of
from session import settings

import absflow
from absflow.columnar.timers import Piece, in_pieces

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(400)]

PIECE = Piece.PER_KEY.value
KEYS = 30 * PIECE
EVENTS = "k long, ts timestamp"
START = 1_700_000_000_000_000
FAR = START + 10 * KEYS


def write(root: Path, number: int, keys: np.ndarray, times: np.ndarray) -> None:
    """A file of rows; Spark reads it behind those with a lower number."""
    at = pa.array(times).cast(pa.timestamp("us", "UTC"))
    file = root / "events" / f"{number}.parquet"
    file.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"k": pa.array(keys), "ts": at}), file)
    os.utime(file, (1_000_000 + number,) * 2)


def wait(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """A timer for each key, in the order of the keys; but not of those far ahead."""
    times = pc.add(rows["k"], START + KEYS).cast(pa.timestamp("us", "UTC"))
    timers = pa.table({"k": rows["k"], "time": times})
    seen = pa.array(np.ones(state.num_rows, dtype=np.int64))
    near = pc.less(rows["k"], KEYS)
    return absflow.Result(state=state.set_column(1, "n", seen), timers=timers.filter(near))


def over(timers: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Each key once, with its time."""
    output = pa.table({"k": timers["k"], "at": timers["time"]})
    return absflow.Result(output=output, delete=np.ones(state.num_rows, dtype=bool))


# As those of slower forms, so that there are many of them.
in_pieces(over, Piece.PER_KEY)


def count(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """How many rows came; one that is behind the watermark would be an error."""
    late = context.watermark is not None and context.watermark >= pc.min(rows["at"]).as_py()
    assert not late, (context.watermark, pc.min(rows["at"]))
    now = np.bincount(context.key_of_row, minlength=state.num_rows)
    counted = pa.array(state["rows"].fill_null(0).to_numpy() + now)
    return absflow.Result(state=state.set_column(1, "rows", counted))


def job_of(spark: SparkSession, root: Path) -> absflow.Job:
    job = absflow.Job("storm", spark)
    frame = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
    source = job.source("events", frame.parquet(str(root / "events")), event_time="ts")
    made = job.stage(
        "keys",
        source,
        key="k",
        state="n long",
        output="k long, at timestamp",
        process=wait,
        on_timer=over,
        output_time="at",
    )
    job.sink("out", made, absflow.DeltaSink(str(root / "out")))
    job.stage("counts", made, key="k", state="rows long", output="k long", process=count)
    return job


def wait_for(run: absflow.Run, root: Path, met: Callable[[int], bool]) -> int:
    """Until so many timers have fired; how many."""
    while True:
        fired = rows_of(root / "out").num_rows if commits(root / "out") else 0
        if met(fired):
            return fired
        assert not run.await_termination(timeout=0.2)


@pytest.mark.parametrize("edges", ["channel", "auto"])
def test_pieces_come_by_themselves_and_a_restore_goes_on_with_them(
    spark: SparkSession, tmp_path: Path, edges: str
) -> None:
    """No checkpoint is due for an hour; a savepoint in the midst is restored with more groups."""
    keys = np.arange(KEYS, dtype=np.int64)
    write(tmp_path, 0, keys, np.full(KEYS, START))
    write(tmp_path, 1, np.array([KEYS]), np.array([FAR]))
    given = {"storage.path": str(tmp_path / "job"), "checkpoint.interval": "1h", "edges": edges}
    with settings(spark, {**given, "key-groups": "4"}):
        run = job_of(spark, tmp_path).start()
        wait_for(run, tmp_path, lambda fired: 0 < fired < KEYS)
        savepoint = run.stop(savepoint=True)
    pieces = rows_of_commits(tmp_path / "out")
    assert len(pieces) >= 3
    assert max(pieces) <= 2 * PIECE  # of two ranges
    row = completed(spark, tmp_path / "job")[-1]
    assert row["checkpoint_id"] == savepoint
    history = absflow.history(spark, str(tmp_path / "job"))
    waiting = history.timers("keys", savepoint).toPandas()["time"].dt.tz_localize("UTC")
    assert 0 < len(waiting) < KEYS
    assert pd.Timestamp(stage_of(row, "keys")["watermark"]) > waiting.max()
    behind = stage_of(row, "counts")["watermark"]
    assert behind is None or pd.Timestamp(behind) < waiting.min()
    more = {"key-groups": "7", "restore.from": str(savepoint)}
    with settings(spark, {**given, **more}):
        run = job_of(spark, tmp_path).start()
        wait_for(run, tmp_path, lambda fired: fired >= KEYS)
        run.stop(savepoint=True, drain=True)
    found = np.sort(rows_of(tmp_path / "out")["k"].to_numpy())
    assert np.array_equal(found, keys)
    counts = absflow.history(spark, str(tmp_path / "job")).state("counts").toPandas()
    assert len(counts) == KEYS
    assert set(counts["rows"]) == {1}
    rows = completed(spark, tmp_path / "job")
    assert sum(stage_of(row, "keys")["late_emitted"] for row in rows) == 0


def rows_of_commits(table: Path) -> list[int]:
    """How many rows each commit of a Delta table has added that added any."""
    found = []
    for log in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        adds = [action["add"]["stats"] for action in actions if "add" in action]
        found.append(sum(json.loads(stats)["numRecords"] for stats in adds))
    return [rows for rows in found if rows]
