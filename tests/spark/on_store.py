"""The job of ``chain.py`` with storage root and sink on a store, in a process of its own.

``python on_store.py ROOT PLACE [NAME=VALUE ...]`` runs it to its end over the files in ``ROOT/a``,
with this Spark conf, and compares what it left with pandas.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from chain import SETTINGS, chain, expected
from delta import configure_spark_with_delta_pip
from kafka_broker import jars
from outside_sinks import add_outside
from processes import bury, tail
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from reading import assert_same_rows
from session import builder

import absflow
from absflow.spark.control import old_logs, retention, tidying

# With all it depends on: the bundle of the AWS SDK, 690 MB, hence on the class path and not in
# spark.jars, which are copied for each application.
HADOOP_AWS = {"org.apache.hadoop:hadoop-aws:3.5.0": True}
PATIENCE_S = 800
# Where requests go wrong, those of who checks the job do so, too.
READS = 10
# So that a short run does what a long one does now and then; no conf of Spark.
TIDY = "tidy"
# How often it may fail, and is then made and started again in its process; no conf of Spark.
STARTS = "starts"
# Of a job in a short life in which every kind of request goes wrong: as many failures in a row as
# no job sees.
OFTEN_FAILING = {
    TIDY: "true",
    "spark.absflow.restart.attempts": "1000",
    "spark.absflow.restart.initial-delay": "100ms",
    "spark.absflow.restart.multiplier": "1",
    "spark.absflow.checkpoint.interval": "200ms",
    "spark.absflow.checkpoint.retained": "2",
    "spark.absflow.lineage.max-sets": "2",
}


class Server(Protocol):
    """Of a store."""

    def conf(self) -> dict[str, str]:
        """The Spark conf by which it is found."""


def class_path(folder: Path) -> str:
    """Hadoop's S3 client and what it needs, downloaded at the first time."""
    return os.pathsep.join(jars(HADOOP_AWS, folder))


def started(
    root: Path,
    place: str,
    server: Server,
    jars: str = "",
    more: Mapping[str, str] | None = None,
    *,
    name: str = "log",
    program: str = "",
) -> subprocess.Popen[bytes]:
    """The job in a process of its own, which prints into a file of ``root``.

    Args:
        root: where its input is.
        place: the URI below which storage root and sink lie.
        server: of the store.
        jars: of :func:`class_path`, for S3.
        more: Spark conf.
        name: of the file.
        program: another one beside this, which takes place and conf.
    """
    here = Path(__file__)
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(here.parent)}
    environment |= {"PYSPARK_PYTHON": sys.executable}
    conf = {**server.conf(), **(more or {})}
    if jars:
        conf["spark.driver.extraClassPath"] = jars
    words = [f"{name}={value}" for name, value in conf.items()]
    run = [sys.executable, str(here), str(root)]
    if program:
        run = [sys.executable, str(here.with_name(program))]
    with (root / name).open("a") as log:
        return subprocess.Popen(
            [*run, place, *words],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def run_to_end(
    root: Path,
    place: str,
    server: Server,
    jars: str = "",
    more: Mapping[str, str] | None = None,
    *,
    program: str = "",
) -> str:
    """What :func:`started` prints, to its end, which is a good one."""
    process = started(root, place, server, jars, more, program=program)
    try:
        code = process.wait(PATIENCE_S)
    finally:
        bury(process)
    assert code == 0, tail(root / "log")
    return (root / "log").read_text()


def main(root: Path, place: str, more: dict[str, str]) -> None:
    """Run the job to its end in this process, and compare what it left with pandas."""
    if more.pop(TIDY, ""):
        retention.EVERY = retention.WHERE_PAID = retention.REST = 1.0
        old_logs.TRIM_EVERY, tidying.VACUUM_EVERY = 2.0, 3.0
    starts = int(more.pop(STARTS, "1"))
    start = builder()
    given = {"storage.path": f"{place}/job", **SETTINGS}
    for name, value in ({f"spark.absflow.{n}": v for n, v in given.items()} | more).items():
        start = start.config(name, value)
    spark = configure_spark_with_delta_pip(start).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    run = ended(spark, root, place, starts)
    assert run.finished_checkpoint is not None
    progress = run.progress()
    for left in range(READS - 1, -1, -1):
        try:
            check(spark, root, place, run.finished_checkpoint)
            break
        except (absflow.AbsflowError, PySparkException, Py4JJavaError):
            if not left:
                raise
    print(f"checkpoint {run.finished_checkpoint} is right", progress)
    spark.stop()


def ended(spark: SparkSession, root: Path, place: str, starts: int) -> absflow.Run:
    """The job at its end, by one of so many starts; what the others failed with is printed."""
    while True:
        job = chain(spark, root, f"{place}/sink")
        add_outside(job)
        try:
            run = job.start()
            assert run.await_termination(timeout=300)
            return run
        except (absflow.AbsflowError, PySparkException, Py4JJavaError):
            starts -= 1
            if not starts:
                raise
            print("failed:", traceback.format_exc(), flush=True)


def check(spark: SparkSession, root: Path, place: str, checkpoint: int) -> None:
    """The sink, and the state at a checkpoint, are those of all files."""
    due = expected(root, len(list((root / "a").glob("*.parquet"))))
    sink = spark.read.format("delta").load(f"{place}/sink").toPandas()
    assert_same_rows(sink, due["sink"], ["id"])
    history = absflow.history(spark, f"{place}/job")
    for stage, key in (("left", "k"), ("tally", "g")):
        state = history.state(stage, checkpoint).toPandas()
        assert_same_rows(state, due[stage], [key])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], dict(word.split("=", 1) for word in sys.argv[3:]))
