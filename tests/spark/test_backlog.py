"""Checkpoints that overtake a backlog: one cut, rows in flight by reference, restored once."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from chain import conf, expected
from diamond import (
    OUTPUT,
    ROWS,
    STATE,
    diamond,
    expected_sink,
    expected_state,
    holds_all,
    read_source,
    source_files,
    to_group,
    write_source,
)
from pyspark.sql import DataFrame, SparkSession
from reading import assert_same_rows, completed, facts, files_read, rows_of, stage_of, state_at
from session import settings, shuffle_partitions

import absflow
from absflow.cli.reader import Reader
from absflow.protocol.retention.inventory import DeleteEpochs, RetentionPolicy
from absflow.spark.batch.micro_batch import ChainBatches

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FILES = 10
SLOW_S = 0.5
# A batch of the slow stage reads one file of its channel, of which a batch of the fast one has two.
BACKLOG = {"channel__max_bytes_per_trigger": "1B", "key_groups": "2"}


def slowly(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """A stage that cannot keep up."""
    time.sleep(SLOW_S)
    return to_group(rows, state, context)


def job(spark: SparkSession, root: Path, sink: Path | None = None) -> absflow.Job:
    """The job of :mod:`chain`, its second stage slow."""
    job = absflow.Job("chain", spark)
    frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    a = job.source("a", frame.parquet(str(root / "a")), bounded=True)
    left = job.stage("left", a, key="k", state=STATE, output=OUTPUT, process=to_group)
    tally = job.stage("tally", left, key="g", state=STATE, output=OUTPUT, process=slowly)
    job.sink("out", tally, absflow.DeltaSink(str(sink or root / "sink")))
    return job


def run(spark: SparkSession, root: Path, fork: Path | None = None, **more: str) -> None:
    """Run the job to its end, storage root and sink below ``fork`` if that is given."""
    given = {**BACKLOG, **more, "storage__path": str((fork or root) / "job")}
    with settings(spark, conf(root, **given)):
        started = job(spark, root, (fork or root) / "sink").start()
        assert started.await_termination(timeout=300)
    assert started.finished_checkpoint is not None


def flying(row: dict[str, Any]) -> int:
    """How many rows a checkpoint has in flight."""
    return sum(state["rows"] for state in stage_of(row, "tally")["in_flight"])


@pytest.fixture(scope="module")
def root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that has run to its end in mode unaligned, its second stage always behind."""
    root = tmp_path_factory.mktemp("overtaking")
    write_source(root / "a", files=FILES, rows=150, seed=5)
    run(spark, root, checkpoint__mode="unaligned")
    return root


def in_flight(spark: SparkSession, root: Path, row: dict[str, Any]) -> pd.DataFrame:
    """The rows that a checkpoint names, by the columns of its references alone."""
    found = [pd.DataFrame(columns=["id", "v"])]
    for state in stage_of(row, "tally")["in_flight"]:
        channel = root / "job" / "channels" / state["input"] / f"attempt={state['attempt']}"
        rows = spark.read.format("delta").load(str(channel)).selectExpr("*", "_metadata.file_name")
        rows = rows.where(f"_kind = 'DATA' AND _epoch <= {row['checkpoint_id']}").toPandas()
        named = [path.rpartition("/")[2] for path in state["files"]]
        found.append(rows[(rows["_seq"] >= state["from_seq"]) | rows["file_name"].isin(named)])
        assert len(found[-1]) == state["rows"]
        assert found[-1]["_epoch"].min() == state["epoch"]
    return pd.concat(found)


def check(spark: SparkSession, root: Path, sink: Path) -> None:
    """The sink and the newest states are those of all files."""
    due = expected(root, FILES)
    assert_same_rows(spark.read.format("delta").load(str(sink)).toPandas(), due["sink"], ["id"])
    history = absflow.history(spark, str(root / "job"))
    for stage, key in (("left", "k"), ("tally", "g")):
        assert_same_rows(history.state(stage).toPandas(), due[stage], [key])


