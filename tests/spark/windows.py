"""A job with event time and a known answer: windows of events, then days of windows.

``events`` have a partition, a key and a time. The stage ``windows`` counts them by key and window
of ten minutes, and lets a window go when the watermark has come to its end; ``days`` adds up, by
key, what the windows of each day give, and lets the day go in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import absflow

EVENTS = "p int, k int, ts timestamp, v long"
WINDOW, DAY, DELAY_S = 600, 86_400, 3_600
_COLUMNS = pa.schema(
    {"p": pa.int32(), "k": pa.int32(), "ts": pa.timestamp("us", "UTC"), "v": pa.int64()}
)
SETTINGS = {"checkpoint.interval": "1s", "edges": "channel", "key-groups": "4"}


def write_events(directory: Path, files: int, rows: int, seed: int) -> pd.DataFrame:
    """Files in their order, of two partitions in turns; of each row also the file.

    From the seventh on some rows are late, and so far that it is no matter which of the files
    before are in the same micro-batch.
    """
    dice = np.random.default_rng(seed)
    made = []
    for number in range(files):
        partition = number % 2
        at = 1_700_000_000 + number * 1_800 + dice.integers(0, 1_800, rows)
        late = (dice.random(rows) < 0.04) & (number >= 6)
        at = np.where(late, at - dice.integers(20_000, 90_000, rows), at)
        frame = pd.DataFrame({
            "p": np.full(rows, partition, dtype=np.int32),
            "k": dice.integers(0, 9, rows).astype(np.int32),
            "ts": pd.to_datetime(at, unit="s", utc=True),
            "v": dice.integers(0, 100, rows),
        })  # fmt: skip
        made.append(frame.assign(file=number))
    write_frames(directory, made)
    return pd.concat(made, ignore_index=True)


def write_frames(directory: Path, frames: Iterable[pd.DataFrame]) -> None:
    """A file of events for each frame, in the order in which Spark reads them."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, frame in enumerate(frames):
        table = pa.Table.from_pandas(frame[_COLUMNS.names], _COLUMNS, preserve_index=False)
        file = directory / f"part-{number:05}.parquet"
        pq.write_table(table, file)
        os.utime(file, (1_000_000 + number,) * 2)  # Spark reads them in the order of these


def on_time(events: pd.DataFrame, delay_s: int) -> pd.Series:
    """Which rows are not late, if each file is a micro-batch.

    By the files of its partition before, and by the watermark before: a partition is not known
    before its first file.
    """
    newest: dict[int, int] = {}
    kept = pd.Series(True, index=events.index)
    seconds = events["ts"].astype("int64") // 10**9
    for _, rows in events.groupby("file"):
        partition = int(rows["p"].iloc[0])
        at = seconds[rows.index]
        if newest:
            bound = max(newest.get(partition, 0), min(newest.values())) - delay_s
            kept[rows.index] = at >= bound
        newest[partition] = max(newest.get(partition, 0), int(at.max()))
    return kept


def reached(events: pd.DataFrame, files: int) -> pd.Timestamp | None:
    """The watermark behind so many files: of the partitions that are known, the least."""
    newest = events[events["file"] < files].groupby("p")["ts"].max()
    if newest.empty:
        return None
    return newest.min() - pd.Timedelta(seconds=DELAY_S) - pd.Timedelta(microseconds=1)


def open_windows(events: pd.DataFrame, files: int) -> pd.DataFrame:
    """The windows behind so many files that are not over."""
    read = events[on_time(events, DELAY_S) & (events["file"] < files)]
    all_of_them, _ = expected(read, DELAY_S)
    border = reached(events, files)
    if border is None:
        return all_of_them
    return all_of_them[all_of_them["w"] + pd.Timedelta(seconds=WINDOW) > border]


