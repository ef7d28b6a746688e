"""What the benchmarks have in common: a running sum per key, and a session to run it in."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import absflow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_PEERS_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def add(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """A running sum per key."""
    total = np.zeros(state.num_rows, dtype=np.int64)
    np.add.at(total, context.key_of_row, rows["v"].to_numpy())
    total += state["total"].fill_null(0).to_numpy()
    table = pa.table({"k": state["k"], "total": total})
    return absflow.Result(output=table, state=table)


def sums(
    name: str,
    spark: SparkSession,
    frame: DataFrame,
    sink: str,
    on_timer: Callable[[pa.Table, pa.Table, absflow.Context], absflow.Result] | None = None,
) -> absflow.Job:
    """A job that adds up ``v`` by ``k`` in one stage, into a Delta sink."""
    job = absflow.Job(name, spark)
    stage = job.stage(
        "sums",
        job.source("rows", frame),
        key="k",
        state="total long",
        output="k long, total long",
        process=add,
        on_timer=on_timer,
    )
    job.sink("out", stage, absflow.DeltaSink(sink))
    return job


def session(name: str, memory: str = "3g", more: Mapping[str, str] | None = None) -> SparkSession:
    """A session on two cores, as conf/flights.conf has it, and with ``more`` conf."""
    # A benchmark without Spark is not to wait for these.
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # The workers import the process functions.
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    file = Path(__file__).parent.parent / "conf" / "flights.conf"
    # What is said of absflow itself there is the flights job's own.
    conf = dict(re.findall(r"^(spark\.(?!absflow)\S+)\s+(\S+)$", file.read_text(), re.MULTILINE))
    conf |= {"spark.driver.memory": memory, "spark.log.level": "OFF"}
    # Peers do not wait for processes that rename a file of Spark's; absflow has a class of its own.
    conf[_FILES] = _PEERS_FILES
    # As absflow's own tables and sinks have it; so every peer's sink has it, too.
    conf["spark.databricks.delta.properties.defaults.checkpointInterval"] = "100"
    conf |= more or {}
    builder = SparkSession.builder.appName(name)
    for key, value in conf.items():
        builder = builder.config(key, value)
    return configure_spark_with_delta_pip(builder).getOrCreate()


def configure(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Settings of absflow, for the jobs that are declared from now on."""
    for name, value in settings.items():
        spark.conf.set(f"spark.absflow.{name}", value)
