"""Code with other output columns is restored, and the sink's table has them, whatever it had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from chain import conf
from deltalake import DeltaTable
from diamond import OUTPUT, ROWS, STATE, read_source, source_files, to_group
from pyspark.sql import SparkSession
from reading import assert_same_rows, commits, completed, durable_files, files_read, rows_of
from session import settings

import absflow
from absflow.sinks import SinkRestore
from absflow.spark.batch.stage import ChainStage
from absflow.spark.control.publisher import Publisher
from absflow.spark.start.restore_plan import RestorePlan
from absflow.spark.start.sink_columns import SinkOutput, fit_output
from absflow.storage.delta import transactions

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

READ, FILES = 2, 4


def doubled(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """:func:`to_group`, with one column more, in the middle."""
    result = to_group(rows, state, context)
    double = pa.array(2 * rows["v"].to_numpy())
    return absflow.Result(output=result.output.add_column(1, "double", double), state=result.state)


def bare(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """:func:`to_group` without a column."""
    result = to_group(rows, state, context)
    return absflow.Result(output=result.output.drop_columns(["v"]), state=result.state)


def texts(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """:func:`to_group` with a column of another type."""
    result = to_group(rows, state, context)
    v = rows["v"].cast(pa.string())
    return absflow.Result(output=result.output.set_column(2, "v", v), state=result.state)


# The output of each, by its process function.
FORMS: dict[Callable[..., Any], str] = {
    to_group: OUTPUT,
    doubled: "id long, double long, g long, v long",
    bare: "id long, g long",
    texts: "id long, g long, v string",
}


def job(
    spark: SparkSession,
    root: Path,
    process: Callable[..., Any] = to_group,
    *,
    mode: str = "immediate",
    sink: Path | None = None,
) -> absflow.Job:
    """One stage and its sink, of one of the forms."""
    made = absflow.Job("columns", spark)
    frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    a = made.source("a", frame.parquet(str(root / "a")), bounded=True)
    tally = made.stage("tally", a, key="k", state=STATE, output=FORMS[process], process=process)
    made.sink("out", tally, absflow.DeltaSink(str(sink or root / "sink")), mode=mode)
    return made


@contextmanager
def configured(spark: SparkSession, root: Path, restore: object, **more: str) -> Iterator[None]:
    """Settings of a start; a checkpoint that overtook would have rows in flight."""
    given = conf(root, checkpoint__aligned_timeout="1h", **more)
    if restore is not None:
        given["restore.from"] = str(restore)
    with settings(spark, given):
        yield


def run(
    spark: SparkSession,
    root: Path,
    process: Callable[..., Any] = to_group,
    restore: object = None,
    **more: str,
) -> None:
    """To the end of its files."""
    with configured(spark, root, restore):
        assert job(spark, root, process, **more).start().await_termination(timeout=300)


def plan(
    spark: SparkSession, root: Path, process: Callable[..., Any], restore: object, **more: Any
) -> RestorePlan:
    with configured(spark, root, restore):
        planned = job(spark, root, process, **more).plan_restore()
    assert planned is not None
    return planned


def of_sinks(planned: RestorePlan) -> list[str]:
    """What differs at the sinks."""
    return [words for words in planned.differences if words.startswith("sink")]


def due(root: Path, *forms: tuple[int, Callable[..., Any]]) -> pd.DataFrame:
    """The sink's rows if the first so many files were read by each of these in turn."""
    paths, begin, found = sorted((root / "a").glob("*.parquet")), 0, []
    for end, form in forms:
        for rows in map(pd.read_parquet, paths[begin:end]):
            v = None if form is bare else rows["v"]
            double = 2 * rows["v"] if form is doubled else None
            columns = {"id": rows["id"], "g": rows["id"] % 7, "v": v, "double": double}
            found.append(pd.DataFrame(columns).astype(object))
        begin = end
    return pd.concat(found)


def check(root: Path, *forms: tuple[int, Callable[..., Any]]) -> None:
    """The sink holds these, each once; a column that it lacks counts as null."""
    there = rows_of(root / "sink").to_pandas()
    for name in {"double", "v"} - {*there.columns}:
        there[name] = None
    assert_same_rows(there, due(root, *forms), ["id"])


