"""Queries of plain Spark, stopped, and taken over by a job: their state and their positions.

``docs/move-over.md`` does so with an aggregation over files; here are other operators and sources.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka_topics import create, decoded, send
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from reading import assert_same_rows, rows_of
from session import settings, spark_conf

import absflow

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

TOPIC = "moved-query"
OUTPUT = "k string, n long, total long"
ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
# Long after the test.
WAIT_MS = 3_600_000


def added(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Count and sum of a key; each call moves its timeout an hour on."""
    n, total = state.getOption or (0, 0)
    for frame in frames:
        n, total = n + len(frame), total + int(frame["v"].sum())
    state.update((n, total))
    state.setTimeoutDuration(WAIT_MS)
    yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})


class Added(StatefulProcessor):
    """The same without a timeout."""

    def init(self, handle: Any) -> None:
        """One value."""
        self.sums = handle.getValueState("sums", "n long, total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Count and sum."""
        n, total = self.sums.get() or (0, 0)
        for row in rows:
            n, total = n + 1, total + row.v
        self.sums.update((n, total))
        yield Row(k=key[0], n=n, total=total)

    def close(self) -> None:
        """Nothing."""


def to_delta(frame: DataFrame, root: Path, **trigger: Any) -> None:
    """Run a query until all is read."""
    writer = frame.writeStream.format("delta").trigger(**(trigger or {"availableNow": True}))
    writer = writer.option("checkpointLocation", str(root / "query"))
    assert writer.start(str(root / "sink")).awaitTermination(200)


def state_of(spark: SparkSession, root: Path, **options: str) -> DataFrame:
    return spark.read.format("statestore").options(**options).load(str(root / "query"))


def sums(rows: pd.DataFrame) -> pd.DataFrame:
    """What the state must be once all rows have been counted once."""
    by_key = rows.groupby("k")["v"]
    return pd.DataFrame({"n": by_key.size(), "total": by_key.sum()}).reset_index()


@pytest.mark.soak
def test_a_query_with_timeouts_on_kafka(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """The job goes on at the next offset of each partition, in the query's own table.

    ``n`` rises by one with each row, so a row that was counted twice, or never, would show.
    """
    create(spark, kafka, TOPIC)
    send(spark, kafka, TOPIC, first=0, last=60)
    topic = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka)
    rows = decoded(topic.option("subscribe", TOPIC).option("startingOffsets", "earliest").load())
    timeout = GroupStateTimeout.ProcessingTimeTimeout
    # Interpreted, Spark 4.2.0 cannot read a null out of what such a function emits.
    with spark_conf(spark, {"spark.sql.codegen.factoryMode": "FALLBACK"}):
        counted = rows.groupBy("k").applyInPandasWithState(
            added, OUTPUT, "n long, total long", "append", timeout
        )
        # With such a timeout there is always another micro-batch to run, but for this trigger.
        to_delta(counted, tmp_path, once=True)
    send(spark, kafka, TOPIC, first=60, last=100)

    due = F.col("value.timeoutTimestamp")
    waits = F.struct(F.timestamp_micros(due * 1000 + 999).alias("time"), F.lit("").alias("name"))
    given = state_of(spark, tmp_path).select(
        "key.k",
        "value.groupState.*",
        F.lit(True).alias("_exists"),
        due.cast("long").alias("_timeout_ms"),
        F.array(waits).alias("_processing_timers"),
    )
    with settings(spark, {"storage.path": str(tmp_path / "job"), "key-groups": "3"}):
        job = absflow.Job("moved", spark)
        stage = job.stage(
            "sums",
            job.source("rows", rows, bounded=True),
            key="k",
            state="n long, total long",
            output=OUTPUT,
            process=added,
            form="per-key",
            timeout=timeout,
        )
        job.sink("table", stage, absflow.DeltaSink(str(tmp_path / "sink")))
        first = job.write_savepoint({"sums": given}, positions={"rows": str(tmp_path / "query")})
        history = absflow.history(spark, str(tmp_path / "job"))
        waiting = history.timers("sums", first).select("domain").distinct().collect()
        assert [row["domain"] for row in waiting] == ["processing"]
        run = job.start()
        assert run.await_termination(timeout=200)
    sent = decoded(
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", TOPIC)
        .load()
    ).toPandas()
    emitted = rows_of(tmp_path / "sink").to_pandas()
    newest = emitted.sort_values("n").groupby("k").tail(1)
    assert_same_rows(newest, sums(sent), ["k"])


def test_a_processor_on_files(spark: SparkSession, tmp_path: Path) -> None:
    """Its value is a struct; files that the query has read are not read again, old ones or new."""
    (tmp_path / "in").mkdir()
    frame = pd.DataFrame({"k": ["a", "b", None, "a"], "v": [1, 2, 3, 4]})
    rows = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1)
    rows = rows.parquet(str(tmp_path / "in"))
    for name in ("1", "2"):
        pq.write_table(pa.Table.from_pandas(frame), tmp_path / "in" / f"{name}.parquet")
    with spark_conf(spark, {PROVIDER: ROCKS_DB, "spark.sql.codegen.factoryMode": "FALLBACK"}):
        counted = rows.groupBy("k").transformWithState(Added(), OUTPUT, "append", "None")
        to_delta(counted, tmp_path)
        state = state_of(spark, tmp_path, stateVarName="sums").localCheckpoint()
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "in" / "3.parquet")
    given = state.select("key.k", F.col("value").alias("sums"))
    with settings(spark, {"storage.path": str(tmp_path / "job"), "key-groups": "3"}):
        job = absflow.Job("moved", spark)
        job.stage(
            "sums",
            job.source("rows", rows, bounded=True),
            key="k",
            output=OUTPUT,
            process=Added(),
            form="stateful-processor",
        )
        job.write_savepoint({"sums": given}, positions={"rows": str(tmp_path / "query")})
        planned = job.plan_restore()
        assert planned is not None
        assert (planned.positions, planned.problems) == ({"rows": '{"logOffset":1}'}, ())
        assert job.start().await_termination(timeout=200)
    state = absflow.history(spark, str(tmp_path / "job")).state("sums").select("k", "sums.*")
    due = pd.concat([frame] * 3).assign(k=lambda f: f["k"].fillna("null"))
    assert_same_rows(state.fillna("null").toPandas(), sums(due), ["k"])


