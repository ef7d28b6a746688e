"""A table of a database that has the state of a stage, whatever happens."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from chain import chain, conf, expected
from diamond import ROWS, source_files, write_source
from pyspark.sql import SparkSession
from reading import advanced, assert_same_rows, completed
from session import settings

import absflow
from absflow.columnar.spec import StageSpec
from absflow.spark.control.state_rows import state_rows
from absflow.storage.root import StorageRoot

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def job(spark: SparkSession, root: Path, *, bounded: bool = True) -> absflow.Job:
    made = chain(spark, root, bounded=bounded)
    made.sink("table", "tally", absflow.SqlSink(f"sqlite:///{root / 'lite.db'}", "t"), of="state")
    return made


def run(spark: SparkSession, root: Path, **more: str) -> int:
    """To the end of its files; its last checkpoint."""
    with settings(spark, conf(root, **more)):
        assert job(spark, root).start().await_termination(timeout=300)
    return int(completed(spark, root / "job")[-1]["checkpoint_id"])


def table(root: Path) -> pd.DataFrame:
    with closing(sqlite3.connect(root / "lite.db")) as connection:
        found = pd.read_sql_query("SELECT * FROM t", connection)
    return found.astype({"ordered": bool})


def test_the_table_is_the_state(spark: SparkSession, tmp_path: Path) -> None:
    """Over restarts, restores backwards, and compaction."""
    source = source_files(tmp_path / "a", rows=60, seed=3)
    files = 0
    checkpoints = []
    for _ in range(3):
        next(source)
        files += 1
        checkpoints.append(run(spark, tmp_path, lineage__max_sets="2"))
        assert_same_rows(table(tmp_path), expected(tmp_path, files)["tally"], ["g"])
    with settings(spark, conf(tmp_path, restore__from=str(checkpoints[0]))):
        planned = job(spark, tmp_path).plan_restore()
    assert "stays as it is until the next checkpoint" in planned.sinks["table"].note
    run(spark, tmp_path, restore__from=str(checkpoints[0]))
    assert_same_rows(table(tmp_path), expected(tmp_path, files)["tally"], ["g"])
    next(source)
    run(spark, tmp_path)
    assert_same_rows(table(tmp_path), expected(tmp_path, files + 1)["tally"], ["g"])


def count(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """How many rows a key has had; one that has had twenty is forgotten."""
    before = state["n"].fill_null(0).to_numpy()
    n = before + np.bincount(context.key_of_row, minlength=state.num_rows)
    kept = state.set_column(1, "n", pa.array(n))
    return absflow.Result(state=kept.filter(pa.array(n < 20)), delete=n >= 20)


def test_any_state_becomes_any_later_one(spark: SparkSession, tmp_path: Path) -> None:
    """By the rows between two checkpoints; keys are forgotten and sets merged meanwhile."""
    write_source(tmp_path / "a", 8, 60, seed=5)
    frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    made = absflow.Job("forgetful", spark)
    a = made.source("a", frame.parquet(str(tmp_path / "a")), bounded=True)
    made.stage("count", a, key="k", state="n long", output="k string", process=count)
    given = conf(tmp_path, checkpoint__interval="300ms", lineage__max_sets="2")
    with settings(spark, given):
        assert made.start().await_termination(timeout=300)
    history = absflow.history(spark, str(tmp_path / "job"))
    root = StorageRoot.open(spark, str(tmp_path / "job"))
    ids = [row["checkpoint_id"] for row in completed(spark, tmp_path / "job")]
    states = {n: history.state("count", n).toPandas() for n in ids}
    assert any(len(state) > len(states[ids[-1]]) for state in states.values())
    spec = StageSpec(
        name="count",
        inputs=(),
        keys=pa.schema([("k", pa.string())]),
        state=pa.schema([("n", pa.int64())]),
        output=pa.schema([]),
        process={},
        key_groups=4,
    )
    for base, n in [*pairwise(ids), (ids[0], ids[-1]), (None, ids[-1])]:
        rows = state_rows(root, spec, "count", n, base)
        before = states[n].head(0) if base is None else states[base]
        assert rows.whole == (base is None)
        assert_same_rows(advanced(before, rows.frame.toPandas(), "k"), states[n], ["k"])
    assert state_rows(root, spec, "count", max(ids) + 1, None) is None