def columns_of(root: Path) -> list[str]:
    return [field.name for field in DeltaTable(str(root / "sink")).schema().fields]


def newest(spark: SparkSession, root: Path) -> int:
    return int(completed(spark, root / "job")[-1]["checkpoint_id"])


def run_twice(spark: SparkSession, root: Path) -> tuple[Iterator[None], int]:
    """Over :data:`READ` files, then over all :data:`FILES`: more of them, and the cut between."""
    source = source_files(root / "a", rows=60, seed=5)
    more(source, READ)
    run(spark, root)
    between = newest(spark, root)
    more(source, FILES - READ)
    run(spark, root)
    return source, between


def more(source: Iterator[None], files: int) -> None:
    for _ in range(files):
        next(source)


ADDED = "sink 'out': column 'double' (bigint) is added to its table"
GOES = "sink 'out': column 'double' (bigint) of its table goes: version {} has it not"
UNFILLED = "sink 'out': column 'double' (bigint) of its table is null in new rows"


@pytest.mark.soak
def test_columns_come_and_go_with_the_code(spark: SparkSession, tmp_path: Path) -> None:
    """New code on an old checkpoint, old code on an old one, on a new one, and new on new again.

    The table is compared as it will be: at first without the column, then with it, and once it is
    gone from the table of now, as it is in the version that the table goes back to.
    """
    source, first = run_twice(spark, tmp_path)
    planned = plan(spark, tmp_path, doubled, first)
    assert planned.problems == ()
    assert planned.differences == ("stage 'tally': output column 'double' (int64) is added", ADDED)
    (document,) = planned.document()["sinks"]
    assert document["columns_added"] == [{"column": "double", "type": "bigint"}]
    run(spark, tmp_path, doubled, first)
    assert columns_of(tmp_path) == ["id", "g", "v", "double"]
    check(tmp_path, (READ, to_group), (FILES, doubled))
    next(source)
    run(spark, tmp_path, doubled)  # goes on
    check(tmp_path, (READ, to_group), (FILES + 1, doubled))
    later = newest(spark, tmp_path)

    planned = plan(spark, tmp_path, to_group, first)
    assert planned.problems == ()
    assert of_sinks(planned) == [GOES.format(planned.sinks["out"].then)]
    run(spark, tmp_path, to_group, first)
    assert columns_of(tmp_path) == ["id", "g", "v"]
    check(tmp_path, (FILES + 1, to_group))

    planned = plan(spark, tmp_path, doubled, later)
    assert (planned.problems, of_sinks(planned)) == ((), [])
    run(spark, tmp_path, doubled, later)
    check(tmp_path, (READ, to_group), (FILES + 1, doubled))

    planned = plan(spark, tmp_path, to_group, "latest")
    assert (planned.problems, of_sinks(planned)) == ((), [UNFILLED])
    (document,) = planned.document()["sinks"]
    assert document["columns_unfilled"] == [{"column": "double", "type": "bigint"}]
    next(source)
    run(spark, tmp_path, to_group, "latest")
    check(tmp_path, (READ, to_group), (FILES + 1, doubled), (FILES + 2, to_group))


def test_a_column_added_by_a_person_is_added_again(spark: SparkSession, tmp_path: Path) -> None:
    """It goes with the version that the table goes back to."""
    _, first = run_twice(spark, tmp_path)
    spark.sql(f"ALTER TABLE delta.`{tmp_path / 'sink'}` ADD COLUMNS (double BIGINT)")
    planned = plan(spark, tmp_path, doubled, first)
    assert (planned.problems, of_sinks(planned)) == ((), [ADDED])
    run(spark, tmp_path, doubled, first)
    check(tmp_path, (READ, to_group), (FILES, doubled))


