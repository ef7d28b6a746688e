"""Functions as Spark's guides and blogs publish them for applyInPandasWithState, run on both.

Each runs in a plain streaming query and as a stage of one absflow job, over the same files, one a
micro-batch, in a session whose time zone is not UTC; every row that they emit must be the same.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from reading import assert_same_rows
from session import settings, spark_conf

import absflow

pytestmark = pytest.mark.spark

EVENTS = "user string, device int, at timestamp, kind string, reading double, clicks bigint"
FILES, PER_FILE = 3, 60


def write_events(folder: Path) -> None:
    """Events of a few users and devices; every column has nulls."""
    folder.mkdir()
    random = np.random.default_rng(3)
    noon = dt.datetime(2026, 3, 29, 0, 30, tzinfo=dt.timezone.utc)  # clocks change in Berlin

    def some(values: Iterable[Any]) -> list[Any]:
        return [None if random.random() < 0.1 else value for value in values]

    for number in range(FILES):
        minutes = sorted(random.integers(60 * number, 60 * number + 60, PER_FILE).tolist())
        table = pa.table(
            {
                "user": some(f"u{n}" for n in random.integers(0, 7, PER_FILE)),
                "device": pa.array(some(random.integers(0, 5, PER_FILE).tolist()), pa.int32()),
                "at": pa.array(
                    some(noon + dt.timedelta(minutes=m) for m in minutes),
                    pa.timestamp("us", tz="UTC"),
                ),
                "kind": some(random.choice(["view", "buy", "logout"], PER_FILE, p=[0.6, 0.3, 0.1])),
                "reading": some(random.normal(20, 3, PER_FILE).round(3).tolist()),
                "clicks": some(random.integers(0, 9, PER_FILE).tolist()),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet")


Frames = Iterator[pd.DataFrame]


def count(key: tuple[Any, ...], frames: Frames, state: GroupState) -> Frames:
    """A running count."""
    (so_far,) = state.getOption or (0,)
    for frame in frames:
        so_far += len(frame)
    state.update((so_far,))
    yield pd.DataFrame({"user": [key[0]], "n": [so_far]})


def sessions(key: tuple[Any, ...], frames: Frames, state: GroupState) -> Frames:
    """Start, end and number of events of a session that a logout ends."""
    frame = pd.concat(list(frames))
    start, end, events = state.get if state.exists else (None, None, 0)
    times = frame["at"].dropna()
    if len(times):
        first, last = times.min().to_pydatetime(), times.max().to_pydatetime()
        start, end = min(start or first, first), max(end or last, last)
    events += len(frame)
    if (frame["kind"] == "logout").any():
        state.remove()
        yield pd.DataFrame([{"user": key[0], "start": start, "end": end, "events": events}])
    else:
        state.update((start, end, events))


def statistics(key: tuple[Any, ...], frames: Frames, state: GroupState) -> Frames:
    """Mean and extremes of a sensor, by a state of numpy values; output in another order."""
    n, total, low, high = state.get if state.exists else (0, 0.0, np.inf, -np.inf)
    for frame in frames:
        readings = frame["reading"].dropna()
        n, total = n + readings.count(), total + readings.sum()
        low, high = np.fmin(low, readings.min()), np.fmax(high, readings.max())
    state.update((np.int64(n), np.float64(total), low, high))
    # Rounded, for Spark sorts rows by key, and a sum of floats depends on their order.
    mean = round(total / n, 6) if n else None
    yield pd.DataFrame({"mean": [mean], "high": [high], "low": [low], "device": [key[0]]})


def first_seen(key: tuple[Any, ...], frames: Frames, state: GroupState) -> Frames:
    """Duplicates by two columns go; the row that stays keeps all its columns."""
    if state.exists:
        return
    state.update((True,))
    for frame in frames:
        yield frame.iloc[:1][["user", "kind", "at", "clicks"]]
        break


def collected(key: tuple[Any, ...], frames: Frames, state: GroupState) -> Frames:
    """The largest, a count by kind, the newest time; state as JSON, a column written to.

    JSON, for Spark 4.2.0 cannot read the schema of a state that has arrays or maps.
    """
    collected, newest = state.get if state.exists else ("[[], {}]", None)
    largest, kinds = json.loads(collected)
    for frame in frames:
        frame["clicks"] = frame["clicks"].fillna(0)
        largest = sorted([*largest, *frame["clicks"].astype(int).tolist()])[-3:]
        for kind in frame["kind"].dropna():
            kinds = {**kinds, kind: kinds.get(kind, 0) + 1}
        times = frame["at"].dropna()
        if len(times):
            newest = times.max().to_pydatetime()
    state.update((json.dumps([largest, kinds]), newest))
    yield pd.DataFrame(
        {"largest": [largest], "kinds": [str(sorted(kinds.items()))], "newest": [newest]}
    )


@dataclass(frozen=True)
class Example:
    """A function and what it is declared with."""

    function: Callable[[tuple[Any, ...], Frames, GroupState], Frames]
    key: list[str]
    state: str
    output: str


EXAMPLES = {
    "count": Example(count, ["user"], "n bigint", "user string, n bigint"),
    "sessions": Example(
        sessions,
        ["user"],
        "start timestamp, end timestamp, events bigint",
        "user string, start timestamp, end timestamp, events bigint",
    ),
    "statistics": Example(
        statistics,
        ["device"],
        "n bigint, total double, low double, high double",
        "device int, mean double, low double, high double",
    ),
    "first_seen": Example(
        first_seen,
        ["user", "kind"],
        "seen boolean",
        "user string, kind string, at timestamp, clicks bigint",
    ),
    "collected": Example(
        collected,
        ["device"],
        "collected string, newest timestamp",
        "largest array<bigint>, kinds string, newest timestamp",
    ),
}


@dataclass(frozen=True)
class Ran:
    """What both have emitted, by the example's name."""

    on_spark: dict[str, pd.DataFrame]
    on_absflow: dict[str, pd.DataFrame]


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Every example on both."""
    root = tmp_path_factory.mktemp("moved")
    write_events(root / "events")
    read = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
    events = read.parquet(str(root / "events"))
    with spark_conf(spark, {"spark.sql.session.timeZone": "Europe/Berlin"}):
        # Interpreted, Spark 4.2.0 cannot read a null out of what such a function emits.
        with spark_conf(spark, {"spark.sql.codegen.factoryMode": "FALLBACK"}):
            plain = on_spark(spark, root, events)
        return Ran(plain, on_absflow(spark, root, events))


def on_spark(spark: SparkSession, root: Path, events: DataFrame) -> dict[str, pd.DataFrame]:
    """Plain streaming queries, all at once."""
    queries = []
    for name, example in EXAMPLES.items():
        emitted = events.groupBy(*example.key).applyInPandasWithState(
            example.function,
            example.output,
            example.state,
            "append",
            GroupStateTimeout.NoTimeout,
        )
        writer = emitted.writeStream.format("delta").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(root / "work" / name))
        queries.append(writer.start(str(root / "spark" / name)))
    for query in queries:
        assert query.awaitTermination(300)
    return {name: emitted_rows(spark, root / "spark" / name) for name in EXAMPLES}


def on_absflow(spark: SparkSession, root: Path, events: DataFrame) -> dict[str, pd.DataFrame]:
    """One job, a stage and a source for each."""
    with settings(spark, {"storage.path": str(root / "job"), "key-groups": "3"}):
        job = absflow.Job("moved", spark)
        for name, example in EXAMPLES.items():
            source = job.source(f"{name}_events", events, bounded=True)
            stage = job.stage(
                name,
                source,
                key=example.key,
                state=example.state,
                output=example.output,
                process=example.function,
                form="per-key",
            )
            sink = absflow.DeltaSink(str(root / "absflow" / name))
            job.sink(f"{name}_rows", stage, sink)
        assert job.start().await_termination(timeout=300)
    return {name: emitted_rows(spark, root / "absflow" / name) for name in EXAMPLES}


def emitted_rows(spark: SparkSession, table: Path) -> pd.DataFrame:
    """All rows of a Delta table, with lists in the place of arrays."""
    rows = spark.read.format("delta").load(str(table)).toPandas()
    return rows.map(lambda value: value.tolist() if isinstance(value, np.ndarray) else value)


@pytest.mark.parametrize("name", EXAMPLES)
def test_both_emit_the_same_rows(ran: Ran, name: str) -> None:
    """In number and in every value."""
    due = ran.on_spark[name]
    assert len(due) >= 5
    assert_same_rows(ran.on_absflow[name], due, list(due.columns))
