"""A running job of a large state: a full checkpoint in the place of a compaction of all sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chain import wait
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, facts, files_read
from session import settings

import absflow
from absflow.cli.reader import Reader
from absflow.facts.records import compacted_of
from absflow.spark.control import retention

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE_S = 400
# More rows than are compacted in no time, of which a small part changes with each file.
FILES, KEYS, CHANGED = 300, 60_000, 8_000


def write_source(folder: Path) -> None:
    """Every key, then files that change some."""
    folder.mkdir()
    chance = np.random.default_rng(137)
    for number in range(FILES):
        keys = np.arange(KEYS) if number == 0 else chance.choice(KEYS, CHANGED, replace=False)
        rows = pa.table({"k": keys, "v": chance.integers(0, 9, len(keys))})
        pq.write_table(rows, folder / f"{number:04d}.parquet")


def add(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """The sum of each key."""
    of_rows = np.bincount(context.key_of_row, rows["v"].to_numpy(), state.num_rows)
    total = state["total"].fill_null(0).to_numpy() + of_rows.astype(np.int64)
    new = pa.table({"k": state["k"], "total": total})
    return absflow.Result(output=rows.select(["v"]).slice(0, 1), state=new)


def job(spark: SparkSession, root: Path) -> absflow.Job:
    """One stage."""
    job = absflow.Job("sums", spark)
    frame = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
    a = job.source("a", frame.parquet(str(root / "a")))
    sums = job.stage("sums", a, key="k", state="total long", output="v long", process=add)
    job.sink("out", sums, absflow.DeltaSink(str(root / "sink")))
    return job


def expected(root: Path, files: int) -> pd.DataFrame:
    """The state after the first files, in plain pandas."""
    paths = sorted((root / "a").glob("*.parquet"))[:files]
    rows = pd.concat(map(pd.read_parquet, paths)).groupby("k", as_index=False).sum()
    return rows.rename(columns={"v": "total"})


def test_before_a_compaction_of_everything_comes_a_full_checkpoint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice; older sets go, nothing is compacted, and a restore has the state of the last."""
    monkeypatch.setattr(retention, "EVERY", 0.0)
    monkeypatch.setattr(retention, "REST", 0.0)
    write_source(tmp_path / "a")
    root = tmp_path / "job"

    def full() -> list[int]:
        return [row["checkpoint_id"] for row in completed(spark, root) if row["base_id"] == 0][1:]

    given = {"storage.path": str(root), "checkpoint.interval": "500ms", "key-groups": "2"}
    for start in ("", "latest"):
        before = len(full()) if start else 0
        with settings(spark, {**given, "restore.from": start}):
            running = job(spark, tmp_path).start()
        try:
            wait(lambda known=before: len(full()) > known, running, PATIENCE_S)
        finally:
            running.stop()
    rows = completed(spark, root)
    lengths = {row["checkpoint_id"]: len(row["stages"][0]["lineage"]) for row in rows}
    reader = Reader(str(root))
    for n in full():
        assert lengths[n] == 1
        assert max(lengths[m] for m in lengths if m < n) > 3
        (row,) = (row for row in rows if row["checkpoint_id"] == n)
        due = expected(tmp_path, files_read(row, "sums", "a"))
        assert_same_rows(reader.state("sums", n).rows.to_pandas(), due, ["k"])
    assert not compacted_of(facts(spark, root))
