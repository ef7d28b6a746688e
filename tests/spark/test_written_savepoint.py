"""State that a person writes: a job that begins with it, and one whose bad key is mended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chain import chain, check, conf, expected, run
from diamond import OUTPUT, ROWS, STATE, expected_state, read_source, to_group, write_source
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from reading import assert_same_rows, completed, facts, rows_of, stage_of
from session import settings

import absflow
from absflow.columnar.keys import key_groups
from absflow.storage.delta import transactions

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FILES = 5


@pytest.fixture(scope="module")
def root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of two stages that has run to its end, with several checkpoints."""
    root = tmp_path_factory.mktemp("by-hand")
    write_source(root / "a", files=FILES, rows=100, seed=5)
    run(spark, root)
    assert len(completed(spark, root / "job")) >= 3
    return root


def write(
    spark: SparkSession,
    root: Path,
    states: dict[str, DataFrame],
    base: Any = None,
    **more: str,
) -> int:
    with settings(spark, conf(root, **more)):
        return chain(spark, root).write_savepoint(states, base=base)


def latest(spark: SparkSession, root: Path) -> int:
    """What ``restore.from=latest`` means now."""
    with settings(spark, conf(root, restore__from="latest")):
        planned = chain(spark, root).plan_restore()
    assert planned is not None
    assert planned.problems == ()
    return planned.origin.checkpoint_id


def state(spark: SparkSession, root: Path, stage: str, checkpoint: int | None = None) -> DataFrame:
    return absflow.history(spark, str(root / "job")).state(stage, checkpoint)