@pytest.mark.parametrize("by_workers", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_dropped_column_is_null_from_then_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_workers: bool
) -> None:
    """Whoever writes the files; also in a batch that runs again, and in a start that goes on."""
    source, first = run_twice(spark, tmp_path)
    planned = plan(spark, tmp_path, bare, first)
    assert planned.problems == ()
    assert planned.differences == (
        "stage 'tally': output column 'v' is dropped",
        "sink 'out': column 'v' (bigint) of its table is null in new rows",
    )
    failed, found, written_by_workers, before = [], [], [], []
    committed, plain, save = transactions.committed, transactions._plain, ChainStage.save

    def looked_up(*given: Any) -> Any:
        found.append(committed(*given))
        return found[-1]

    def look(*given: Any) -> Any:
        seen = plain(*given) if by_workers else None
        written_by_workers.append(seen is not None)
        if given[1].endswith("/sink"):
            before.append(commits(tmp_path / "sink"))
        return seen

    def failing(self: ChainStage, *given: Any) -> None:
        wrote_rows = bool(before) and commits(tmp_path / "sink") > before[-1]
        if not failed and wrote_rows:
            failed.append(given)
            raise OSError("no space left")
        save(self, *given)

    monkeypatch.setattr(transactions, "_plain", look)
    monkeypatch.setattr(transactions, "committed", looked_up)
    monkeypatch.setattr(ChainStage, "save", failing)
    run(spark, tmp_path, bare, first)
    assert failed
    assert any(found)  # a batch whose rows were there was compared with them
    assert set(written_by_workers) == {by_workers}
    check(tmp_path, (READ, to_group), (FILES, bare))
    next(source)
    run(spark, tmp_path, bare)
    check(tmp_path, (READ, to_group), (FILES + 1, bare))


class Killed(BaseException):
    """As a kill: nothing that catches errors sees it."""


@pytest.mark.soak
@pytest.mark.parametrize(
    "point",
    [("absflow.sinks.add_columns", False), ("absflow.spark.start.attempt.held_at_start", True)],
)
def test_a_kill_before_the_attempt_is_ready_is_made_good(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: tuple[str, bool]
) -> None:
    """Between putting back and adding columns, and behind both: a start goes on, then a restore."""
    _, first = run_twice(spark, tmp_path)

    def dies(*_: Any) -> None:
        raise Killed

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(point[0], dies)
            with pytest.raises(Killed):
                run(spark, tmp_path, doubled, first)
        assert ("double" in columns_of(tmp_path)) == point[1]
    run(spark, tmp_path, doubled)  # what is not ready is restored again, without being asked for
    check(tmp_path, (READ, to_group), (FILES, doubled))
    row = next(r for r in completed(spark, tmp_path / "job") if r["attempt"] > 1)
    planned = plan(spark, tmp_path, doubled, row["checkpoint_id"])
    assert (planned.problems, of_sinks(planned)) == ((), [])
    run(spark, tmp_path, doubled, row["checkpoint_id"])
    check(tmp_path, (READ, to_group), (FILES, doubled))


def test_another_type_is_a_problem_of_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    """Named with both types and what to do; nothing is changed, and no attempt begins."""
    _, first = run_twice(spark, tmp_path)
    planned = plan(spark, tmp_path, texts, first)
    then, place = planned.sinks["out"].then, f"file:{tmp_path / 'sink'}"
    assert planned.problems == (
        f"sink 'out': column 'v' (bigint) of table {place!r}, at version {then}, which it goes "
        "back to, is 'v' (string) in the output of stage 'tally'; emit it as it was, or under "
        "another name, or give the sink another path",
    )
    assert planned.document()["problems"] == list(planned.problems)
    before = durable_files(tmp_path / "job"), durable_files(tmp_path / "sink")
    with pytest.raises(absflow.RestoreError, match="column 'v'"):
        run(spark, tmp_path, texts, first)
    assert (durable_files(tmp_path / "job"), durable_files(tmp_path / "sink")) == before
    spark.sql(f"ALTER TABLE delta.`{tmp_path / 'sink'}` ADD COLUMNS (Double BIGINT)")
    with pytest.raises(absflow.GraphError, match="choose another path"):
        run(spark, tmp_path)  # without a restore the columns must be the same
    (problem,) = plan(spark, tmp_path, doubled, "latest").problems
    assert "'Double' (bigint)" in problem
    assert "'double' (bigint) in the output" in problem


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("(id BIGINT, v BIGINT NOT NULL) USING delta", "it is NOT NULL"),
        ("(id BIGINT, v BIGINT) USING delta PARTITIONED BY (v)", "the table is partitioned by it"),
    ],
)
def test_a_column_that_must_have_a_value_cannot_be_dropped(
    spark: SparkSession, tmp_path: Path, table: str, why: str
) -> None:
    """The plan says so, and what to do."""
    place = f"file:{tmp_path / 'sink'}"
    spark.sql(f"CREATE TABLE delta.`{place}` {table}")
    output = SinkOutput("out", "columns", "tally", pa.schema([("id", pa.int64())]), fork=False)
    planned, _ = fit_output(spark, output, SinkRestore(place, now=0))
    assert planned.problems == (
        f"sink 'out': column 'v' (bigint) of table {place!r} is not in the output of stage "
        f"'tally', and cannot be null, for {why}; emit it, or give the sink another path",
    )


