"""A key group with more state than any one value of Spark, Arrow or Java can hold."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from chain import wait
from pyspark.sql import SparkSession
from reading import commits
from session import settings

import absflow

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]

WIDTH = 10_000  # bytes of a key's state
A_FILE = 10_000  # keys: 100 MB of state
MOST_BYTES = 900 << 20  # that a worker may have of its own; files that it maps are none of it


def body(keys: np.ndarray, number: int) -> pa.Array:
    """The state of keys after a file: it says of which file and of which key it is."""
    words = np.repeat(keys * 1000 + number, WIDTH // 8)
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * WIDTH
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(words)]
    return pa.Array.from_buffers(pa.binary(), len(keys), buffers)


def keep(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Make the state of each key anew; the output counts the keys that had one."""
    new = body(state["k"].to_numpy(), int(rows["file"][0].as_py()))
    known = pa.array([int(np.count_nonzero(~context.is_new))])
    place = state.schema.get_field_index("body")
    return absflow.Result(
        output=pa.table({"known": known}), state=state.set_column(place, "body", new)
    )


def write_file(folder: Path, number: int, first: int) -> None:
    """A file of keys."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = np.arange(first, first + A_FILE)
    rows = pa.table({"k": keys, "file": np.full(A_FILE, number)})
    aside = folder / f".{number:04d}"
    pq.write_table(rows, aside)
    aside.rename(folder / f"{number:04d}.parquet")


@contextmanager
def running(spark: SparkSession, root: Path, **more: str) -> Iterator[absflow.Run]:
    """The job, without an end."""
    conf = {
        "storage.path": str(root / "job"),
        "checkpoint.interval": "1h",
        "key-groups": "1",
    }
    given = {name.replace("__", "."): value for name, value in more.items()}
    with settings(spark, conf | given):
        job = absflow.Job("large", spark)
        frame = spark.readStream.schema("k long, file long").option("maxFilesPerTrigger", 1)
        rows = job.source("rows", frame.parquet(str(root / "rows")))
        stage = job.stage(
            "large", rows, key="k", state="body binary", output="known long", process=keep
        )
        job.sink("out", stage, absflow.DeltaSink(str(root / "sink")))
        run = job.start()
    try:
        yield run
    finally:
        if run.is_active:
            run.stop()


def until_read(spark: SparkSession, root: Path, files: int, run: absflow.Run) -> None:
    """Wait until the job has processed so many files: each gives one row."""

    def read() -> bool:
        path = root / "sink"
        there = commits(path) > 0
        return there and spark.read.format("delta").load(str(path)).count() >= files

    wait(read, run)


class Workers:
    """The most memory of its own that a Python worker of this process had."""

    def __init__(self) -> None:
        """Look ten times a second, until it is closed."""
        self.most = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(0.1):
            self.most = max([self.most, *_sizes()])

    def close(self) -> None:
        """Look no more."""
        self._done.set()
        self._thread.join()


def _sizes() -> list[int]:
    """Anonymous memory of each process of Spark's Python workers, in bytes."""
    status = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = dict(
                line.split(":", 1) for line in (folder / "status").read_text().splitlines()
            )
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        status[int(folder.name)] = (int(lines["PPid"]), command, lines.get("RssAnon", "0 kB"))

    def is_ours(process: int) -> bool:
        while process in status:
            if process == os.getpid():
                return True
            process = status[process][0]
        return False

    return [
        int(anonymous.split()[0]) << 10
        for process, (_, command, anonymous) in status.items()
        if b"pyspark" in command and b"daemon" in command and is_ours(process)
    ]


def check(spark: SparkSession, root: Path, checkpoint: int, keys: int, renewed: int) -> None:
    """Every key is there once, with its own state of the last file that had it."""
    state = absflow.history(spark, str(root / "job")).state("large", checkpoint)

    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = batch.column("k").to_numpy()
            last = keys // A_FILE
            number = np.where(found < renewed, last, found // A_FILE)
            assert pc.all(pc.equal(pc.binary_length(batch.column("body")), WIDTH)).as_py()
            words = np.frombuffer(b"".join(batch.column("body").to_pylist()), np.int64)
            same = words.reshape(len(found), -1) == (found * 1000 + number)[:, None]
            good = pa.array(np.flatnonzero(same.all(axis=1)))
            yield pa.RecordBatch.from_arrays([batch.column("k").take(good)], names=["k"])

    good = state.select("k", "body").mapInArrow(compare, "k long")
    row = good.selectExpr("count(*)", "count(distinct k)", "min(k)", "max(k)").collect()[0]
    assert tuple(row) == (keys, keys, 0, keys - 1)
    assert state.count() == keys


@pytest.mark.parametrize("files", [3, 31], ids=["300MB", "3GB"])
def test_a_key_group_of_any_size_goes_through_savepoint_and_restore(
    spark: SparkSession, tmp_path: Path, files: int
) -> None:
    """It is equal afterwards, and no worker ever had more than a part of it in memory."""
    workers = Workers()
    try:
        for number in range(files):
            write_file(tmp_path / "rows", number, number * A_FILE)
        with running(spark, tmp_path) as run:
            until_read(spark, tmp_path, files, run)
            taken = run.savepoint(timeout=1800)
        check(spark, tmp_path, taken, files * A_FILE, 0)

        write_file(tmp_path / "rows", files, 0)
        with running(spark, tmp_path, restore__from=str(taken)) as run:
            until_read(spark, tmp_path, files + 1, run)
            again = run.savepoint(timeout=1800)
        check(spark, tmp_path, again, files * A_FILE, A_FILE)
    finally:
        workers.close()
    known = spark.read.format("delta").load(str(tmp_path / "sink")).groupBy("known").count()
    assert {(row[0], row[1]) for row in known.collect()} == {(0, files), (A_FILE, 1)}
    print(f"most memory of a worker: {workers.most >> 20} MiB")
    assert 0 < workers.most < MOST_BYTES