@pytest.fixture(scope="module")
def counted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped query that has counted the rows of a file."""
    root = tmp_path_factory.mktemp("counted")
    (root / "in").mkdir()
    pq.write_table(pa.table({"k": ["a", "b"]}), root / "in" / "1.parquet")
    rows = spark.readStream.schema("k string").parquet(str(root / "in"))
    writer = rows.groupBy("k").count().writeStream.format("delta").outputMode("complete")
    writer = writer.option("checkpointLocation", str(root / "query")).trigger(availableNow=True)
    assert writer.start(str(root / "sink")).awaitTermination(200)
    return root


def begun(query: Path) -> None:
    """A micro-batch that was planned and has not ended."""
    offsets = query / "offsets"
    shutil.copy(offsets / "0", offsets / "1")


def of_kafka(query: Path) -> None:
    """Another kind of source."""
    log = query / "offsets" / "0"
    *before, _ = log.read_text().split("\n")
    log.write_text("\n".join([*before, '{"topic":{"0":7}}']))
    (query / "offsets" / ".0.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("change", "positions", "error", "message"),
    [
        (None, {"rows": "{root}/nowhere"}, absflow.StateError, "has no micro-batch of a streaming"),
        (None, {"rows": "{root}/query#1"}, absflow.StateError, "reads 1 sources, of which #0 is"),
        (None, {"lines": "{root}/query"}, absflow.NotFoundError, "no source 'lines'; the job has"),
        (begun, {"rows": "{root}/query"}, absflow.StateError, "was stopped within micro-batch 1"),
        (of_kafka, {"rows": "{root}/query"}, absflow.StateError, "a position of another kind"),
    ],
    ids=["nowhere", "second source", "unknown source", "within a batch", "other kind"],
)
def test_what_says_no_position_is_refused(
    spark: SparkSession,
    counted: Path,
    tmp_path: Path,
    change: Any,
    positions: dict[str, str],
    error: type[Exception],
    message: str,
) -> None:
    """In words, before anything is written: the storage root is as new afterwards."""
    shutil.copytree(counted, tmp_path, dirs_exist_ok=True)
    if change is not None:
        change(tmp_path / "query")
    given = {name: path.format(root=tmp_path) for name, path in positions.items()}
    with settings(spark, {"storage.path": str(tmp_path / "job"), "key-groups": "2"}):
        job = absflow.Job("moved", spark)
        rows = spark.readStream.schema("k string").parquet(str(tmp_path / "in"))
        source = job.source("rows", rows, bounded=True)
        job.stage("n", source, key="k", state="n long", output="k string", process=lambda *_: None)
        state = spark.createDataFrame([("a", 1)], "k string, n long")
        with pytest.raises(error, match=message):
            job.write_savepoint({"n": state}, positions=given)
        first = job.write_savepoint({"n": state})
        with pytest.raises(absflow.StateError, match="which has its own; leave them out"):
            job.write_savepoint({"n": state}, base=first, positions=given)
