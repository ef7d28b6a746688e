"""A10: a job with every odd name that is allowed, at once, from its start to its last reader.

::

    files --> [first] ==channel==> [second, in pandas] --> [third, per key] ==> Delta
                 |
                 +--> Delta

Folders, the storage root and the sinks have odd names, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odd_names import REFUSED, TAKEN
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType
from reading import completed, stage_of
from session import settings

import absflow
from absflow.cli.reader import Reader
from absflow.storage.sql import quoted
from absflow.storage.state_history import live_rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ODD_FOLDER = "it's #1, 2=zwei & ü"
KEY, REST = TAKEN[:3], TAKEN[3:]
FIRST = {"key": KEY, "state": REST, "output": TAKEN}
SECOND = {"key": TAKEN[1:2], "state": TAKEN[2:], "output": TAKEN[1:]}
THIRD = {"key": TAKEN[1:2], "state": TAKEN[2:], "output": TAKEN[:2]}
# Beside the key, which nothing goes by: names that no table could have, and twins.
UNUSED = [*REFUSED, "A", "a", "set_id", "op", "_epoch", "_deleted", "_seq", "kind"]
KEYS = 5


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with an odd name."""
    (tmp_path / ODD_FOLDER / "in 50%20").mkdir(parents=True)
    return tmp_path / ODD_FOLDER


def columns(names: list[str]) -> StructType:
    schema = StructType()
    for name in names:
        schema = schema.add(name, LongType())
    return schema


def source(spark: SparkSession, place: Path) -> DataFrame:
    """The files' rows under their odd names."""
    read = spark.readStream.schema("k bigint").option("maxFilesPerTrigger", 1)
    rows = read.parquet(str(place / "in 50%20"))
    keys = [(F.col("k") + number).alias(name) for number, name in enumerate(KEY)]
    return rows.select(*keys, *(F.lit(7).cast("long").alias(name) for name in UNUSED))


