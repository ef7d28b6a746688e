"""Reading what a job has left, without absflow's own history code, and without a job of Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession


def rows_of(table: Path) -> pa.Table:
    """All rows of a Delta table; Spark takes most of a second of CPU time to say the same."""
    return pa.table(DeltaTable(str(table)).to_pyarrow_table())


def commits(table: Path) -> int:
    """How many versions the log of a Delta table has; its folder is there before the first."""
    return len([*(table / "_delta_log").glob("*.json")])


def facts(_spark: SparkSession, storage: Path) -> list[dict[str, Any]]:
    """The rows of ``checkpoints`` by id."""
    rows = rows_of(storage / "checkpoints").to_pylist()
    return sorted(rows, key=lambda r: r["checkpoint_id"])


def completed(spark: SparkSession, storage: Path) -> list[dict[str, Any]]:
    """The COMPLETED ones."""
    return [row for row in facts(spark, storage) if row["kind"] == "COMPLETED"]


def stage_of(row: dict[str, Any], stage: str) -> dict[str, Any]:
    """A stage's part of a manifest."""
    return next(s for s in row["stages"] if s["stage"] == stage)


def files_read(row: dict[str, Any], stage: str, source: str) -> int:
    """How many files of ``source`` a manifest's position stands behind (one file a batch)."""
    position = dict(stage_of(row, stage)["positions"])[source]
    return 0 if position == "-" else json.loads(position)["logOffset"] + 1


def state_at(
    _spark: SparkSession, storage: Path, row: dict[str, Any], stage: str, key: str
) -> pd.DataFrame:
    """A stage's state at a checkpoint: the newest change of each key along the lineage."""
    history = rows_of(storage / "state" / stage).to_pandas()
    lineage = stage_of(row, stage)["lineage"]
    rows = history[history["set_id"].isin(lineage)].sort_values("set_id")
    newest = rows.groupby(key, dropna=False).tail(1)
    return newest[newest["op"] == "upsert"]


def durable_files(storage: Path) -> dict[str, int]:
    """When each file was written, but for the lock, and Spark's own, which a thread tidies up."""
    return {
        str(path.relative_to(storage)): path.stat().st_mtime_ns
        for path in storage.rglob("*")
        if path.is_file() and path.relative_to(storage).parts[0] not in {"work", "driver.lock"}
    }


def assert_same_rows(actual: pd.DataFrame, expected: pd.DataFrame, by: list[str]) -> None:
    """Equal as bags of rows over the columns of ``expected``; says what differs."""
    columns = list(expected.columns)
    left, right = (
        f[columns].astype(object).where(f[columns].notna(), None) for f in (actual, expected)
    )
    left, right = (
        f.sort_values(by, key=lambda c: c.map(str), ignore_index=True) for f in (left, right)
    )
    assert left.values.tolist() == right.values.tolist()


def advanced(state: pd.DataFrame, rows: pd.DataFrame, key: str) -> pd.DataFrame:
    """A table of a state behind rows of a sink of state, one for each key."""
    assert rows[key].is_unique
    stays = state[~state[key].isin(rows[key])]
    there = rows[~rows["_deleted"]][list(state.columns)]
    return pd.concat([stays, there], ignore_index=True)
