"""What goes wrong is refused, repaired, or reported; nothing half-done is committed."""

from __future__ import annotations

import inspect
import logging
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chain import expected
from diamond import OUTPUT, ROWS, STATE, to_group, write_source
from failing import FailsOnce, raises_on_17, random_values, slow, with_map, wrong_type
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, facts, files_read, rows_of, state_at
from session import settings

import absflow
from absflow.spark.control import run as control_run
from absflow.spark.stream import pages as stream_pages
from absflow.spark.worker import packing
from absflow.storage.delta import transactions

pytestmark = pytest.mark.spark

FAST = {"checkpoint.interval": "1s", "key-groups": "3", "restart.initial-delay": "0s"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a source ``a`` of a few small files."""
    write_source(tmp_path / "a", files=3, rows=60, seed=5)
    return tmp_path


def job_of(spark: SparkSession, root: Path, process: Any, *, tally: bool = False) -> absflow.Job:
    """Source ``a``, stage ``left`` with ``process``, a sink; and a consumer if asked for."""
    job = absflow.Job("failing", spark)
    frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    a = job.source("a", frame.parquet(str(root / "a")), bounded=True)
    left = job.stage("left", a, key="k", state=STATE, output=OUTPUT, process=process)
    if tally:
        job.stage("tally", left, key="g", state=STATE, output=OUTPUT, process=to_group)
    job.sink("out", left, absflow.DeltaSink(str(root / "sink")))
    return job


def run(
    spark: SparkSession, root: Path, job: absflow.Job, conf: Mapping[str, str] | None = None
) -> None:
    """Run to the end, or to the error."""
    with settings(spark, {**FAST, "storage.path": str(root / "job"), **(conf or {})}):
        job.start().await_termination()


def line_in(process: Any) -> int:
    """The line that raises in a function; of one that does not, where it begins."""
    lines, first = inspect.getsourcelines(process)
    return first + next((n for n, line in enumerate(lines) if " raise " in line), 0)


def sink_rows(spark: SparkSession, root: Path) -> int:
    """How many rows are in the sink."""
    return spark.read.format("delta").load(str(root / "sink")).count()


@pytest.mark.parametrize(
    ("process", "words"),
    [
        (raises_on_17, ["(key group", "ZeroDivisionError: seventeen", "'k': 'k17'"]),
        (wrong_type, ["(key group", "output column 'g'", "string", "int64"]),
    ],
)  # fmt: skip
def test_a_failing_function_fails_the_job_loudly_and_commits_nothing(
    spark: SparkSession, root: Path, process: Any, words: list[str]
) -> None:
    """Stage, input, file and line come first, in the cause, too; sink and history stay empty."""
    with pytest.raises(absflow.JobFailedError) as failed:
        run(spark, root, job_of(spark, root, process), {"restart.attempts": "0"})
    assert all(word in str(failed.value) for word in words), str(failed.value)
    first = rf"stage 'left', input 'a', .*/failing\.py:{line_in(process)} \(key group \d+\): "
    assert re.match(f"job 'failing' gave up: {first}", str(failed.value))
    assert isinstance(failed.value.__cause__, absflow.ProcessError)
    assert re.match(first, str(failed.value.__cause__))
    assert failed.value.__cause__.__cause__ is None  # nor Spark's, which Python would print first
    assert sink_rows(spark, root) == 0
    assert completed(spark, root / "job") == []


def test_a_stop_behind_a_known_failure_raises_nothing(spark: SparkSession, root: Path) -> None:
    """So it can stand in a `finally`; a stop that is the first to know raises."""
    conf = {**FAST, "storage.path": str(root / "job"), "restart.attempts": "0"}
    with settings(spark, conf):
        started = job_of(spark, root, raises_on_17).start()
        with pytest.raises(absflow.JobFailedError) as failed:
            try:
                started.await_termination()
            finally:
                assert started.stop() is None
                assert started.stop(savepoint=True) is None
        assert failed.value.__context__ is None
        unseen = job_of(spark, root, raises_on_17).start()
        assert unseen._loop.done.wait(300)
        with pytest.raises(absflow.JobFailedError, match="seventeen"):
            unseen.stop()
        unseen.stop()


def test_a_second_start_in_one_process_is_refused(spark: SparkSession, root: Path) -> None:
    """A cell that is run twice; the first run goes on, whether anybody has it or not."""
    conf = {**FAST, "storage.path": str(root / "job"), "trigger.interval": "1h"}
    with settings(spark, conf):
        job_of(spark, root, to_group).start()
        with pytest.raises(absflow.StorageError, match="this process runs a job on the storage"):
            job_of(spark, root, to_group).start()
        (running,) = (loop for loop in control_run._loops.values() if loop.runs)
        running.ask_to_stop()
        assert running.done.wait(300)
        assert running.failure is None
        job_of(spark, root, to_group).start().stop()


@pytest.mark.parametrize("by_instance", [False, True], ids=["closure", "instance"])
def test_a_function_that_cannot_be_sent_is_named(
    spark: SparkSession, root: Path, by_instance: bool
) -> None:
    """With its stage, input and line, and what it holds; nothing is written."""
    held = threading.Lock()

    def locked(rows: Any, state: Any, context: Any) -> absflow.Result:
        with held:
            return to_group(rows, state, context)

    process = FailsOnce(held) if by_instance else locked  # type: ignore[arg-type]
    name = "flag" if by_instance else "held"
    words = rf"^stage 'left', input 'a', .*\.py:\d+: this function .* for it uses '{name}' \(Type"
    with pytest.raises(absflow.GraphError, match=words):
        run(spark, root, job_of(spark, root, process))
    assert not (root / "job").exists()


def test_a_dead_query_is_restarted_and_the_result_exact(spark: SparkSession, root: Path) -> None:
    """The restart strategy repairs what passes."""
    run(spark, root, job_of(spark, root, FailsOnce(root / "flag")))
    sink = rows_of(root / "sink").to_pandas()
    due = expected(root, 3)
    assert_same_rows(sink, due["sink"], ["id"])
    last = completed(spark, root / "job")[-1]
    assert_same_rows(state_at(spark, root / "job", last, "left", "k"), due["left"], ["k"])


def test_a_checkpoint_that_takes_too_long_expires_and_the_job_gives_up(
    spark: SparkSession, root: Path
) -> None:
    """EXPIRED counts; more in a row than are tolerated fail the job, and nothing is lost."""
    conf = {"checkpoint.timeout": "100ms", "checkpoint.tolerable-failed": "1"}
    with pytest.raises(absflow.JobFailedError, match="2 checkpoints failed in a row"):
        run(spark, root, job_of(spark, root, slow), conf)
    reasons = [row["reason"] for row in facts(spark, root / "job")]
    assert reasons[:2] == ["EXPIRED", "EXPIRED"]
    run(spark, root, job_of(spark, root, slow))
    sink = rows_of(root / "sink").to_pandas()
    assert_same_rows(sink, expected(root, 3)["sink"], ["id"])
    assert files_read(completed(spark, root / "job")[-1], "left", "a") == 3


def test_a_storage_error_that_passes_does_not_end_the_job(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Facts that must be written are written again: the release of a barrier, the abort."""
    append = transactions.append_once
    left = {"checkpoints": 2, "overtakes": 1}

    def failing(frame: Any, path: str, *rest: Any, **named: Any) -> Any:
        table = path.rpartition("/")[2]
        kinds = frame.table["kind"].to_pylist() if table in left else []
        if left.get(table) and {"ABORTED", "ABORT"} & {*kinds}:
            left[table] -= 1
            raise absflow.StorageError("the storage is away for a moment")
        return append(frame, path, *rest, **named)

    monkeypatch.setattr(transactions, "append_once", failing)
    conf = {"checkpoint.timeout": "100ms", "checkpoint.tolerable-failed": "2"}
    with pytest.raises(absflow.JobFailedError, match="3 checkpoints failed in a row"):
        run(spark, root, job_of(spark, root, slow), conf)
    assert left == dict.fromkeys(left, 0)
    run(spark, root, job_of(spark, root, slow))
    rows = facts(spark, root / "job")
    assert len({row["checkpoint_id"] for row in rows}) == len(rows)
    sink = rows_of(root / "sink").to_pandas()
    assert_same_rows(sink, expected(root, 3)["sink"], ["id"])


@pytest.mark.parametrize("by_workers", [True, False], ids=["files of workers", "staged pages"])
def test_a_failed_history_append_aborts_its_checkpoint_only(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, by_workers: bool
) -> None:
    """SNAPSHOT_FAILED; the next one completes and its state is whole."""
    if not by_workers:
        monkeypatch.setattr(transactions, "plain_table", lambda *_: None)
    append = transactions.append_once
    failures = iter([True])

    def failing(frame: Any, path: str, *rest: Any, **named: Any) -> None:
        if "/state/" in path and next(failures, False):
            raise absflow.StorageError("the disk is full")
        append(frame, path, *rest, **named)

    monkeypatch.setattr(transactions, "append_once", failing)
    with caplog.at_level(logging.CRITICAL):
        run(spark, root, job_of(spark, root, to_group))
    first, *_, last = facts(spark, root / "job")
    assert (first["reason"], first["cause"]) == (
        "SNAPSHOT_FAILED",
        "stage left: the disk is full",
    )
    assert last["kind"] == "COMPLETED"
    state = state_at(spark, root / "job", last, "left", "k")
    assert_same_rows(state, expected(root, 3)["left"], ["k"])
    assert not list((root / "job" / "work").glob("attempt=*/*/staging/*"))  # A5: none is left


def test_a_corrupt_page_is_refused_and_nothing_committed(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flipped bit between shuffle and stage stops the batch."""
    pack = packing.pack_function

    def flipping(*args: Any) -> Any:
        packed = pack(*args)

        def flip(batches: Any) -> Any:
            for batch in packed(batches):
                rows = batch.to_pylist()
                payload = bytearray(rows[0]["payload"])
                payload[-1] ^= 1
                rows[0]["payload"] = bytes(payload)
                yield pa.RecordBatch.from_pylist(rows, schema=batch.schema)

        return flip

    monkeypatch.setattr(stream_pages, "pack_function", flipping)
    with pytest.raises(absflow.JobFailedError) as failed:
        run(spark, root, job_of(spark, root, to_group), {"restart.attempts": "0"})
    assert all(word in str(failed.value) for word in ("corrupt", "checksum", "is due"))
    assert sink_rows(spark, root) == 0


def test_a_replay_that_differs_stops_the_stage(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel has rows of batch 0; a function with a random number gives others for it."""
    append = transactions.append_once
    failures = iter([True])

    def failing(frame: Any, path: str, *rest: Any, **named: Any) -> None:
        if path.endswith("/sink") and next(failures, False):
            raise absflow.StorageError("after the channel, before the sink")
        append(frame, path, *rest, **named)

    monkeypatch.setattr(transactions, "append_once", failing)
    job = job_of(spark, root, random_values, tally=True)
    with pytest.raises(absflow.JobFailedError, match="digest"):
        run(spark, root, job, {"restart.attempts": "1"})
    assert sink_rows(spark, root) == 0


@pytest.fixture
def dies_after_its_sink(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first batch fails once, behind its commit to the sink; the sink's commits."""
    append = transactions.append_once
    made: list[str] = []

    def failing(frame: Any, path: str, app_id: str, *rest: Any, **named: Any) -> Any:
        messages = append(frame, path, app_id, *rest, **named)
        if path.endswith("/sink"):
            made.append(app_id)
            if len(made) == 1:
                raise absflow.StorageError("after the sink, before Spark's commit")
        return messages

    monkeypatch.setattr(transactions, "append_once", failing)
    return made


def test_a_replay_that_differs_stops_a_stage_with_sinks_only(
    spark: SparkSession, root: Path, dies_after_its_sink: list[str]
) -> None:
    """Its sink would skip the rows, and its state take others."""
    with pytest.raises(absflow.JobFailedError, match=r"digest .* but version \d+ of its sink"):
        run(spark, root, job_of(spark, root, random_values), {"restart.attempts": "1"})
    assert len(dies_after_its_sink) == 1
    assert 0 < sink_rows(spark, root) < len(expected(root, 3)["sink"])


def test_a_replay_into_a_sink_with_odd_columns_goes_on(
    spark: SparkSession, root: Path, dies_after_its_sink: list[str]
) -> None:
    """Rows with maps, which Spark does not hash; a partitioned table with another order."""
    sink = f"delta.`{root / 'sink'}`"
    columns = "m map<string, bigint>, v bigint, id bigint, g bigint"
    spark.sql(f"CREATE TABLE {sink} ({columns}) USING delta PARTITIONED BY (g)")
    job = absflow.Job("failing", spark)
    frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    a = job.source("a", frame.parquet(str(root / "a")), bounded=True)
    output = f"{OUTPUT}, m map<string, bigint>"
    left = job.stage("left", a, key="k", state=STATE, output=output, process=with_map)
    job.sink("out", left, absflow.DeltaSink(str(root / "sink")))
    run(spark, root, job, {"restart.attempts": "1"})
    assert len(dies_after_its_sink) > 1
    rows = spark.read.format("delta").load(str(root / "sink")).drop("m").toPandas()
    assert_same_rows(rows[["id", "g", "v"]], expected(root, 3)["sink"], ["id"])


def test_a_sink_function_need_not_read_its_rows(spark: SparkSession, root: Path) -> None:
    """The stage runs for all of its key groups all the same, once."""
    job = absflow.Job("failing", spark)
    frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    a = job.source("a", frame.parquet(str(root / "a")), bounded=True)
    left = job.stage("left", a, key="k", state=STATE, output=OUTPUT, process=to_group)
    seen: list[int] = []
    job.sink("none", left, absflow.ForeachBatchSink(lambda rows, made: seen.append(made.batch_id)))
    job.sink("one", left, absflow.ForeachBatchSink(lambda rows, made: rows.limit(1).collect()))
    run(spark, root, job)
    last = completed(spark, root / "job")[-1]
    assert files_read(last, "left", "a") == 3
    state = state_at(spark, root / "job", last, "left", "k")
    assert_same_rows(state, expected(root, 3)["left"], ["k"])
    assert len(seen) >= 3


def test_a_query_that_somebody_else_stops_fails_the_job(spark: SparkSession, root: Path) -> None:
    """It would wait for its stage for ever; started again it goes on."""
    with settings(spark, {**FAST, "storage.path": str(root / "job")}):
        job = job_of(spark, root, slow).start()
        (query,) = spark.streams.active
        query.stop()
        with pytest.raises(absflow.JobFailedError, match="'left' was stopped from outside"):
            job.await_termination(timeout=60)
    run(spark, root, job_of(spark, root, to_group))
    assert sink_rows(spark, root) == len(expected(root, 3)["sink"])


def test_an_unwritable_storage_path_is_refused(spark: SparkSession, root: Path) -> None:
    """A path below a file cannot be a directory; the message names it."""
    (root / "file").write_text("")
    with pytest.raises(absflow.StorageError, match=r"could not write .*file/job"):
        run(spark, root, job_of(spark, root, to_group), {"storage.path": str(root / "file/job")})


@pytest.mark.parametrize("conf", [{"checkpoint.interval": "0s"}, {"checkpoint.intervall": "5s"}])
def test_bad_settings_are_refused_before_anything_is_written(
    spark: SparkSession, root: Path, conf: dict[str, str]
) -> None:
    """Not even the storage root is made."""
    with pytest.raises(absflow.SettingsError, match=next(iter(conf))):
        run(spark, root, job_of(spark, root, to_group), conf)
    assert not (root / "job").exists()


def with_time(state: Any) -> None:
    """Of no form."""


def test_a_source_that_is_no_stream_is_refused(spark: SparkSession) -> None:
    """A batch frame, or two streams in one, has no one position at a barrier."""
    job = absflow.Job("bad", spark)
    with pytest.raises(absflow.GraphError, match="is not a streaming DataFrame"):
        job.source("a", spark.range(3))
    stream = spark.readStream.format("rate").load()
    with pytest.raises(absflow.GraphError, match="reads 2 streams"):
        job.source("a", stream.union(spark.readStream.format("rate").load()))
    counted = spark.range(3).groupBy("id").count()
    job.source("joined", stream.join(counted, stream["value"] == counted["id"]))
    for stateful in (
        stream.dropDuplicates(["value"]),
        stream.groupBy("value").count(),
        stream.select("value").distinct(),
        stream.limit(3),
    ):
        with pytest.raises(absflow.GraphError, match="has a stateful operator"):
            job.source("a", stateful)
    with pytest.raises(absflow.GraphError, match="has a watermark"):
        job.source("a", stream.withWatermark("timestamp", "1 minute"))
    with pytest.raises(absflow.GraphError, match="is not Spark DDL"):
        job.stage("x", "a", key="k", state="n lon g", output="n long", process=to_group)
    with pytest.raises(absflow.GraphError, match="form is 'per-group', must be one of"):
        job.stage(
            "x", "a", key="k", state="n long", output="n long", process=to_group, form="per-group"
        )
    ways = r"\(state, row\) or \(state, row, context\)"
    wrong = rf"with_time\(.*, but one of form 'per-row' is called with {ways}; say which"
    with pytest.raises(absflow.GraphError, match=wrong):
        job.stage(
            "x", "a", key="k", state="n long", output="n long", process=with_time, form="per-row"
        )