def odd_job(spark: SparkSession, place: Path) -> absflow.Job:
    """The job; each stage counts the rows of a key, in every column of its state."""
    key, rest, taken = KEY, REST, TAKEN
    second, third = SECOND, THIRD

    def fold(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
        seen = np.bincount(context.key_of_row, minlength=state.num_rows)
        n = np.where(context.is_new, 0, state[rest[0]].fill_null(0).to_numpy()) + seen
        assert {"A", "a", "", "op", *taken[:3]} <= set(rows.column_names)
        new = pa.table([*(state[k] for k in key), *([n] * len(rest))], names=[*key, *rest])
        return absflow.Result(output=new, state=new)

    def in_pandas(
        rows: pd.DataFrame, state: pd.DataFrame, context: absflow.Context
    ) -> absflow.Result:
        seen = np.bincount(context.key_of_row, minlength=len(state))
        n = np.where(context.is_new, 0, state[second["state"][0]].fillna(0)) + seen
        new = state.assign(**dict.fromkeys(second["state"], n.astype("int64")))
        return absflow.Result(output=new.iloc[context.key_of_row], state=new)

    def count(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        rows = sum(len(frame) for frame in frames)
        n = rows + (state.get[0] if state.exists else 0)
        state.update((n,) * len(third["state"]))
        yield pd.DataFrame(dict(zip(third["output"], ([n] * rows, [key[0]] * rows), strict=True)))

    job = absflow.Job("odd", spark)
    given: Any = job.source("rows", source(spark, place), bounded=True)
    for name, of, process, form in [
        ("first", FIRST, fold, "arrow"),
        ("second", SECOND, in_pandas, "pandas"),
        ("third", THIRD, count, "per-key"),
    ]:
        given = job.stage(
            name,
            given,
            key=of["key"],
            state=columns(of["state"]),
            output=columns(of["output"]),
            process=process,
            form=form,
        )
    job.sink("all", "first", absflow.DeltaSink(str(place / "all%20"), TAKEN[:1]))
    job.sink(
        "published",
        "third",
        absflow.DeltaSink(os.path.relpath(place / "out")),
        mode="on-checkpoint",
    )
    return job


def conf(place: Path, **more: str) -> dict[str, str]:
    return {
        "storage.path": str(place / "job"),
        "checkpoint.interval": "1h",
        "key-groups": "2",
        **{name.replace("__", "."): value for name, value in more.items()},
    }


def run(spark: SparkSession, place: Path, number: int, **more: str) -> int:
    """Give the job a file with every key once, and run it to its end; its last checkpoint."""
    table = pa.table({"k": np.arange(KEYS)})
    pq.write_table(table, place / "in 50%20" / f"{number} %41.parquet")
    with settings(spark, conf(place, **more)):
        run = odd_job(spark, place).start()
        assert run.await_termination(500)
    assert run.finished_checkpoint is not None
    return run.finished_checkpoint


def expected(of: dict[str, list[str]], n: int) -> list[dict[str, int]]:
    """The state of every key of a stage after so many files."""
    first = TAKEN.index(of["key"][0])
    return [
        {
            **{name: k + first + number for number, name in enumerate(of["key"])},
            **dict.fromkeys(of["state"], n),
        }
        for k in range(KEYS)
    ]


def rows_of(frame: DataFrame, by: str) -> list[dict[str, int]]:
    return sorted(frame.toArrow().to_pylist(), key=lambda row: row[by])


def check_history(spark: SparkSession, place: Path, ids: list[int]) -> None:
    """What the DataFrames, the views and the command line say of these checkpoints."""
    history, reader = absflow.history(spark, str(place / "job")), Reader(str(place / "job"))
    history.create_views("odd_")
    for stage, of in (("first", FIRST), ("second", SECOND), ("third", THIRD)):
        key = of["key"][0]
        for files, checkpoint in enumerate(ids, start=1):
            due = expected(of, files)
            assert rows_of(history.state(stage, checkpoint), key) == due
            asked = {name: str(due[2][name]) for name in of["key"]}
            assert reader.state(stage, checkpoint, asked).rows.to_pylist() == [due[2]]
        view = spark.sql(f"SELECT * FROM odd_{stage}_state WHERE at_checkpoint = {ids[-1]}")
        assert rows_of(view.drop("at_checkpoint"), key) == due
        whole = {name: due[2][name] for name in of["key"]}
        changes = history.changes(stage, whole).toArrow().to_pylist()
        assert [[row[name] for name in of["state"][:2]] for row in changes] == [[1, 1], [2, 2]]
        text = f"SELECT * FROM odd_{stage}_changes WHERE {quoted(key)} = {whole[key]}"
        assert spark.sql(text).count() == len(changes)
        there = history.difference(stage, *ids).toArrow().to_pylist()
        assert [(row["op"], row["before"], row["after"]) for row in there] == [
            ("changed", dict.fromkeys(of["state"], 1), dict.fromkeys(of["state"], 2))
        ] * KEYS


def check_compaction(spark: SparkSession, place: Path) -> None:
    """What a compaction would write is the state."""
    sets = spark.read.format("delta").load(str(place / "job" / "state" / "first"))
    lineage = stage_of(completed(spark, place / "job")[-1], "first")["lineage"]
    live = live_rows(sets.where(F.col("set_id").isin(*lineage)), KEY, lineage)
    assert rows_of(live.select(*map(quoted, TAKEN)), KEY[0]) == expected(FIRST, 2)


def check_sinks(spark: SparkSession, place: Path) -> None:
    """Every row is there once."""
    rows = spark.read.format("delta").load(str(place / "all%20"))
    seen = rows.select(*map(quoted, [KEY[0], REST[0]])).toPandas()
    due = [(k, n) for k in range(KEYS) for n in (1, 2)]
    assert sorted(seen.itertuples(index=False, name=None)) == due
    out = spark.read.format("delta").load(str(place / "out")).toPandas()
    assert out.columns.tolist() == THIRD["output"]
    assert sorted(out.itertuples(index=False, name=None)) == sorted((n, k + 1) for k, n in due)


def check_savepoint(spark: SparkSession, place: Path) -> None:
    """State that is read and written again is the same, and can be restored."""
    with settings(spark, conf(place)):
        state = absflow.history(spark, str(place / "job")).state("first")
        written = odd_job(spark, place).write_savepoint({"first": state}, base="latest")
    found = absflow.history(spark, str(place / "job")).state("first", written)
    assert rows_of(found, KEY[0]) == expected(FIRST, 2)
    with settings(spark, conf(place, restore__from=str(written))):
        planned = odd_job(spark, place).plan_restore()
    assert planned is not None
    assert planned.problems == ()


@pytest.mark.soak
def test_a10_a_job_with_every_odd_name_from_start_to_savepoint(
    spark: SparkSession, place: Path
) -> None:
    """Checkpoint, restore, history, views, command line, compaction, savepoint writer and sinks."""
    first = run(spark, place, 1)
    # The same root and the same checkpoint in other words; the last # is before the id.
    root = {"storage__path": f"file://{place}/job/", "restore__from": f"{place}/job#{first}"}
    second = run(spark, place, 2, **root)
    check_history(spark, place, [first, second])
    check_compaction(spark, place)
    check_sinks(spark, place)
    check_savepoint(spark, place)


@pytest.mark.parametrize(
    ("root", "error", "words"),
    [
        ("out/job", absflow.GraphError, "the storage root.*within the table of sink 'published'"),
        (".", absflow.GraphError, "source 'rows'.*within the storage root"),
        ("a%20b", absflow.StorageError, "has '%20' in its path"),
        ("a*", absflow.StorageError, r"has '\*' in its path"),
    ],
)
def test_a10_a_place_that_cannot_work_is_refused_before_anything_is_written(
    spark: SparkSession, place: Path, root: str, error: type[Exception], words: str
) -> None:
    """A start says which, and leaves nothing."""
    with settings(spark, conf(place, storage__path=str(place / root))):
        with pytest.raises(error, match=words):
            odd_job(spark, place).start()
    assert [path.name for path in place.rglob("*")] == ["in 50%20"]
