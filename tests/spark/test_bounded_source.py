"""When a bounded source has nothing left: without a single row, or with rows that it holds back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chain import wait
from deltalake import write_deltalake
from diamond import OUTPUT, ROWS, STATE, to_group
from kafka_topics import create, decoded, send
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from session import settings

import absflow
from absflow.spark.batch.listener import exhausted

pytestmark = pytest.mark.spark

CONF = {"checkpoint.interval": "1s", "edges": "channel", "key-groups": "2"}
COLUMNS = pa.schema([("id", pa.int64()), ("k", pa.string()), ("v", pa.int64())])
PATIENCE_S = 240


class Sources:
    """Sources of three kinds without a row, and one of files with one."""

    def __init__(self, spark: SparkSession, servers: str, root: Path) -> None:
        """Below ``root``, and in a topic of that name."""
        self.spark, self.servers, self.root = spark, servers, root
        self.topic = f"empty-{root.name}"
        for name in ("files", "rows"):
            (root / name).mkdir()
        write_deltalake(root / "delta", COLUMNS.empty_table())
        create(spark, servers, self.topic)
        self.add("rows", 0)

    def frame(self, name: str) -> DataFrame:
        """A source."""
        reader = self.spark.readStream
        if name == "delta":
            return reader.format("delta").load(str(self.root / name))
        if name == "kafka":
            given = {"kafka.bootstrap.servers": self.servers, "subscribe": self.topic}
            return decoded(reader.format("kafka").options(**given).load())
        return reader.schema(ROWS).option("maxFilesPerTrigger", 1).parquet(str(self.root / name))

    def add(self, name: str, number: int) -> None:
        """A row."""
        if name == "kafka":
            send(self.spark, self.servers, self.topic, first=number, last=number + 1)
            return
        row = pa.table({"id": [number], "k": ["x"], "v": [1]}, COLUMNS)
        if name == "delta":
            write_deltalake(self.root / name, row, mode="append")
        else:
            pq.write_table(row, self.root / name / f"{number}.parquet")

    def run(self, stages: Sequence[Sequence[str]]) -> list[int]:
        """Run a job to its end, a stage for each of these groups before the last; the ids in it."""
        job = absflow.Job("empty", self.spark)
        before = [
            job.stage(
                f"first_{place}",
                [job.source(name, self.frame(name), bounded=True) for name in names],
                key="k",
                state=STATE,
                output=OUTPUT,
                process=dict.fromkeys(names, to_group),
            )
            for place, names in enumerate(stages)
        ]
        process = {f"first_{place}": to_group for place in range(len(stages))}
        last = job.stage("last", before, key="g", state=STATE, output=OUTPUT, process=process)
        sink = str(self.root / "sink")
        job.sink("out", last, absflow.DeltaSink(sink))
        with settings(self.spark, {**CONF, "storage.path": str(self.root / "job")}):
            run = job.start()
            try:
                assert run.await_termination(timeout=PATIENCE_S), run.progress()
            finally:
                if run.is_active:
                    run.stop()
        assert run.finished_checkpoint is not None
        history = absflow.history(self.spark, str(self.root / "job"))
        counted = [
            history.state(f"first_{place}", run.finished_checkpoint).agg(F.sum("n")).first()
            for place in range(len(stages))
        ]
        ids = sorted(row.id for row in self.spark.read.format("delta").load(sink).collect())
        assert sum(row[0] or 0 for row in counted if row) == len(ids)
        return ids


@pytest.mark.parametrize("name", ["files", "delta"])
def test_a11_a_job_without_a_single_row_ends(
    spark: SparkSession, kafka: str, tmp_path: Path, name: str
) -> None:
    """Its only source is empty."""
    assert Sources(spark, kafka, tmp_path).run([[name]]) == []


@pytest.mark.soak
def test_a11_an_empty_source_beside_one_with_rows_ends(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    """The job ends with the other's rows; what comes later is taken up whole, state and all."""
    sources = Sources(spark, kafka, tmp_path)
    stages = [["files", "delta", "kafka"], ["rows"]]
    assert sources.run(stages) == [0]
    later = {"files": (1, 2, 3), "delta": (4,), "kafka": (5,)}
    for name, numbers in later.items():
        for number in numbers:
            sources.add(name, number)
    assert sources.run(stages) == [0, 1, 2, 3, 4, 5]


def test_a8_rows_below_a_minimum_per_trigger_are_not_nothing(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    """Their job does not end before it has read them, though its position stands still."""
    topic = "minimum-per-trigger"
    create(spark, kafka, topic)
    send(spark, kafka, topic, first=0, last=5)
    got: list[int] = []

    def write(rows: DataFrame, made: absflow.SinkWrite) -> None:
        first = not got
        got.extend(row.id for row in rows.select("id").collect())
        if first:  # Spark reads what there is in the first batch, whatever the minimum
            send(spark, kafka, topic, first=5, last=10)

    job = absflow.Job("minimum", spark)
    given = {"kafka.bootstrap.servers": kafka, "subscribe": topic, "minOffsetsPerTrigger": "100"}
    given |= {"startingOffsets": "earliest", "maxTriggerDelay": "10h"}
    frame = decoded(spark.readStream.format("kafka").options(**given).load())
    source = job.source("topic", frame, bounded=True)
    stage = job.stage("tally", source, key="k", state=STATE, output=OUTPUT, process=to_group)
    job.sink("out", stage, absflow.ForeachBatchSink(write))
    with settings(spark, {**CONF, "storage.path": str(tmp_path / "job")}):
        run = job.start()
        try:
            wait(lambda: len(got) == 5 and run.progress().completed >= 3, run, PATIENCE_S)
            send(spark, kafka, topic, first=10, last=110)
            assert run.await_termination(timeout=PATIENCE_S), run.progress()
        finally:
            if run.is_active:
                run.stop()
    assert sorted(got) == list(range(110))


def test_what_a_trigger_found_at_its_sources() -> None:
    """A source with rows that wait for more of them is not exhausted, one without any is."""

    def places(*sources: tuple[object, object, object], asked: str = "latestOffset") -> object:
        names = ("startOffset", "endOffset", "latestOffset")
        parsed = [dict(zip(names, given, strict=True)) for given in sources]
        text = json.dumps({"durationMs": {asked: 1}, "sources": parsed})
        return exhausted(json.loads(text))

    at, later = {"t": {"0": 7}}, {"t": {"0": 9}}
    assert places((at, at, at), (at, at, None), (None, None, None)) == (0, 1, 2)
    assert places((at, at, later), (None, None, later), (None, at, at), (at, later, later)) == ()
    assert places((at, at, at), asked="getOffset") == (0,)
    assert places((at, at, None), asked="walCommit") == ()
