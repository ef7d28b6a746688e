"""A batch that is run again on another cluster has its rows in the order that they had."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable
from processes import bury, tail
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from row_order import OUTPUT, ROWS, STAGES, numbered
from session import settings, spark_conf

import absflow
from absflow.errors import GraphError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE_S = 500
# In this order Spark lists them. With two cores the largest comes first, with eight the first that
# is larger than an eighth of all.
SIZES = (30_000, 3_000, 80_000)


@pytest.mark.soak
def test_a_replay_on_other_cores_gives_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Killed on two cores behind its writes, gone on with on eight; files of different sizes."""
    write_sources(spark, tmp_path)
    assert drive(tmp_path, 2, "die") == -signal.SIGKILL
    before = {name: rows_of(spark, tmp_path / name) for name in STAGES}
    assert drive(tmp_path, 8) == 0, tail(tmp_path / "said")
    history = absflow.history(spark, str(tmp_path / "job"))
    last = history.checkpoints().agg({"checkpoint_id": "max"}).collect()[0][0]
    for name in STAGES:
        rows = rows_of(spark, tmp_path / name)
        assert rows == before[name]
        counted = {row.k: row.n for row in history.state(f"s_{name}", last).collect()}
        assert counted == {k: len(places) for k, places in places_by_key(rows).items()}
        assert all(sorted(p) == list(range(len(p))) for p in places_by_key(rows).values())


def test_the_files_of_a_batch_come_by_size_and_not_by_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What the docs say of files and of a Delta table: the largest first, each in its own order."""
    write_sources(spark, tmp_path, (20, 2_000, 200))
    frames = {
        "of_files": spark.readStream.schema(ROWS).parquet(str(tmp_path / "files")),
        "of_table": spark.readStream.format("delta").load(str(tmp_path / "table")),
    }
    with settings(spark, {"storage.path": str(tmp_path / "job"), "key-groups": "2"}):
        job = absflow.Job("order", spark)
        for name, frame in frames.items():
            rows = job.source(name, frame, bounded=True)
            stage = job.stage(
                f"s_{name}", rows, key="k", state="n long", output=OUTPUT, process=numbered
            )
            job.sink(f"sink_{name}", stage, absflow.DeltaSink(str(tmp_path / name)))
        job.start().await_termination()
    due = [pq.read_table(tmp_path / "files" / f"{n}.parquet").to_pylist() for n in (1, 2, 0)]
    for name in STAGES:
        found = spark.read.format("delta").load(str(tmp_path / name)).orderBy("place").collect()
        for k in range(5):
            ids = [row.id for row in found if row.k == k]
            assert ids == [row["id"] for rows in due for row in rows if row["k"] == k]


def test_what_the_session_says_is_put_back_behind_the_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    """While the job runs the session has what the attempt began with; then its own again."""
    keys = ("spark.sql.files.minPartitionNum", "spark.sql.files.maxPartitionBytes")
    write_sources(spark, tmp_path)
    files = spark.readStream.schema(ROWS).parquet(str(tmp_path / "files"))
    began = {keys[0]: "3", keys[1]: "1000000"}
    with spark_conf(spark, began):
        run = start(spark, tmp_path, files)
        run.stop()
    with spark_conf(spark, {keys[1]: "77777"}):
        run = start(spark, tmp_path, files)
        assert {key: spark.conf.get(key, None) for key in keys} == began
        run.stop()
        assert [spark.conf.get(key, None) for key in keys] == [None, "77777"]


def test_a_source_cut_by_cores_is_refused_on_others(spark: SparkSession, tmp_path: Path) -> None:
    """The rate source asks for the cores when its frame is made; its option puts that right."""

    def rate(**options: str) -> absflow.Run:
        frame = spark.readStream.format("rate").options(rowsPerSecond="5", **options).load()
        return start(spark, tmp_path, frame.selectExpr("value AS id", "value % 7 AS k"))

    rate().stop()
    facts = spark.read.format("delta").load(str(tmp_path / "job" / "attempts"))
    text = '"spark.default.parallelism": "2"'
    assert facts.where(F.col("details").contains(text)).count() == 1
    DeltaTable.forPath(spark, str(tmp_path / "job" / "attempts")).update(
        "kind = 'STARTED'",
        {"details": F.replace("details", F.lit(text), F.lit(text.replace("2", "8")))},
    )
    with pytest.raises(GraphError, match=r"set \.option\('numPartitions', 8\)"):
        rate()
    rate(numPartitions="8").stop()


def start(spark: SparkSession, root: Path, frame: DataFrame) -> absflow.Run:
    """A job of one stage and no sink, running."""
    with settings(spark, {"storage.path": str(root / "job"), "key-groups": "2"}):
        job = absflow.Job("order", spark)
        rows = job.source("rows", frame)
        job.stage("count", rows, key="k", state="n long", output=OUTPUT, process=numbered)
        return job.start()


def write_sources(spark: SparkSession, root: Path, sizes: tuple[int, ...] = SIZES) -> None:
    """The same files of random rows as a folder and as a Delta table."""
    random = np.random.default_rng(7)
    (root / "files").mkdir()
    first = 0
    for number, size in enumerate(sizes):
        ids = random.permutation(size) + first
        table = pa.table({"id": ids, "k": ids % 5})
        path = root / "files" / f"{number}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
        rows = spark.read.parquet(str(path)).coalesce(1)
        rows.write.format("delta").mode("append").save(str(root / "table"))
        first += size


def drive(root: Path, cores: int, *more: str) -> int:
    """Run the program; how it ended."""
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    program = str(Path(__file__).parent / "row_order.py")
    with (root / "said").open("w") as said:
        command = [sys.executable, program, str(root), str(cores), *more]
        driver = subprocess.Popen(
            command, env=environment, stdout=said, stderr=said, start_new_session=True
        )
        try:
            return driver.wait(PATIENCE_S)
        finally:
            bury(driver)


def rows_of(spark: SparkSession, path: Path) -> set[tuple[int, int, int]]:
    """The rows of a sink."""
    rows = spark.read.format("delta").load(str(path)).toPandas()
    assert len(rows) == sum(SIZES)
    return set(rows[["id", "k", "place"]].itertuples(index=False, name=None))


def places_by_key(rows: set[tuple[int, int, int]]) -> dict[int, list[int]]:
    """The places of the rows of each key."""
    found: dict[int, list[int]] = {}
    for _, k, place in rows:
        found.setdefault(k, []).append(place)
    return found
