"""A destination outside Spark in the kill loop: its sinks, which die in the middle of a lane.

The executors' Python imports this module, and there the points are met: :func:`meets` writes a line
into ``CHAOS_PROGRESS`` and kills the whole driver where ``CHAOS_DIE`` says so, or only the Python
worker that it is called in where ``CHAOS_WOUND`` does.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import absflow
from absflow.columnar.publishing import Lane

__all__ = ["LANE_POINTS", "outside_sink", "state_sink", "state_table"]

LANE_POINTS = (
    "before begin of a transaction",
    "in the middle of a transaction",
    "before commit of a transaction",
    "during commit of a transaction",
    "after commit of a transaction",
)
_SOON_S = 0.003
_SMALL = 4000


def meets(name: str) -> None:
    """Note that a lane has come to a point; die there if it is the one, and the time, to do so."""
    progress = Path(os.environ["CHAOS_PROGRESS"])
    file = os.open(progress, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{time.time_ns() // 1_000_000} {name}\n".encode())
    os.close(file)
    count = sum(line.endswith(f" {name}") for line in progress.read_text().splitlines())
    if os.environ.get("CHAOS_DIE") == f"{count} {name}":
        # The driver leads the session; its group has its JVM.
        os.killpg(os.getsid(0), signal.SIGKILL)
        time.sleep(60)
    if os.environ.get("CHAOS_WOUND") == f"{count} {name}":
        os.kill(os.getpid(), signal.SIGKILL)


class _Watched:
    """A lane that notes how far it is."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._written = False

    def marker(self) -> str | None:
        return self._lane.marker()

    def begin(self) -> None:
        meets(LANE_POINTS[0])
        self._lane.begin()
        self._written = False

    def write(self, rows: pa.RecordBatch) -> None:
        half = rows.num_rows // 2
        for part in filter(len, (rows.slice(0, half), rows.slice(half))):
            self._lane.write(part)
            if not self._written:
                self._written = True
                meets(LANE_POINTS[1])

    def commit(self, marker: str) -> None:
        meets(LANE_POINTS[2])
        dies = threading.Timer(_SOON_S, meets, (LANE_POINTS[3],))
        dies.start()
        self._lane.commit(marker)
        dies.join()
        meets(LANE_POINTS[4])

    def clear(self, *, first: bool) -> None:
        self._lane.clear(first=first)

    def close(self) -> None:
        self._lane.close()


class _Kafka(absflow.KafkaSink):
    def open(self, lane: str) -> Lane:
        return _Watched(super().open(lane))


class _Sql(absflow.SqlSink):
    # So that a publication has several transactions, as those of Kafka.
    transaction_bytes = _SMALL

    def open(self, lane: str) -> Lane:
        return _Watched(super().open(lane))


def _spark_kafka(where: str, name: str) -> absflow.Sink:
    """Spark's own sink for Kafka, with which the loop must find rows twice."""

    def write(rows: DataFrame, _: object) -> None:
        values = rows.select(F.col("via").alias("key"), F.to_json(F.struct("*")).alias("value"))
        to = values.write.format("kafka").option("kafka.bootstrap.servers", where)
        to.option("topic", name).save()

    return absflow.ForeachBatchSink(write)


def outside_sink(kind: str, where: str, name: str) -> absflow.Sink:
    """The sink of a kind (kafka, postgres), with two lanes and small transactions; spark-kafka."""
    if kind == "kafka":
        return _Kafka(where, name, key="via", lanes=2, transaction_bytes=_SMALL)
    if kind == "spark-kafka":
        return _spark_kafka(where, name)
    return _Sql(where, name, lanes=2)


def state_sink(kind: str, where: str, name: str) -> absflow.Sink | None:
    """A table of a state beside that place; None if the kind has none."""
    return _Sql(where, state_table(name)) if kind == "postgres" else None


def state_table(name: str) -> str:
    """The name of that table."""
    return f"{name}_state"
