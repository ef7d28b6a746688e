"""A job with a known answer: two roots, four stages, a diamond, a mixed stage and a lagging one.

::

    a --> [a] ==> [left]  ==> [join] --> sink
           \\=> [right] ==/
    b ---------/

Source ``a`` is read by two stages, so a forwarding stage cuts it. ``right`` reads a channel and a
source, and is slow on purpose, so that barriers overtake each other's stages and rows are held.
Every stage keeps per key a count, a sum, the newest id and whether ids only ever rose.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from reading import completed, files_read
from session import settings

import absflow

ROWS = "id long, k string, v long"
STATE = "n long, total long, newest long, ordered boolean"
OUTPUT = "id long, g long, v long"
SLOW_S = 0.1  # what a key group of `right` takes for each of its batches of `a`


def source_files(
    folder: Path, rows: int, seed: int, first_id: int = 0
) -> Generator[None, None, None]:
    """Write a file at every ``next``: of a random size around ``rows``; ids rise over all files.

    A file is there whole or not at all, and newer than all before it.
    """
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    start = first_id
    for number in itertools.count():
        count = int(random.integers(1, 2 * rows))
        ids = np.arange(start, start + count)
        keys = [None if i % 50 == 0 else f"k{i % 23}" for i in ids]
        table = pa.table({"id": ids, "k": keys, "v": random.integers(-100, 100, count)})
        aside = folder / f".{number:04d}"
        pq.write_table(table, aside)
        os.utime(aside, (1_000_000 + number, 1_000_000 + number))
        aside.rename(folder / f"{number:04d}.parquet")
        start += count
        yield


def write_source(folder: Path, files: int, rows: int, seed: int) -> None:
    """The first ``files`` of :func:`source_files`."""
    for _ in itertools.islice(source_files(folder, rows, seed), files):
        pass


def read_source(folder: Path, files: int) -> pd.DataFrame:
    """The rows of the first ``files`` files."""
    paths = sorted(folder.glob("*.parquet"))[:files]
    return pd.concat([pd.read_parquet(p) for p in paths], ignore_index=True)


def fold(rows: pa.Table, state: pa.Table, context: absflow.Context) -> pa.Table:
    """The new state of the touched keys."""
    code, count = context.key_of_row, state.num_rows
    ids, values = rows["id"].to_numpy(), rows["v"].to_numpy()
    before = {
        name: np.where(context.is_new, fresh, state[name].fill_null(fresh).to_numpy())
        for name, fresh in (("n", 0), ("total", 0), ("newest", -1))
    }
    was_ordered = context.is_new | state["ordered"].fill_null(True).to_numpy()
    by_key = np.argsort(code, kind="stable")
    newest_before = before["newest"][code[by_key]]
    same_key = np.r_[False, code[by_key][1:] == code[by_key][:-1]]
    previous = np.where(same_key, np.r_[0, ids[by_key][:-1]], newest_before)
    falls = np.bincount(code[by_key], weights=ids[by_key] <= previous, minlength=count)
    newest = before["newest"].copy()
    np.maximum.at(newest, code, ids)
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, code, values)
    columns = {
        "n": before["n"] + np.bincount(code, minlength=count),
        "total": before["total"] + total,
        "newest": newest,
        "ordered": was_ordered & (falls == 0),
    }
    keys = [name for name in state.column_names if name not in columns]
    return pa.table({**{k: state[k] for k in keys}, **columns})


def to_group(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Fold, and emit every row under its group."""
    output = pa.table({"id": rows["id"], "g": rows["id"].to_numpy() % 7, "v": rows["v"]})
    return absflow.Result(output=output, state=fold(rows, state, context))


