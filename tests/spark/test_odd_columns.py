"""A10: a job with every odd name that is allowed, at once, from its start to its last reader.

::

    files --> [first] ==channel==> [second, in pandas] --> [third, per key] ==> Delta
                 |
                 +--> Delta

Folders, the storage root and the sinks have odd names, too.
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
from odd_names import REFUSED, TAKEN
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType
from reading import facts
from retaining import hurry
from session import settings

import absflow
from absflow.cli.reader import Reader
from absflow.spark.control import retention
from absflow.storage.sql import quoted

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
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an odd name; retention is in a hurry, and compacts whatever it can."""
    for name in ("EVERY", "REST", "RETAIN", "VACUUM_EVERY", "MANY_FILES"):
        monkeypatch.setattr(retention, name, getattr(retention, name))
    hurry()
    (tmp_path / ODD_FOLDER / "in 50%20").mkdir(parents=True)
    yield tmp_path / ODD_FOLDER


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


def odd_job(spark: SparkSession, place: Path, *, bounded: bool = False) -> absflow.Job:
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
    given: Any = job.source("rows", source(spark, place), bounded=bounded)
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
        "checkpoint.interval": "500ms",
        "checkpoint.retained": "2",
        "lineage.max-sets": "1",
        "key-groups": "2",
        **{name.replace("__", "."): value for name, value in more.items()},
    }


def feed(place: Path, number: int) -> None:
    """A file with every key once."""
    table = pa.table({"k": np.arange(KEYS)})
    pq.write_table(table, place / "in 50%20" / f".{number}")
    (place / "in 50%20" / f".{number}").rename(place / "in 50%20" / f"{number} %41.parquet")


def kept(spark: SparkSession, place: Path) -> list[int]:
    """The checkpoints that are there."""
    rows = facts(spark, place / "job")
    gone = {row["checkpoint_id"] for row in rows if row["kind"] == "DELETED"}
    done = {row["checkpoint_id"] for row in rows if row["kind"] == "COMPLETED"}
    return sorted(done - gone)


def run_until_compacted(spark: SparkSession, place: Path) -> int:
    """Run the job until retention has compacted a state; how many files it was given."""
    run = odd_job(spark, place).start()
    files = 0
    while not any(row["kind"] == "COMPACTED" for row in facts(spark, place / "job")):
        feed(place, files)
        files += 1
        before = run.progress().completed
        while run.progress().completed <= before:
            assert run.is_active
            time.sleep(0.1)
    run.stop()
    return files


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


def check_history(spark: SparkSession, place: Path, files: int) -> None:
    """What the DataFrames, the views and the command line say of the newest checkpoint."""
    history, reader = absflow.history(spark, str(place / "job")), Reader(str(place / "job"))
    history.create_views("odd_")
    *_, before, newest = kept(spark, place)
    for stage, of in (("first", FIRST), ("second", SECOND), ("third", THIRD)):
        key = of["key"][0]
        due = expected(of, files)
        assert rows_of(history.state(stage), key) == due
        view = spark.sql(f"SELECT * FROM odd_{stage}_state WHERE at_checkpoint = {newest}")
        assert rows_of(view.drop("at_checkpoint"), key) == due
        whole = {name: due[2][name] for name in of["key"]}
        changes = history.changes(stage, whole).toArrow().to_pylist()
        assert {name: changes[-1][name] for name in due[2]} == due[2]
        found = spark.sql(
            f"SELECT * FROM odd_{stage}_changes WHERE {quoted(key)} = {whole[key]}"
        ).toArrow()
        assert found.num_rows == len(changes)
        there = history.difference(stage, before, newest).toArrow().to_pylist()
        assert all(row["op"] == "changed" and row["after"] != row["before"] for row in there)
        asked = {name: str(value) for name, value in whole.items()}
        assert reader.state(stage, newest, asked).rows.to_pylist() == [due[2]]


def test_a10_a_job_with_every_odd_name_from_start_to_savepoint(
    spark: SparkSession, place: Path
) -> None:
    """Checkpoint, compaction, restore, history, views, command line and savepoint writer."""
    with settings(spark, conf(place)):
        files = run_until_compacted(spark, place)
    # The same root and the same checkpoint in other words; the last # is before the id.
    more = conf(place, restore__from=f"{place}/job#{kept(spark, place)[0]}")
    with settings(spark, {**more, "storage.path": f"file://{place}/job/"}):
        run = odd_job(spark, place, bounded=True).start()
        assert run.await_termination(300)
    check_history(spark, place, files)
    sink = spark.read.format("delta").load(str(place / "all%20"))
    seen = sink.select(*map(quoted, [KEY[0], REST[0]])).toPandas()
    assert sorted(map(tuple, seen.values.tolist())) == sorted(
        (k, n + 1) for k in range(KEYS) for n in range(files)
    )
    out = spark.read.format("delta").load(str(place / "out")).toPandas()
    assert out.columns.tolist() == THIRD["output"]
    assert len(out) == KEYS * files
    check_savepoint(spark, place, files)


def check_savepoint(spark: SparkSession, place: Path, files: int) -> None:
    """State that is read and written again is the same, and can be restored."""
    with settings(spark, conf(place)):
        state = absflow.history(spark, str(place / "job")).state("first")
        written = odd_job(spark, place).write_savepoint({"first": state}, base="latest")
    found = absflow.history(spark, str(place / "job")).state("first", written)
    assert rows_of(found, KEY[0]) == expected(FIRST, files)
    with settings(spark, conf(place, restore__from=str(written))):
        planned = odd_job(spark, place).plan_restore()
    assert planned is not None
    assert planned.problems == ()