def test_a_kill_leaves_no_savepoint(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the set and before the fact: its id is never used again, and the job goes on."""

    class Killed(BaseException):
        pass

    append = transactions.append_once

    def dying(frame: Any, path: str, *args: Any, **named: Any) -> None:
        if path.endswith("/checkpoints"):
            raise Killed
        append(frame, path, *args, **named)

    before, was = completed(spark, root / "job"), latest(spark, root)
    orphan = 1 + max(r["checkpoint_id"] for r in facts(spark, root / "job"))
    given = state(spark, root, "left", was)
    with monkeypatch.context() as patch:
        patch.setattr(transactions, "append_once", dying)
        with pytest.raises(Killed):
            write(spark, root, {"left": given}, was)
    sets = spark.read.format("delta").load(str(root / "job" / "state" / "left"))
    assert sets.where(F.col("set_id") == orphan).count() == given.count()
    assert completed(spark, root / "job") == before
    assert latest(spark, root) == was
    check(spark, root, run(spark, root), FILES)
    (ended,) = (r for r in facts(spark, root / "job") if r["checkpoint_id"] == orphan)
    assert (ended["kind"], ended["reason"]) == ("ABORTED", "DRIVER_RESTART")


@pytest.mark.soak
def test_a_bad_key_is_mended(spark: SparkSession, root: Path) -> None:
    """The key is as it was written; everything else, the sink too, is as if nothing had been."""
    taken = completed(spark, root / "job")
    base = taken[0]["checkpoint_id"]
    before = state(spark, root, "left", base)
    bad = F.col("k") == "k7"
    mended = before.withColumn(
        "total", F.when(bad, F.col("total") + 1000).otherwise(F.col("total"))
    )
    # Another number of key groups, columns in another order, a column that is widened.
    mended = mended.select(
        "ordered", F.col("newest").cast("int").alias("newest"), "total", "n", "k"
    )
    savepoint = write(spark, root, {"left": mended}, base, key_groups="7")

    fact = completed(spark, root / "job")[-1]
    assert fact["checkpoint_id"] == savepoint == latest(spark, root)
    assert savepoint > taken[-1]["checkpoint_id"]
    assert (fact["type"], fact["derived_from"], fact["base_id"]) == ("SAVEPOINT", base, 0)
    assert stage_of(fact, "tally") == stage_of(taken[0], "tally")
    left, was = stage_of(fact, "left"), stage_of(taken[0], "left")
    assert (left["lineage"], left["positions"]) == ([savepoint], was["positions"])
    assert left["keys_total"] == left["rows_changed"] == was["keys_total"]
    rows = spark.read.format("delta").load(str(root / "job" / "state" / "left"))
    rows = rows.where(F.col("set_id") == savepoint).toArrow()
    assert rows["key_group"].to_pylist() == key_groups([rows["k"]], 7).tolist()
    assert set(rows["op"].to_pylist()) == {"upsert"}

    finished = run(spark, root, restore__from="latest")
    due = expected_state(read_source(root / "a", FILES), "k")
    due.loc[due["k"] == "k7", "total"] += 1000
    after = state(spark, root, "left", finished).toPandas()
    assert_same_rows(after, due, ["k"])
    assert after["ordered"].all()
    tally = expected(root, FILES)["tally"]
    assert_same_rows(state(spark, root, "tally", finished).toPandas(), tally, ["g"])
    sink = rows_of(root / "sink").to_pandas()
    assert_same_rows(sink, expected(root, FILES)["sink"], ["id"])
    assert latest(spark, root) == finished
    first = next(r for r in completed(spark, root / "job") if r["attempt"] > fact["attempt"])
    assert first["checkpoint_id"] > savepoint
    # An increment on the written set, not a full snapshot of its own.
    assert stage_of(first, "left")["lineage"][0] == savepoint


@pytest.mark.soak
def test_the_job_goes_on_beside_a_savepoint_that_is_not_restored(
    spark: SparkSession, root: Path
) -> None:
    """A start that does not ask for it: nothing of it gets into the job, which leaves it behind."""
    run(spark, root, restore__from=str(completed(spark, root / "job")[0]["checkpoint_id"]))
    ids = [row["checkpoint_id"] for row in completed(spark, root / "job")]
    empty = state(spark, root, "left").where("false")
    savepoint = write(spark, root, {"left": empty}, "latest")
    assert state(spark, root, "left", savepoint).count() == 0
    assert write(spark, root, {"tally": state(spark, root, "tally")}, "latest") == savepoint + 1
    written = completed(spark, root / "job")[-1]
    assert (written["derived_from"], stage_of(written, "left")["lineage"]) == (savepoint, [])
    finished = run(spark, root)
    check(spark, root, finished, FILES)
    assert finished > savepoint + 1
    assert latest(spark, root) == finished
    row = completed(spark, root / "job")[-1]
    assert set(stage_of(row, "left")["lineage"]) <= {*ids, finished}


@pytest.mark.soak
def test_a_job_begins_with_state(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    """State of one stage out of a table, the sources from their start; no setting asks for it."""
    (tmp_path / "a").symlink_to(root / "a")
    schema = f"k string, {STATE}"
    given = spark.createDataFrame([("k1", 5, 50, -1, True), (None, 1, 1, -1, True)], schema)
    savepoint = write(spark, tmp_path, {"left": given})
    assert_same_rows(state(spark, tmp_path, "left").toPandas(), given.toPandas(), ["k"])
    assert state(spark, tmp_path, "tally").count() == 0
    (fact,) = facts(spark, tmp_path / "job")
    assert (fact["kind"], fact["attempt"], fact["derived_from"]) == ("COMPLETED", 0, 0)
    with pytest.raises(absflow.StateError, match="is not new; give the checkpoint"):
        write(spark, tmp_path, {"left": given})
    more = given.withColumn("total", F.col("total") * 2)
    assert (
        write(spark, tmp_path, {"left": more}, savepoint)
        == savepoint + 1
        == latest(spark, tmp_path)
    )
    finished = run(spark, tmp_path, key_groups="2")
    due = expected_state(read_source(root / "a", FILES), "k").set_index("k")
    for key, n, total in (("k1", 5, 100), (None, 1, 2)):
        there = due.index == key if key else due.index.isna()
        due.loc[there, "n"] += n
        due.loc[there, "total"] += total
    after = state(spark, tmp_path, "left", finished).toPandas()
    assert_same_rows(after, due.reset_index(), ["k"])
    sink = rows_of(tmp_path / "sink").to_pandas()
    assert_same_rows(sink, expected(root, FILES)["sink"], ["id"])
    assert {row["attempt"] for row in completed(spark, tmp_path / "job")} == {0, 1}
    # Its cut lies before all: a restore from it reads everything again, and the sink is put back.
    run(spark, tmp_path, restore__from=str(savepoint))
    sink = rows_of(tmp_path / "sink").to_pandas()
    assert_same_rows(sink, expected(root, FILES)["sink"], ["id"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.union(f.where("k = 'k3'")), r"has 2 rows for the key \{'k': 'k3'\}"),
        (lambda f: f.union(f.where("k IS NULL")), r"has 2 rows for the key \{'k': None\}"),
        (lambda f: f.drop("total"), r"it lacks 'total'\. It must have the columns <k:string,n:big"),
        (lambda f: f.withColumn("x", F.lit(1)), "it has 'x', which is no column of the stage"),
        (lambda f: f.withColumnRenamed("k", "K"), "it lacks 'k'; it has 'K'"),
        (lambda f: f.select("*", "k"), "it has 'k' twice"),
        (
            lambda f: f.withColumn("n", F.col("n").cast("double")),
            "column 'n' is double, which bigint does not hold all of; cast it",
        ),
        (lambda f: f.withColumn("k", F.lit(1)), "column 'k' is int, which string does not"),
    ],
)
def test_what_is_no_state_is_refused(
    spark: SparkSession, root: Path, change: Any, message: str
) -> None:
    """In words, before anything is written."""
    given = change(state(spark, root, "left"))
    before = spark.read.format("delta").load(str(root / "job" / "attempts")).count()
    with pytest.raises(absflow.StateError, match=message):
        write(spark, root, {"left": given}, "latest")
    assert spark.read.format("delta").load(str(root / "job" / "attempts")).count() == before


def test_where_no_savepoint_can_be_written(
    spark: SparkSession, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown stages, checkpoints and roots; a job that runs; a start that was not finished."""
    given = state(spark, root, "left")
    for states, base, error, message in [
        ({"lift": given}, "latest", absflow.NotFoundError, "no stage 'lift'; the job has 'left'"),
        ({"left": given}, 4711, absflow.NotFoundError, "checkpoint 4711 was never triggered"),
        ({"left": given}, "newest", absflow.StateError, "base is 'newest', must be the id"),
        ({"left": given}, None, absflow.StateError, "is not new; give the checkpoint"),
    ]:
        with pytest.raises(error, match=message):
            write(spark, root, states, base)
    write_source(tmp_path / "a", files=1, rows=10, seed=1)
    with pytest.raises(absflow.NotFoundError, match="is not the storage root of a job"):
        write(spark, tmp_path, {"left": given}, "latest")

    with settings(spark, conf(tmp_path)):
        job = absflow.Job("forwarding", spark)
        frame = spark.readStream.schema("id long, k string, v long").parquet(str(tmp_path / "a"))
        a = job.source("a", frame)
        for name in ("one", "two"):
            job.stage(name, a, key="k", state="n long", output="k string", process=lambda *_: None)
        with pytest.raises(absflow.NotFoundError, match="stage 'a' forwards a source"):
            job.write_savepoint({"a": given})

    with settings(spark, conf(tmp_path)):
        started = chain(spark, tmp_path).start()
        with pytest.raises(absflow.StorageError, match="job 'chain' is running: a driver"):
            chain(spark, tmp_path).write_savepoint({"left": given}, base="latest")
        assert started.await_termination(timeout=300)

    def failing(*_: Any) -> None:
        raise absflow.StorageError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("absflow.spark.start.attempt.put_sinks_back", failing)
        with pytest.raises(absflow.StorageError, match="killed"):
            run(spark, tmp_path, restore__from="latest")
    with pytest.raises(absflow.StateError, match=r"attempt 2 under .* was never ready"):
        write(spark, tmp_path, {"left": given}, "latest")


def reshaped(spark: SparkSession, root: Path) -> absflow.Job:
    """The chain, its first stage renamed and with a column more."""
    job = absflow.Job("chain", spark)
    frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    a = job.source("a", frame.parquet(str(root / "a")), bounded=True)
    first = job.stage(
        "first",
        a,
        key="k",
        state=STATE + ", note string",
        output=OUTPUT,
        process=with_note,
        renamed_from="left",
    )
    tally = job.stage("tally", first, key="g", state=STATE, output=OUTPUT, process=to_group)
    job.sink("out", tally, absflow.DeltaSink(str(root / "sink")))
    return job


def with_note(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """:func:`to_group`, with a column that only new keys get."""
    result = to_group(rows, state.drop_columns(["note"]), context)
    notes = [n or "new" for n in state["note"].to_pylist()]
    return absflow.Result(output=result.output, state=result.state.append_column("note", [notes]))


@pytest.mark.soak
def test_state_of_another_form(spark: SparkSession, root: Path) -> None:
    """A column more, made by Spark out of the others; the stage has another name, too."""
    base = completed(spark, root / "job")[1]
    before = state(spark, root, "left", base["checkpoint_id"])
    given = before.withColumn("note", F.concat(F.lit("had "), F.col("n")))
    noted = {row["k"]: row["note"] for row in given.collect()}
    with settings(spark, conf(root)):
        with pytest.raises(absflow.StateError, match="it lacks 'note'"):
            reshaped(spark, root).write_savepoint({"first": before}, base=base["checkpoint_id"])
        savepoint = reshaped(spark, root).write_savepoint(
            {"first": given}, base=base["checkpoint_id"]
        )
    with settings(spark, conf(root, restore__from=str(savepoint))):
        started = reshaped(spark, root).start()
        assert started.await_termination(timeout=300)
    after = state(spark, root, "first").toPandas()
    assert_same_rows(after, expected(root, FILES)["left"], ["k"])
    notes = dict(zip(after["k"], after["note"], strict=True))
    assert notes == {k: noted.get(k, "new") for k in notes}
    assert len(noted) > 3
    sink = rows_of(root / "sink").to_pandas()
    assert_same_rows(sink, expected(root, FILES)["sink"], ["id"])
