"""One stage that reads every kind of source, each in small batches, and keeps a count per source.

Rows are ``source, id, v``; the ids of a source are 0, 1, 2, ... and ``v`` is made from ``id``, so a
number of rows per source gives all that sink and state must hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from diamond import STATE, fold
from kafka_topics import create, decoded, send
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming import DataStreamReader

import absflow

# A source that ends has so many parts of so many rows, and gives one part to a batch; but two if
# they come later.
PARTS = 9
ROWS = 6
TOPIC = "every-source"
GENERATED = ("rate", "rate-micro-batch")
ENDING = ("files", "kafka", "delta", "delta-snapshot", "python")
SOURCES = (*ENDING, *GENERATED)


class PartsReader(SimpleDataSourceStreamReader):
    """Reads the numbers below :data:`PARTS` times :data:`ROWS`, a part at a time."""

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
        end = min(start["rows"] + ROWS, PARTS * ROWS)
        return self.readBetweenOffsets(start, {"rows": end}), {"rows": end}

    def readBetweenOffsets(
        self, start: dict[str, int], end: dict[str, int]
    ) -> Iterator[tuple[int]]:
        return iter([(number,) for number in range(start["rows"], end["rows"])])

    def commit(self, end: dict[str, int]) -> None:
        """It has nothing to tidy up."""


class Parts(DataSource):
    """A Python data source, as a user would write one."""

    @classmethod
    def name(cls) -> str:
        return "parts"

    def schema(self) -> str:
        return "id long"

    def simpleStreamReader(self, schema: object) -> PartsReader:
        return PartsReader()


def part(number: int) -> pa.Table:
    """The ids of one part."""
    return pa.table({"id": np.arange(number * ROWS, (number + 1) * ROWS)})


def prepare(spark: SparkSession, servers: str, root: Path) -> None:
    """What is there before the job starts: all of each source, but for one part of ``delta``."""
    (root / "files").mkdir()
    for number in range(PARTS):
        pq.write_table(part(number), root / "files" / f"{number:02d}.parquet")
        # As one commit has several files, so has the initial snapshot of a table.
        write_deltalake(root / "delta-snapshot", part(number), mode="append")
    write_deltalake(root / "delta", part(0))
    create(spark, servers, TOPIC)
    send(spark, servers, TOPIC, first=0, last=PARTS * ROWS)
    spark.dataSource.register(Parts)


def commit_the_rest(root: Path) -> None:
    """The other parts of ``delta``, a commit for each."""
    for number in range(1, PARTS):
        write_deltalake(root / "delta", part(number), mode="append")


def frames(spark: SparkSession, servers: str, root: Path) -> dict[str, DataFrame]:
    """Every source as its users read it, in batches as small as it can give."""

    def read(name: str, **options: object) -> DataStreamReader:
        return spark.readStream.format(name).options(**options)

    topic = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC, "startingOffsets": "earliest"}
    files = read("parquet", maxFilesPerTrigger=1).schema("id long")
    tables = {
        name: read("delta", maxFilesPerTrigger=files_each).load(str(root / name))
        for name, files_each in (("delta", 2), ("delta-snapshot", 1))
    }
    return {
        "files": files.load(str(root / "files")),
        "kafka": decoded(read("kafka", maxOffsetsPerTrigger=ROWS, **topic).load()),
        **tables,
        "python": read("parts").load(),
        "rate": read("rate", rowsPerSecond=ROWS).load(),
        "rate-micro-batch": read("rate-micro-batch", rowsPerBatch=ROWS, numPartitions=1).load(),
    }


def tally(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Count, and emit every row."""
    return absflow.Result(output=rows.select(["source", "id"]), state=fold(rows, state, context))


def job_of(spark: SparkSession, servers: str, root: Path, *, bounded: bool = False) -> absflow.Job:
    """The job: all sources, one stage, one sink; ``bounded``: those that end are known to."""
    job = absflow.Job("every-source", spark)
    made = frames(spark, servers, root)
    nodes = []
    for name in SOURCES:
        number = F.col("value" if name in GENERATED else "id").alias("id")
        frame = made[name].select(F.lit(name).alias("source"), number)
        frame = frame.withColumn("v", F.col("id") % 91 - 40)
        nodes.append(job.source(name, frame, bounded=bounded and name in ENDING))
    stage = job.stage(
        "tally",
        nodes,
        key="source",
        state=STATE,
        output="source string, id long",
        process=dict.fromkeys(SOURCES, tally),
    )
    job.sink("out", stage, absflow.DeltaSink(str(root / "sink")))
    return job


def _of_delta(position: Mapping[str, Any]) -> int:
    """Rows before a position in a table; its first version is its initial snapshot if it says so.

    A version is one part, and a snapshot one part per version.
    """
    if position["isStartingVersion"]:
        return (int(position["index"]) + 1) * ROWS
    assert position["index"] == -1
    return int(position["reservoirVersion"]) * ROWS


_ROWS_BEFORE: Mapping[str, Callable[[Any], int]] = {
    "files": lambda position: (position["logOffset"] + 1) * ROWS,
    "kafka": lambda position: sum(position[TOPIC].values()),
    "delta": _of_delta,
    "delta-snapshot": _of_delta,
    "python": lambda position: position["rows"],
    "rate": lambda position: position * ROWS,
    "rate-micro-batch": lambda position: position["offset"],
}


def rows_before(source: str, position: str) -> int:
    """How many rows of a source stand before a position of it, as Spark writes that."""
    return 0 if position == "-" else _ROWS_BEFORE[source](json.loads(position))


def expected_state(rows: Mapping[str, int]) -> pd.DataFrame:
    """State of the job over the first so many rows of each source."""
    ids = {name: np.arange(count) for name, count in rows.items()}
    return pd.DataFrame(
        [
            {"source": name, "n": len(i), "total": int((i % 91 - 40).sum()), "newest": len(i) - 1}
            for name, i in ids.items()
        ]
    )


def expected_sink(rows: Mapping[str, int]) -> dict[str, list[int]]:
    """The ids of each source in the sink, sorted."""
    return {name: list(range(count)) for name, count in rows.items()}
