"""Keys of every type, nested state, deleted keys and pandas frames, through real Spark and Delta.

::

    rows --> [by_key] ==channel==> [by_time, in pandas] --> Delta

The session's time zone is New York's, which must show nowhere.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from reading import completed, files_read, stage_of
from session import settings

import absflow
from absflow.columnar.digest import set_digests
from absflow.protocol.checkpoints import SetDigest
from absflow.spark.worker.set_digests import read_digests

pytestmark = pytest.mark.spark

KEY = {
    "text": ("string", ["a", "", "ä", None]),
    "small": ("smallint", [-1, 0, 32_767, None]),
    "number": ("int", [-(2**31), 7, None]),
    "big": ("bigint", [2**53 + 1, -(2**63), None]),
    "day": ("date", [dt.date(1969, 12, 31), dt.date(2024, 2, 29), None]),
    "time": (
        "timestamp",
        [
            dt.datetime(2024, 3, 10, 7, 0, tzinfo=dt.timezone.utc),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.timezone.utc),
            None,
        ],
    ),
    "flag": ("boolean", [True, False, None]),
    "amount": ("decimal(20,3)", [Decimal("-0.001"), Decimal("12345678901234567.891"), None]),
    "bytes": ("binary", [b"", b"\x00\xff", None]),
}
KEY_DDL = ", ".join(f"{name} {type_}" for name, (type_, _) in KEY.items())
ROWS = f"{KEY_DDL}, v bigint"
SEEN = pa.struct([("at", pa.list_(pa.int64())), ("by", pa.map_(pa.string(), pa.int64()))])
STATE = "n bigint, total bigint, seen struct<at: array<bigint>, by: map<string, bigint>>"
FILES, PER_FILE = 4, 400


def write_rows(spark: SparkSession, folder: Path) -> None:
    """Rows with random values in every key column, so that many keys come up several times."""
    random = np.random.default_rng(11)
    schema = spark.createDataFrame([], ROWS).toArrow().schema
    for number in range(FILES):
        picked = {
            name: [values[i] for i in random.integers(0, len(values), PER_FILE)]
            for name, (_, values) in KEY.items()
        }
        # Half of the columns are the same in most rows, else hardly any key came twice.
        for name in ("small", "number", "big", "day", "amount"):
            usual = KEY[name][1][-1]
            picked[name] = [v if random.random() < 0.05 else usual for v in picked[name]]
        table = pa.table({**picked, "v": random.integers(-9, 9, PER_FILE)}, schema=schema)
        pq.write_table(table, folder / f"{number}.parquet")


def fold(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Count and sum per key; a key whose sum is divisible by 3 is forgotten."""
    count = state.num_rows
    n = np.where(context.is_new, 0, state["n"].fill_null(0).to_numpy())
    n = n + np.bincount(context.key_of_row, minlength=count)
    total = np.where(context.is_new, 0, state["total"].fill_null(0).to_numpy())
    np.add.at(total, context.key_of_row, rows["v"].to_numpy())
    keys = [state[name] for name in KEY]
    seen = pa.array([{"at": [int(x)], "by": [("n", int(x))]} for x in n], type=SEEN)
    new = pa.table([*keys, n, total, seen], names=[*KEY, "n", "total", "seen"])
    return absflow.Result(output=rows, state=new, delete=total % 3 == 0)


def in_pandas(rows: pd.DataFrame, state: pd.DataFrame, context: absflow.Context) -> absflow.Result:
    """The largest `big` and the count per time, with plain pandas."""
    rows = rows.assign(_code=context.key_of_row)
    new = rows.groupby("_code").agg(n=("v", "size"), largest=("big", "max"))
    n = state["n"].fillna(0) + new["n"]
    largest = pd.concat([state["largest"], new["largest"]], axis=1).max(axis=1).astype("Int64")
    state = state.assign(n=n, largest=largest)
    return absflow.Result(output=state[["time", "n"]], state=state)


def expected_state(files: list[Path]) -> list[dict[str, object]]:
    """What :func:`fold` keeps after these files, one batch each, key by key in plain Python."""
    state: dict[tuple[object, ...], list[int]] = {}
    for path in files:
        touched = set()
        for *key, v in zip(*pq.read_table(path).to_pydict().values(), strict=True):
            touched.add(tuple(key))
            kept = state.setdefault(tuple(key), [0, 0])
            kept[0] += 1
            kept[1] += v
        for key in touched:
            if state[key][1] % 3 == 0:
                del state[key]
    return [
        {**dict(zip(KEY, key, strict=True)), "n": n, "total": total, "seen": seen(n)}
        for key, (n, total) in state.items()
    ]