@pytest.mark.soak
@pytest.mark.parametrize("process", [doubled, bare])
def test_what_is_still_to_be_published_has_its_old_columns(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: Any
) -> None:
    """An on-checkpoint sink gets them from the channel of before, and others behind them."""
    source = source_files(tmp_path / "a", rows=60, seed=5)
    more(source, READ)
    run(spark, tmp_path, mode="on-checkpoint")
    first = completed(spark, tmp_path / "job")[-1]
    more(source, FILES - READ)

    def failing(*_: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch, configured(spark, tmp_path, None, restart__attempts="0"):
        patch.setattr(Publisher, "_write", failing)
        with pytest.raises(absflow.JobFailedError, match="could not be published"):
            job(spark, tmp_path, mode="on-checkpoint").start().await_termination(timeout=300)
    last = completed(spark, tmp_path / "job")[-1]
    assert last["checkpoint_id"] > first["checkpoint_id"]
    more(source, 2)
    assert plan(spark, tmp_path, process, "latest", mode="on-checkpoint").problems == ()
    for row in (last, first):
        run(spark, tmp_path, process, row["checkpoint_id"], mode="on-checkpoint")
        read = files_read(row, "tally", "a")
        check(tmp_path, (read, to_group), (FILES + 2, process))


def test_a_table_that_others_have_written_is_left_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of a fork, or of a new sink: columns are added if nobody has written it, else refused."""
    _, first = run_twice(spark, tmp_path)
    fork, sink = tmp_path / "fork", tmp_path / "fork" / "sink"
    target = f"{tmp_path / 'job'}#{first}"
    spark.sql(f"CREATE TABLE delta.`{sink}` (id BIGINT, g BIGINT, v BIGINT) USING delta")

    def planned() -> RestorePlan:
        with settings(spark, conf(fork, restore__from=target)):
            found = job(spark, tmp_path, doubled, sink=sink).plan_restore()
        assert found is not None
        return found

    assert (planned().problems, of_sinks(planned())) == ((), [ADDED])
    spark.sql(f"INSERT INTO delta.`{sink}` VALUES (-1, -1, -1)")
    (problem,) = planned().problems
    assert f"table 'file:{sink}', which may hold rows of others, has columns struct<" in problem
    assert problem.endswith("or add 'double' (bigint) to it yourself (ALTER TABLE)")
    (problem,) = plan(spark, tmp_path, doubled, first, sink=sink).problems
    assert "which may hold rows of others" in problem
    spark.sql(f"ALTER TABLE delta.`{sink}` ADD COLUMNS (double BIGINT)")
    assert (planned().problems, of_sinks(planned())) == ((), [])
    note = "of a fork: it gets the rows after the checkpoint only"
    assert planned().sinks["out"].note == note
    with settings(spark, conf(fork, restore__from=target)):
        assert job(spark, tmp_path, doubled, sink=sink).start().await_termination(timeout=300)
    rows = rows_of(sink).to_pandas()
    whole = due(tmp_path, (READ, to_group), (FILES, doubled))
    ids = read_source(tmp_path / "a", READ)["id"]
    assert_same_rows(rows[rows["id"] >= 0], whole[~whole["id"].isin(ids)], ["id"])