def expected(events: pd.DataFrame, delay_s: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All windows and all days of the rows that are not late."""
    rows = events[on_time(events, delay_s)]
    begin = rows["ts"].dt.floor(f"{WINDOW}s")
    windows = (
        rows.assign(w=begin).groupby(["k", "w"])["v"].agg(n="count", total="sum").reset_index()
    )
    day = windows["w"].dt.floor("1D")
    days = windows.assign(d=day).groupby(["k", "d"])[["n", "total"]].sum().reset_index()
    return windows, days


def _sums(context: absflow.Context, state: pa.Table, **columns: pa.ChunkedArray) -> pa.Table:
    for name, values in columns.items():
        added = np.zeros(state.num_rows, dtype=np.int64)
        np.add.at(added, context.key_of_row, values.to_numpy())
        before = state[name].fill_null(0).to_numpy()
        place = state.column_names.index(name)
        state = state.set_column(place, name, pa.array(before + added))
    return state


def _ends(state: pa.Table, column: str, seconds: int) -> pa.Table:
    time = pa.array(state[column].cast(pa.int64()).to_numpy() + seconds * 1_000_000)
    return state.select(["k", column]).append_column(
        "time", time.cast(pa.timestamp("us", tz="UTC"))
    )


def count(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Rows of one call into their windows."""
    ones = pa.chunked_array([pa.array(np.ones(rows.num_rows, dtype=np.int64))])
    state = _sums(context, state, n=ones, total=rows["v"])
    return absflow.Result(state=state, timers=_ends(state, "w", WINDOW))


def add(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Windows of one call into their days."""
    state = _sums(context, state, n=rows["n"], total=rows["total"])
    return absflow.Result(state=state, timers=_ends(state, "d", DAY))


def let_go(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """A window that is over, with the day that it belongs to."""
    output = state.append_column("d", pc.floor_temporal(state["w"], unit="day"))
    return absflow.Result(output=output, delete=np.ones(state.num_rows, dtype=bool))


def let_day_go(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """A day that is over."""
    return absflow.Result(output=state, delete=np.ones(state.num_rows, dtype=bool))


ALIVE = pd.Timedelta("4h")


def remember(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """How many keys each window had that is over."""
    now = np.bincount(context.key_of_row, minlength=state.num_rows)
    counted = pa.array(state["keys"].fill_null(0).to_numpy() + now)
    return absflow.Result(state=state.set_column(1, "keys", counted))


def with_memory(job: absflow.Job) -> absflow.Job:
    """The job with a stage that forgets what windows it has seen by event time."""
    job.stage(
        "memory",
        "windows",
        key="w",
        state="keys long",
        output="w timestamp",
        process=remember,
        ttl=absflow.Ttl("4h", domain="event"),
    )
    return job


def remembered(events: pd.DataFrame, files: int, border: pd.Timestamp) -> pd.DataFrame:
    """What that stage has behind so many files: the windows that are over, but not for long.

    Args:
        events: all of them.
        files: so many have been read, and all windows that are over have come.
        border: the stage's own watermark; that of the stage before it may be on its way still.
    """
    read = events[on_time(events, DELAY_S) & (events["file"] < files)]
    sent = reached(events, files)
    over, _ = expected(read, DELAY_S)
    if sent is None:
        return over.iloc[:0].groupby("w").size().reset_index(name="keys")
    over = over[over["w"] + pd.Timedelta(seconds=WINDOW) <= sent]
    return over[over["w"] + ALIVE > border].groupby("w").size().reset_index(name="keys")


def windows(
    spark: SparkSession,
    root: Path,
    events: DataFrame | None = None,
    mode: str = "immediate",
    *,
    bounded: bool = False,
    sinks: str = "",
) -> absflow.Job:
    """The job over files, or over other events; its sinks lie below ``sinks``, or ``root``."""
    job = absflow.Job("windows", spark)
    declared = absflow.Watermark(delay="1h", by="p" if events is None else None)
    bounded = bounded or events is None
    if events is None:
        frame = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
        events = frame.parquet(str(root / "events"))
    events = events.withColumn("w", F.window("ts", f"{WINDOW} seconds")["start"])
    source = job.source("events", events, bounded=bounded, event_time="ts", watermark=declared)
    made = job.stage(
        "windows",
        source,
        key=["k", "w"],
        state="n long, total long",
        output="k int, w timestamp, n long, total long, d timestamp",
        process=count,
        on_timer=let_go,
        output_time="w",
    )
    days = job.stage(
        "days",
        made,
        key=["k", "d"],
        state="n long, total long",
        output="k int, d timestamp, n long, total long",
        process=add,
        on_timer=let_day_go,
    )
    job.sink("windows-out", made, absflow.DeltaSink(f"{sinks or root}/windows"), mode=mode)
    job.sink("days-out", days, absflow.DeltaSink(f"{sinks or root}/days"), mode=mode)
    return job
