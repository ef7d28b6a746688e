"""A processor whose variable has another schema, or expires now: the plan says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from reading import rows_of
from session import settings

import absflow
from absflow.errors import RestoreError

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(600)]

TTL_MS = 3_600_000


class Totals(StatefulProcessor):
    """The sum of a key, and, if it is one of now, how many rows it is of."""

    def __init__(self, *, now: bool) -> None:
        self.now = now

    def init(self, handle: Any) -> None:
        columns, ttl = ("total bigint, rows int", TTL_MS) if self.now else ("total int", None)
        self.total = handle.getValueState("total", columns, ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        values = [row.v for row in rows]
        total, *counted = self.total.get() or ((0, 0) if self.now else (0,))
        rows_now = [n + len(values) for n in counted]
        self.total.update((total + sum(values), *rows_now))
        yield Row(k=key[0], total=total + sum(values), rows=rows_now[0] if rows_now else None)


def migrated(state: pa.Table) -> pa.Table:
    """One row each, as far as the old state knows, and written now, as far as its time counts."""
    old = state["total"].combine_chunks()
    count = len(old)
    new = pa.StructArray.from_arrays(
        [
            pc.struct_field(old, "total").cast(pa.int64()),
            pa.array([1] * count, pa.int32()),
            pa.array([2**42] * count, pa.int64()),
        ],
        names=["total", "rows", "_updated_ms"],
    )
    return pa.table({"k": state["k"], "total": new})


def start(spark: SparkSession, root: Path, processor: Totals, **more: Any) -> None:
    conf = {"storage.path": str(root / "job"), "key-groups": "2"}
    if more:
        conf["restore.from"] = "latest"
    with settings(spark, conf):
        job = absflow.Job("totals", spark)
        read = spark.readStream.schema("k string, v int").parquet(str(root / "rows"))
        stage = job.stage(
            "totals",
            job.source("rows", read, bounded=True),
            key="k",
            output="k string, total bigint, rows int",
            process=processor,
            form="stateful-processor",
            time_mode="ProcessingTime",
            migrate=more.get("migrate"),
        )
        job.sink("out", stage, absflow.DeltaSink(str(root / "out")))
        assert job.start().await_termination(timeout=400)


def write(root: Path, number: int, **values: int) -> None:
    (root / "rows").mkdir(exist_ok=True)
    table = pa.table({"k": [*values], "v": pa.array(values.values(), pa.int32())})
    pq.write_table(table, root / "rows" / f"{number}.parquet")


def test_a_variable_of_another_schema_and_with_a_ttl_is_migrated(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Refused with both types and the word for it; then by a function of the old state's table."""
    write(tmp_path, 0, a=5, b=7)
    start(spark, tmp_path, Totals(now=False))
    write(tmp_path, 1, a=10)
    words = (
        r"stage 'totals': .*'total' was struct<total: int32>.*"
        r"struct<total: int64, rows: int32, _updated_ms: int64>.*migrate="
    )
    with pytest.raises(RestoreError, match=words):
        start(spark, tmp_path, Totals(now=True), migrate=None)
    start(spark, tmp_path, Totals(now=True), migrate=migrated)
    assert {"k": "a", "total": 15, "rows": 2} in rows_of(tmp_path / "out").to_pylist()
    state = absflow.history(spark, str(tmp_path / "job")).state("totals")
    kept = {row.k: (row.total.total, row.total.rows) for row in state.collect()}
    assert kept == {"a": (15, 2), "b": (7, 1)}
