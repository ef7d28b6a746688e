"""StatefulProcessor classes on Spark and on absflow: the same rows.

Visits of users to pages, in a value, a list and a map state. A timer ends a visit when the
watermark has passed it; Spark does so in the micro-batch behind the one that moved the watermark,
absflow in that one. So the processor ends a visit by itself, too, if a row comes behind its end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from reading import assert_same_rows, completed, files_read, rows_of
from session import settings, spark_conf

import absflow

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1200)]

EVENTS = "user string, at timestamp, page string, v int"
OUTPUT = (
    "user string, what string, at_ms bigint, rows int, total bigint, newest string, pages string"
)
NAMES = [column.split()[0] for column in OUTPUT.split(", ")]
GAP_MS, FILES, ROWS = 420_000, 4, 60
START_MS = 1_700_000_000_000
FORMS = {True: "stateful-processor-in-pandas", False: "stateful-processor"}


def write_events(folder: Path) -> None:
    """Files of an hour each; the last ends all visits but its own."""
    folder.mkdir()
    random = np.random.default_rng(11)
    for number in range(FILES):
        seconds = np.sort(random.integers(3_600 * number, 3_600 * (number + 1), ROWS))
        seconds = seconds - random.integers(0, 200, ROWS)
        users = [f"u{n}" for n in random.integers(0, 7, ROWS)]
        pages = [f"p{n}" for n in random.integers(0, 3, ROWS)]
        write(folder / f"{number}.parquet", users, seconds, pages, random.integers(0, 50, ROWS))
    write(folder / f"{FILES}.parquet", ["end"], np.array([99 * 3_600]), ["p0"], np.array([1]))


def write(file: Path, users: list[str], seconds: Any, pages: list[str], values: Any) -> None:
    at = pa.array(START_MS * 1_000 + seconds * 1_000_000 + 137, pa.int64())
    columns = {
        "user": users,
        "at": at.cast(pa.timestamp("us", tz="UTC")),
        "page": pages,
        "v": pa.array(values, pa.int32()),
    }
    pq.write_table(pa.table(columns), file)
    os.utime(file, (1_000_000 + int(file.stem),) * 2)  # Spark reads them in the order of these


class Visits(StatefulProcessor):
    """What users do without a gap of seven minutes: a row of each event, one of each visit."""

    def __init__(self, ttl_ms: int | None, timers: bool) -> None:
        self.ttl_ms, self.timers = ttl_ms, timers

    def init(self, handle: Any) -> None:
        self.handle = handle
        kept = "last_ms bigint, rows int, total bigint"
        self.visit = handle.getValueState("visit", kept, self.ttl_ms)
        self.newest = handle.getListState("newest", "v int", self.ttl_ms)
        self.pages = handle.getMapState("pages", "page string", "rows int", self.ttl_ms)
        self.unused = handle.getValueState("unused", "x int")
        handle.deleteIfExists("unused")

    def events(self, key: tuple[Any, ...], events: list[tuple[int, str, int]]) -> Iterator[Any]:
        for at_ms, page, value in sorted(events):
            if self.visit.exists() and at_ms > self.visit.get()[0] + GAP_MS:
                yield self.ended(key)
            last_ms, rows, total = self.visit.get() or (at_ms, 0, 0)
            if self.timers:
                self.handle.deleteTimer(last_ms + GAP_MS)
                self.handle.registerTimer(max(last_ms, at_ms) + GAP_MS)
            self.visit.update((max(last_ms, at_ms), rows + 1, total + value))
            newest = [*self.newest.get(), (value,)]
            if len(newest) > 3:
                self.newest.put(newest[1:])
            else:
                self.newest.appendValue((value,))
            before = self.pages.getValue((page,))
            self.pages.updateValue((page,), ((before.rows if before else 0) + 1,))
            if page == "p2" and self.pages.containsKey(("p1",)):
                self.pages.removeKey(("p1",))
            yield self.now(key, "event", at_ms)

    def now(self, key: tuple[Any, ...], what: str, at_ms: int) -> tuple[Any, ...]:
        _, rows, total = self.visit.get()
        newest = ",".join(str(value) for (value,) in self.newest.get())
        pages = ",".join(sorted(f"{p}={rows}" for (p,), (rows,) in self.pages.iterator()))
        return (key[0], what, at_ms, rows, total, newest, pages)

    def ended(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        made = self.now(key, "visit", self.visit.get()[0])
        for state in (self.visit, self.newest, self.pages):
            state.clear()
        for at_ms in list(self.handle.listTimers()):
            self.handle.deleteTimer(at_ms)
        return made

    def expired(self, key: tuple[Any, ...], info: Any) -> tuple[Any, ...]:
        assert info.getExpiryTimeInMs() == self.visit.get()[0] + GAP_MS
        return self.ended(key)


class OfRows(Visits):
    """For transformWithState."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        events = [(round(row.at.timestamp() * 1_000), row.page, row.v) for row in rows]
        for made in self.events(key, events):
            yield Row(*NAMES)(*made)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(*NAMES)(*self.expired(key, expiredTimerInfo))