def slowly(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """As :func:`to_group`, but a stage that cannot keep up."""
    time.sleep(SLOW_S)
    return to_group(rows, state, context)


def expected_state(rows: pd.DataFrame, key: str) -> pd.DataFrame:
    """What :func:`fold` keeps, in plain pandas."""
    grouped = rows.groupby(key, dropna=False)
    state = grouped.agg(n=("id", "size"), total=("v", "sum"), newest=("id", "max"))
    return state.reset_index()


def expected_states(root: Path, positions: Mapping[str, int]) -> dict[str, pd.DataFrame]:
    """The state of every stage over the first files of each source.

    Args:
        root: where the sources lie.
        positions: how many files of ``a`` and ``b``.
    """
    a, b = (read_source(root / name, positions[name]) for name in ("a", "b"))
    right = pd.concat([a, b], ignore_index=True)
    joined = pd.concat([a, right], ignore_index=True)
    return {
        "left": expected_state(a, "k"),
        "right": expected_state(right, "k"),
        "join": expected_state(joined.assign(g=joined["id"] % 7), "g"),
    }


def diamond(
    spark: SparkSession,
    root: Path,
    sink: Path | None = None,
    *,
    bounded: bool = False,
    files_each: int = 1,
) -> absflow.Job:
    """The job over the sources below ``root``; its sink is there too, if no other is given.

    A batch reads ``files_each`` files of a source.
    """
    job = absflow.Job("diamond", spark)

    def source(name: str) -> object:
        frame = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", files_each)
        return job.source(name, frame.parquet(str(root / name)), bounded=bounded)

    a, b = source("a"), source("b")
    left = job.stage("left", a, key="k", state=STATE, output=OUTPUT, process=to_group)
    right = job.stage(
        "right",
        [a, b],
        key="k",
        state=STATE,
        output=OUTPUT,
        process={"a": slowly, "b": to_group},
    )
    join = job.stage(
        "join",
        [left, right],
        key="g",
        state=STATE,
        output=OUTPUT,
        process={"left": to_group, "right": to_group},
    )
    job.sink("out", join, absflow.DeltaSink(str(sink or root / "sink")))
    return job


def expected_sink(root: Path) -> pd.DataFrame:
    """Every row of ``a`` twice (by ``left`` and by ``right``), every row of ``b`` once."""
    a, b = (read_source(root / name, 10_000) for name in ("a", "b"))
    rows = pd.concat([a, a, b], ignore_index=True)
    rows = rows.assign(g=rows["id"] % 7)[["id", "g", "v"]]
    return rows.sort_values(["id", "v"], ignore_index=True)


def holds_all(completed: list[dict[str, Any]], files: int) -> bool:
    """Whether the newest completed checkpoint stands behind all files, with none in flight.

    Args:
        completed: the COMPLETED facts, by id.
        files: how many each source has.
    """
    if not completed or any(stage["in_flight"] for stage in completed[-1]["stages"]):
        return False
    return files == files_read(completed[-1], "a", "a") == files_read(completed[-1], "right", "b")


def run_until(
    spark: SparkSession,
    root: Path,
    conf: Mapping[str, str],
    rows: tuple[int, int],
    missing: Callable[[list[dict[str, Any]]], object],
) -> list[dict[str, Any]]:
    """Feed the job until its durable facts show what is wanted, however fast this machine is.

    Args:
        spark: the session.
        root: where sources, storage root and sink lie.
        conf: settings.
        rows: of a file of ``a`` and of ``b``, about.
        missing: what the COMPLETED facts do not show yet; false if nothing.

    Returns:
        The COMPLETED facts; all rows that were fed are in the newest.
    """
    a = source_files(root / "a", rows=rows[0], seed=1)
    b = source_files(root / "b", rows=rows[1], seed=2, first_id=1_000_000)
    next(a), next(b)  # Spark wants the folders to be there
    written = 1
    with settings(spark, {**conf, "storage.path": str(root / "job")}):
        run = diamond(spark, root).start()
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + 300
        while (lacking := missing(found)) or not holds_all(found, written):
            assert time.monotonic() < deadline, f"still missing: {lacking or 'the last files'}"
            # Some files ahead of the stage that reads them, which takes one for each batch.
            if lacking and written < run.progress().stages["a"].batch_id + 3:
                next(a), next(b)
                written += 1
            run.await_termination(timeout=0.1)
            if len(found) < run.progress().completed:
                found = completed(spark, root / "job")
        run.stop()
    return found