def test_every_cut_is_one(spark: SparkSession, root: Path) -> None:
    """What the slow stage has not folded in is in flight to it, and nothing is both."""
    rows = completed(spark, root / "job")
    assert sum(flying(row) > 0 for row in rows) >= 2
    for row in rows:
        read = read_source(root / "a", files_read(row, "left", "a"))
        left = state_at(spark, root / "job", row, "left", "k")
        assert_same_rows(left, expected_state(read, "k"), ["k"])
        late = in_flight(spark, root, row)["id"]
        assert late.isin(read["id"]).all()
        folded = read[~read["id"].isin(late)]
        assert len(folded) == len(read) - len(late)
        tally = state_at(spark, root / "job", row, "tally", "g")
        assert_same_rows(tally, expected_state(folded.assign(g=folded["id"] % 7), "g"), ["g"])


def test_the_end_has_nothing_in_flight(spark: SparkSession, root: Path) -> None:
    """The job finishes with a checkpoint in which every row has been processed, and once."""
    assert flying(completed(spark, root / "job")[-1]) == 0
    check(spark, root, root / "sink")


def test_retention_keeps_what_is_in_flight(spark: SparkSession, root: Path) -> None:
    """The epochs from the first that a retained checkpoint has in flight; `gc` says why."""
    rows = completed(spark, root / "job")
    first = min(row["checkpoint_id"] for row in rows if flying(row))
    lowest = min(s["epoch"] for row in rows for s in stage_of(row, "tally")["in_flight"])
    record = Reader(str(root / "job")).retention(RetentionPolicy(retained=100))
    (why,) = (line for line in record.reasons if "channel left" in line)
    assert f"in flight in checkpoints {first}, " in why
    assert why.startswith(f"epochs {lowest} to ")
    assert not any(isinstance(action, DeleteEpochs) for action in record.actions)
    actions = Reader(str(root / "job")).retention(RetentionPolicy(retained=1)).actions
    assert any(isinstance(action, DeleteEpochs) for action in actions)


def test_how_far_the_slow_stage_is_behind_is_told(spark: SparkSession, root: Path) -> None:
    """In each checkpoint's report: never more than its channel has; and how busy each stage was."""
    channel = spark.read.format("delta").load(str(root / "job" / "channels" / "left" / "attempt=1"))
    rows = channel.where("_kind = 'DATA'").count()
    manifests = completed(spark, root / "job")
    unread = [backlog for row in manifests for backlog in stage_of(row, "tally")["backlogs"]]
    assert {backlog["input"] for backlog in unread} == {"left"}
    assert len(unread) == len(manifests)
    assert 0 < max(backlog["rows"] for backlog in unread) <= rows
    for backlog in unread:
        counts = {backlog[name] > 0 for name in ("commits", "rows", "bytes", "age_ms")}
        assert len(counts) == 1, backlog
    assert all(stage_of(row, "left")["backlogs"] == [] for row in manifests)
    last = {name: stage_of(manifests[-1], name) for name in ("left", "tally")}
    # Which of the two is busier is not certain where others have the cores.
    assert all(0 < stage["busy"] <= 1 for stage in last.values())
    assert last["left"]["backpressured"] == 0