def seen(n: int) -> dict[str, object]:
    """The nested column."""
    return {"at": [n], "by": [("n", n)]}


def assert_same(actual: DataFrame, rows: pa.Table) -> None:
    """Equal as bags of rows; a map cannot be compared, so its text is."""
    frames = [actual, actual.sparkSession.createDataFrame(rows)]
    if "seen" in actual.columns:
        frames = [f.withColumn("seen", F.to_json("seen")) for f in frames]
    assert_df_equality(*frames, ignore_row_order=True, ignore_nullable=True)


@pytest.fixture(scope="module")
def root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The finished job."""
    root = tmp_path_factory.mktemp("types")
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    conf = {"storage.path": str(root / "job"), "checkpoint.interval": "1s", "key-groups": "4"}
    try:
        (root / "rows").mkdir()
        write_rows(spark, root / "rows")
        with settings(spark, conf):
            job = absflow.Job("types", spark)
            reader = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
            rows = job.source("rows", reader.parquet(str(root / "rows")), bounded=True)
            by_key = job.stage(
                "by_key",
                rows,
                key=list(KEY),
                state=STATE,
                output=ROWS,
                process=fold,
            )
            by_time = job.stage(
                "by_time",
                by_key,
                key="time",
                state="n bigint, largest bigint",
                output="time timestamp, n bigint",
                process=in_pandas,
                form="pandas",
            )
            job.sink("copy", by_key, absflow.DeltaSink(str(root / "copy")))
            job.sink("counts", by_time, absflow.DeltaSink(str(root / "counts"), ["time"]))
            job.start().await_termination()
        yield root
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_every_checkpoint_holds_the_live_keys(spark: SparkSession, root: Path) -> None:
    """Nine key columns with nulls in each, nested state, and keys that go and come back."""
    files = sorted((root / "rows").glob("*.parquet"))
    history = absflow.history(spark, str(root / "job"))
    rows = completed(spark, root / "job")
    for row in rows:
        state = history.state("by_key", row["checkpoint_id"])
        due = expected_state(files[: files_read(row, "by_key", "rows")])
        assert_same(state, pa.Table.from_pylist(due, schema=state.toArrow().schema))
    last = stage_of(rows[-1], "by_key")
    ever = spark.read.parquet(str(root / "rows")).select(*KEY).distinct().count()
    assert 0 < last["keys_total"] == len(due) < ever


def test_rows_of_every_type_pass_through_channel_and_sink(spark: SparkSession, root: Path) -> None:
    """Unchanged, whatever the session's time zone."""
    copy = spark.read.format("delta").load(str(root / "copy"))
    assert_df_equality(copy, spark.read.parquet(str(root / "rows")), ignore_row_order=True)


def test_pandas_frames_keep_what_arrow_tables_keep(spark: SparkSession, root: Path) -> None:
    """Counts per time, and the largest of integers that no float can hold, nulls among them."""
    source = spark.read.parquet(str(root / "rows"))
    due = source.groupBy("time").agg(F.count("v").alias("n"), F.max("big").alias("largest"))
    state = absflow.history(spark, str(root / "job")).state("by_time")
    assert_df_equality(state, due, ignore_row_order=True, ignore_nullable=True)
    assert state.where("largest = 9007199254740993").count() > 0
    counts = spark.read.format("delta").load(str(root / "counts")).groupBy("time")
    assert_df_equality(
        counts.agg(F.max("n").alias("n")),
        due.drop("largest"),
        ignore_row_order=True,
        ignore_nullable=True,
    )


def test_a9_digests_of_every_type_come_out_equal_both_ways(spark: SparkSession, root: Path) -> None:
    """What the workers hashed as they wrote, Spark and Arrow hash as they read."""
    rows = completed(spark, root / "job")
    for stage in ("by_key", "by_time"):
        due = {s["set_id"]: SetDigest(**s) for row in rows for s in stage_of(row, stage)["sets"]}
        assert due.keys() == {n for row in rows for n in stage_of(row, stage)["lineage"]}
        path = str(root / "job" / "state" / stage)
        seen = read_digests(spark.read.format("delta").load(path))
        arrow = set_digests(DeltaTable(path).to_pyarrow_table())
        assert {n: seen[n] for n in due} == due
        assert {each.set_id: each for each in arrow if each.set_id in due} == due