class OfFrames(Visits):
    """For transformWithStateInPandas."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        frame = pd.concat(list(rows))
        at_ms = (frame["at"].astype("int64") // 1_000_000).tolist()
        events = list(zip(at_ms, frame["page"], frame["v"], strict=True))
        yield pd.DataFrame(list(self.events(key, events)), columns=NAMES)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield pd.DataFrame([self.expired(key, expiredTimerInfo)], columns=NAMES)


def on_spark(
    events: DataFrame, root: Path, processor: Visits, mode: str, *, in_pandas: bool
) -> pd.DataFrame:
    grouped = events.withWatermark("at", "5 minutes").groupBy("user")
    transform = grouped.transformWithStateInPandas if in_pandas else grouped.transformWithState
    writer = transform(processor, OUTPUT, "append", mode).writeStream.format("delta")
    writer = writer.option("checkpointLocation", str(root / "work"))
    if mode == "EventTime":
        assert writer.trigger(availableNow=True).start(str(root / "spark")).awaitTermination(800)
    else:  # that trigger does not end here: Spark always runs one more batch, for its timers
        query = writer.start(str(root / "spark"))
        until_all_read(query)
        query.stop()
    return rows_of(root / "spark").to_pandas()


def until_all_read(query: StreamingQuery) -> None:
    """Until the batches have had every row."""
    read: dict[int, int] = {}
    until = time.monotonic() + 200
    while sum(read.values()) <= FILES * ROWS:
        assert time.monotonic() < until, read
        read.update((p["batchId"], p["numInputRows"]) for p in query.recentProgress)
        time.sleep(0.2)


def on_absflow(
    spark: SparkSession,
    root: Path,
    processor: Visits,
    mode: str,
    *,
    in_pandas: bool,
    **conf: str,
) -> pd.DataFrame:
    given = {"storage.path": str(root / "job"), "key-groups": "3", "checkpoint.interval": "300ms"}
    with settings(spark, given | {name.replace("_", "."): conf[name] for name in conf}):
        job = absflow.Job("visits", spark)
        declared = absflow.Watermark(delay="5min", late="fail")
        source = job.source(
            "events", read(spark, root), bounded=True, event_time="at", watermark=declared
        )
        stage = job.stage(
            "visits",
            source,
            key="user",
            output=OUTPUT,
            process=processor,
            form=FORMS[in_pandas],
            time_mode=mode,
        )
        job.sink("rows", stage, absflow.DeltaSink(str(root / "absflow")))
        assert job.start().await_termination(timeout=800)
    return rows_of(root / "absflow").to_pandas()


def read(spark: SparkSession, root: Path) -> DataFrame:
    reader = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(root / "events"))


def conf() -> dict[str, str]:
    stores = "org.apache.spark.sql.execution.streaming.state"
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.codegen.factoryMode": "FALLBACK",
        "spark.sql.streaming.stateStore.providerClass": f"{stores}.RocksDBStateStoreProvider",
        # RocksDB's files need one that can rename over another.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing."
            "FileContextBasedCheckpointFileManager"
        ),
    }


def check(found: pd.DataFrame, due: pd.DataFrame) -> None:
    """The same rows, but for the user who came last: absflow ends visits with bounded sources."""
    found = found[found["user"] != "end"]
    due = due[due["user"] != "end"]
    assert len(due) > FILES * ROWS
    assert_same_rows(found, due, ["user", "at_ms", "what", "rows"])


def test_processors_of_rows_give_the_same_with_timers_and_after_a_restore(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also from a checkpoint in the middle, into more key groups."""
    write_events(tmp_path / "events")
    processor = OfRows(None, timers=True)
    with spark_conf(spark, conf()):
        due = on_spark(read(spark, tmp_path), tmp_path, processor, "EventTime", in_pandas=False)
    assert set(due["what"]) == {"event", "visit"}
    check(on_absflow(spark, tmp_path, processor, "EventTime", in_pandas=False), due)
    rows = completed(spark, tmp_path / "job")
    middle = next(r for r in rows if files_read(r, "visits", "events") in range(1, FILES))
    timers = absflow.history(spark, str(tmp_path / "job")).timers("visits", middle["checkpoint_id"])
    assert timers.count() > 0
    chosen = str(middle["checkpoint_id"])
    again = on_absflow(
        spark,
        tmp_path,
        processor,
        "EventTime",
        in_pandas=False,
        restore_from=chosen,
        **{"key-groups": "7"},
    )
    check(again, due)


def test_processors_of_frames_give_the_same_with_a_time_to_live(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A long one: what expires when is up to the clock, which the two do not share."""
    write_events(tmp_path / "events")
    processor = OfFrames(3_600_000, timers=False)
    with spark_conf(spark, conf()):
        due = on_spark(read(spark, tmp_path), tmp_path, processor, "ProcessingTime", in_pandas=True)
    check(on_absflow(spark, tmp_path, processor, "ProcessingTime", in_pandas=True), due)
    state = absflow.history(spark, str(tmp_path / "job")).state("visits")
    kept = {row.user: row.n for row in state.selectExpr("user", "visit.rows AS n").collect()}
    assert kept == due.sort_values("at_ms", kind="stable").groupby("user")["rows"].last().to_dict()