@pytest.mark.soak
def test_a_stage_waits_for_its_consumer(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a bound on the channel: it says so, the backlog stays small, the result is exact."""
    write_source(tmp_path / "a", files=FILES, rows=150, seed=5)
    run(spark, tmp_path, channel__max_backlog="1B", checkpoint__interval="4s")
    check(spark, tmp_path, tmp_path / "sink")
    assert "stage left waits for stage tally, which has " in caplog.text
    manifests = completed(spark, tmp_path / "job")
    unread = [each for row in manifests for each in stage_of(row, "tally")["backlogs"]]
    # A batch of its own, and of each checkpoint the one that was planned and the one with the
    # barrier.
    assert max(backlog["commits"] for backlog in unread) <= 4
    assert max(stage_of(row, "left")["backpressured"] for row in manifests) > 0


@pytest.mark.soak
def test_a_stage_that_holds_too_much_overtakes(spark: SparkSession, tmp_path: Path) -> None:
    """Instead of being given up; the result is exact. Fed until there was such an overtake."""
    sources = [
        source_files(tmp_path / name, rows=100, seed=seed, first_id=1_000_000 * seed)
        for seed, name in enumerate("ab")
    ]
    given = conf(tmp_path, checkpoint__aligned_timeout="1h", alignment__max_held="1B")
    overtaken, written = 0, 0
    with settings(spark, given):
        for files in sources:
            next(files)
        written += 1
        started = diamond(spark, tmp_path).start()
        overtakes = spark.read.format("delta").load(str(tmp_path / "job" / "overtakes"))
        deadline = time.monotonic() + 300
        while not overtaken or not holds_all(completed(spark, tmp_path / "job"), written):
            assert time.monotonic() < deadline, facts(spark, tmp_path / "job")
            overtaken = overtakes.where("kind = 'OVERTAKE'").count()
            # Some files ahead of the stage that reads them, which takes one for each batch.
            if not overtaken and written < started.progress().stages["a"].batch_id + 3:
                for files in sources:
                    next(files)
                written += 1
            started.await_termination(timeout=1)
        started.stop()
    sink = rows_of(tmp_path / "sink").to_pandas()
    assert_same_rows(sink, expected_sink(tmp_path), ["id", "v"])
    assert not any(row["reason"] == "HELD_TOO_MUCH" for row in facts(spark, tmp_path / "job"))


def let_die(patch: pytest.MonkeyPatch, upto: int) -> None:
    """Each of the first batches of the slow stage ends with an error once, behind its writes."""
    real, died = ChainBatches._run, set()

    def dying(self: ChainBatches, frame: DataFrame, batch_id: int) -> None:
        real(self, frame, batch_id)
        if self._last.spec.name == "tally" and batch_id <= upto and batch_id not in died:
            died.add(batch_id)
            raise OSError(f"batch {batch_id} dies")

    patch.setattr(ChainBatches, "_run", dying)


def copies(root: Path) -> list[str]:
    """The files in which attempts have got what they began with."""
    work = root / "job" / "work"
    return [str(p) for name in ("restored", "in-flight") for p in work.rglob(f"{name}/*.parquet")]


@pytest.mark.soak
def test_rows_in_flight_are_restored_once(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another shape, first as a fork whose edge is direct, then in place over the channel.

    Spark's own checkpoints are gone. In the fork each of the first batches runs twice, in place the
    driver dies in the first one. What was copied for the restore is gone by the end.
    """
    row = max(completed(spark, root / "job"), key=flying)
    number = row["checkpoint_id"]
    with settings(spark, conf(root, restore__from=str(number))):
        planned = job(spark, root).plan_restore()
    assert planned is not None
    assert planned.problems == ()
    (state,) = planned.document()["stages"][1]["in_flight"]
    assert state["rows"] == flying(row) > 0
    shutil.rmtree(root / "job" / "work")
    fork = root / "fork"
    origin = f"{root / 'job'}#{number}"
    with shuffle_partitions(spark, 3), monkeypatch.context() as patch:
        let_die(patch, upto=4)
        shape = {"key_groups": "7", "edges": "direct"}
        shape |= {"restart__initial_delay": "0s", "restart__attempts": "9"}
        run(spark, root, fork, restore__from=origin, **shape)
    assert copies(fork) == []
    due = expected(root, FILES)
    read = read_source(root / "a", files_read(row, "left", "a"))["id"]
    folded = read[~read.isin(in_flight(spark, root, row)["id"])]
    sink = rows_of(fork / "sink").to_pandas()
    assert_same_rows(sink, due["sink"][~due["sink"]["id"].isin(folded)], ["id"])
    history = absflow.history(spark, str(fork / "job"))
    assert_same_rows(history.state("tally").toPandas(), due["tally"], ["g"])
    with shuffle_partitions(spark, 3):
        with monkeypatch.context() as patch:
            let_die(patch, upto=1)
            dies = pytest.raises(absflow.JobFailedError, match="batch 1 dies")
            more = {"key_groups": "5", "restart__attempts": "0"}
            with dies:
                run(spark, root, restore__from=str(number), **more)
        run(spark, root, key_groups="5")
    check(spark, root, root / "sink")
    assert copies(root) == []
