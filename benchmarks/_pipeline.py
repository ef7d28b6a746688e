"""A job of so many stages one behind the other, and when its rows came to its sink."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _quick import usual
from _running_sum import configure
from pyspark.sql import SparkSession

import absflow

COLUMNS = "k long, g long, v long"
GROUPS = 1_000
WARM_S = usual(10, 5)
FEWEST, LONGEST_S = 5, 60


def add(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Add up by the stage's key, and hand every row on."""
    total = state["total"].fill_null(0).to_numpy().copy()
    np.add.at(total, context.key_of_row, rows["v"].to_numpy())
    key = state.column_names[0]
    return absflow.Result(output=rows, state=pa.table({key: state[key], "total": total}))


def declare(spark: SparkSession, source: Path, sink: Path, stages: int, files: int) -> absflow.Job:
    """``v`` by ``k`` and by ``g`` in turn, so many times; so many files a micro-batch."""
    job = absflow.Job("pipeline", spark)
    reader = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", files)
    last = job.source("rows", reader.parquet(str(source)))
    for number in range(stages):
        key, name = "kg"[number % 2], f"stage-{number + 1}"
        last = job.stage(name, last, key=key, state="total long", output=COLUMNS, process=add)
    job.sink("out", last, absflow.DeltaSink(str(sink)))
    return job


@contextmanager
def running(
    spark: SparkSession,
    source: Path,
    settings: Mapping[str, str],
    *,
    stages: int,
    files: int,
) -> Iterator[tuple[absflow.Run, Path]]:
    """The job, warm, with a checkpoint every 10 s; and where its sink is."""
    with tempfile.TemporaryDirectory() as root:
        own = {"storage.path": f"{root}/job", "checkpoint.interval": "10s"}
        configure(spark, {**own, **settings})
        sink = Path(root) / "out"
        run = declare(spark, source, sink, stages, files).start()
        try:
            run.await_termination(timeout=WARM_S)
            yield run, sink
        finally:
            run.stop()


def write(path: Path, random: np.random.Generator, rows: int, keys: int) -> None:
    """A file that is there whole or not at all."""
    columns = {"k": keys, "g": GROUPS, "v": 9}
    table = pa.table({name: random.integers(0, upto, rows) for name, upto in columns.items()})
    aside = path.with_name(f".{path.name}")
    pq.write_table(table, aside)
    aside.rename(path)


def throughput(run: absflow.Run, sink: Path, seconds: float) -> float:
    """Rows that come to the sink in a second; over so long and ``FEWEST`` commits at least."""
    before = len(commits(sink))
    run.await_termination(timeout=seconds)
    deadline = time.monotonic() + LONGEST_S
    while len(made := commits(sink)[before:]) < FEWEST:
        if time.monotonic() > deadline:
            raise SystemExit(f"{len(made)} commits in {seconds + LONGEST_S:g} s, {FEWEST} wanted")
        run.await_termination(timeout=1)
    return speed(made)


def speed(made: list[tuple[float, int]]) -> float:
    """Rows per second of such commits, from the first to the last."""
    (since, _), *rest = made
    return sum(rows for _, rows in rest) / (rest[-1][0] - since)


def commits(table: Path) -> list[tuple[float, int]]:
    """When each commit that added rows was there, s since 1970, and how many rows it added."""
    found = []
    for entry in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        stats = [json.loads(a["add"]["stats"]) for a in actions if "add" in a]
        if stats:
            found.append((entry.stat().st_mtime, sum(s["numRecords"] for s in stats)))
    return found
