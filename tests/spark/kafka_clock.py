"""Events over Kafka with a known answer: three partitions, one lagging, one falling silent.

What the watermark is at a checkpoint follows from its positions, and what is late from the rows;
both are computed here as a batch job would.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from reading import assert_same_rows, rows_of, stage_of
from windows import WINDOW

import absflow

TOPIC, DELAY_S, ROWS = "clock", 3_600, 900
START_S = 1_700_000_000


def events(part: int) -> pd.DataFrame:
    """A part of the rows in the order in which they are sent, by partition.

    Partition 1 is two hours behind; partition 2 brings rows in the first part only.
    """
    dice = np.random.default_rng(part)
    partition = dice.integers(0, 3 if part == 0 else 2, ROWS)
    at = (
        START_S + part * 14_400 + np.sort(dice.integers(0, 14_400, ROWS)) - 7_200 * (partition == 1)
    )
    far = dice.random(ROWS) < 0.03
    at = np.where(far, at - dice.integers(3_700, 20_000, ROWS), at - dice.integers(0, 600, ROWS))
    return pd.DataFrame(
        {
            "partition": partition,
            "k": dice.integers(0, 9, ROWS),
            "s": at,
            "v": dice.integers(0, 99, ROWS),
        }
    )


def send(spark: SparkSession, servers: str, rows: pd.DataFrame) -> None:
    """Send rows, each partition's in their order."""
    frame = spark.createDataFrame(rows).coalesce(1)
    value = F.to_json(F.struct("k", "s", "v")).alias("value")
    frame = frame.select(F.col("partition").cast("int"), value)
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", servers)
    writer.option("topic", TOPIC).save()


def decoded(frame: DataFrame, *more: str) -> DataFrame:
    """The events in Kafka's rows, with their partitions."""
    value = F.from_json(F.col("value").cast("string"), "k int, s long, v long").alias("e")
    ts = F.timestamp_seconds("e.s").alias("ts")
    return frame.select("topic", "partition", *more, value).select(
        "topic", "partition", *more, "e.k", ts, "e.v"
    )


def position(row: dict[str, Any]) -> dict[str, int]:
    """How far a checkpoint has read each partition."""
    text = dict(stage_of(row, "windows")["positions"])["events"]
    return {} if text == "-" else json.loads(text)[TOPIC]


def source(spark: SparkSession, servers: str) -> DataFrame:
    """The stream of the events, a part of them in each micro-batch."""
    frame = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    frame = frame.option("subscribe", TOPIC).option("startingOffsets", "earliest")
    return decoded(frame.option("maxOffsetsPerTrigger", 200).load())


def sent(spark: SparkSession, servers: str) -> pd.DataFrame:
    """All rows, in the order of their partitions; of each whether it is late."""
    frame = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
    rows = decoded(frame.option("subscribe", TOPIC).load(), "offset").toPandas()
    rows["ts"] = pd.to_datetime(rows["ts"], utc=True)
    rows = rows.sort_values(["partition", "offset"], ignore_index=True)
    newest = rows.groupby("partition")["ts"].transform(lambda ts: ts.cummax().shift())
    rows["late"] = rows["ts"] < newest - pd.Timedelta(seconds=DELAY_S)
    return rows


def watermark(rows: pd.DataFrame, at: dict[str, int]) -> pd.Timestamp | None:
    """What a batch job says of the rows before a position."""
    read = rows[rows["offset"] < rows["partition"].map(lambda p: at.get(str(p), 0))]
    newest = read.groupby("partition")["ts"].max()
    if len(newest) < 3:
        return None
    return newest.min() - pd.Timedelta(seconds=DELAY_S) - pd.Timedelta(microseconds=1)


def check_manifests(every: pd.DataFrame, manifests: list[dict[str, Any]]) -> None:
    """The watermark at each checkpoint is what a batch job says of its positions."""
    for row in manifests:
        due = watermark(every, position(row))
        found = stage_of(row, "windows")["watermark"]
        assert (None if found is None else pd.Timestamp(found)) == due
        behind = stage_of(row, "days")["watermark"]
        assert behind is None or (due is not None and pd.Timestamp(behind) <= due)


def check_rows(root: Path, every: pd.DataFrame, last: dict[str, Any], spark: SparkSession) -> None:
    """Late rows, windows that are over, and those that are open, at the last checkpoint."""
    late = rows_of(root / "job" / "late" / "events").to_pandas()
    late = late.drop_duplicates(["partition", "ts", "k", "v", "_attempt"])
    assert {*late["ts"]} == {*every[every["late"]]["ts"]}
    kept = every[~every["late"]]
    begin = kept["ts"].dt.floor(f"{WINDOW}s")
    whole = kept.assign(w=begin).groupby(["k", "w"])["v"].agg(n="count", total="sum").reset_index()
    border = pd.Timestamp(stage_of(last, "windows")["watermark"])
    over = whole["w"] + pd.Timedelta(seconds=WINDOW) <= border
    found = rows_of(root / "windows").to_pandas()
    assert_same_rows(found[["k", "w", "n", "total"]], whole[over], ["k", "w"])
    state = absflow.history(spark, str(root / "job")).state("windows").toPandas()
    state["w"] = pd.to_datetime(state["w"], utc=True)
    assert_same_rows(state[["k", "w", "n", "total"]], whole[~over], ["k", "w"])
