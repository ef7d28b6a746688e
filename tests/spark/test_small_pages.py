"""A job whose pages have 1 KiB: its rows and its state are hundreds of pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from reading import assert_same_rows, rows_of
from session import settings

import absflow
from absflow.spark.stream.pages import PAGE_TYPE, write_pages

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

BODY = 400
KEYS = 800


def write_file(folder: Path, number: int, keys: range) -> pd.DataFrame:
    """A file of one row for each key, with bodies of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    bodies = [f"{number}-{key}-".ljust(BODY, "x") for key in keys]
    rows = pd.DataFrame({"k": list(keys), "body": bodies})
    pq.write_table(pa.Table.from_pandas(rows), folder / f"{number:04d}.parquet")
    return rows


def newest(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Keep the key's newest body, and emit every row."""
    last = np.empty(state.num_rows, dtype=np.int64)
    last[context.key_of_row] = np.arange(rows.num_rows)
    bodies = rows["body"].combine_chunks().take(pa.array(last))
    place = state.schema.get_field_index("body")
    lengths = pc.utf8_length(rows["body"]).cast(pa.int64())
    return absflow.Result(
        output=pa.table({"k": rows["k"], "body": rows["body"], "length": lengths}),
        state=state.set_column(place, "body", bodies),
    )


def job(spark: SparkSession, root: Path) -> absflow.Job:
    """A source to two stages, with a channel or a direct edge between, to a sink."""
    made = absflow.Job("wide", spark)
    frame = spark.readStream.schema("k long, body string").option("maxFilesPerTrigger", 1)
    rows = made.source("rows", frame.parquet(str(root / "rows")), bounded=True)
    output = "k long, body string, length long"
    given = {"key": "k", "state": "body string", "output": output, "process": newest}
    first = made.stage("first", rows, **given)
    made.sink("out", made.stage("second", first, **given), absflow.DeltaSink(str(root / "sink")))
    return made


def run(spark: SparkSession, root: Path, **more: str) -> int:
    """Run the job to its end; its last checkpoint."""
    conf = {
        "storage.path": str(root / "job"),
        "checkpoint.interval": "1h",
        "page.max-bytes": "1KiB",
        "state.max-inline": "1KiB",
    }
    given = {name.replace("__", ".").replace("_", "-"): value for name, value in more.items()}
    with settings(spark, conf | given):
        started = job(spark, root).start()
        assert started.await_termination(timeout=500)
    assert started.finished_checkpoint is not None
    return started.finished_checkpoint


@pytest.mark.soak
@pytest.mark.parametrize("edges", ["direct", "channel"])
def test_pages_are_cut_by_bytes_through_snapshot_restore_and_rescale(
    spark: SparkSession, tmp_path: Path, edges: str
) -> None:
    """Rows, state, sink and restored state are those of whole pages."""
    first = write_file(tmp_path / "rows", 0, range(KEYS))
    checkpoint = run(spark, tmp_path, edges=edges, key_groups="1")
    history = absflow.history(spark, str(tmp_path / "job"))
    for stage in ("first", "second"):
        assert_same_rows(history.state(stage, checkpoint).toPandas(), first, ["k"])

    second = write_file(tmp_path / "rows", 1, range(KEYS - 200, KEYS + 300))
    more = {"restore.from": str(checkpoint), "key-groups": "3"}
    checkpoint = run(spark, tmp_path, edges=edges, **more)
    state = pd.concat([first[first["k"] < KEYS - 200], second])
    history = absflow.history(spark, str(tmp_path / "job"))
    for stage in ("first", "second"):
        assert_same_rows(history.state(stage, checkpoint).toPandas(), state, ["k"])
    sink = rows_of(tmp_path / "sink").to_pandas()
    assert_same_rows(sink, pd.concat([first, second]), ["k", "body"])


def test_few_pages_are_read_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Row groups of pages are short, however well the pages compress: Spark unpacks one at once."""
    empty = spark.createDataFrame([], PAGE_TYPE)
    pages = spark.range(0, 1000, 1, 1).select(F.col("id").cast("int").alias("key_group"))
    frame = empty.unionByName(pages, allowMissingColumns=True)
    for page_bytes, rows in ((8 << 20, 8), (1 << 20, 64), (64 << 10, 1000)):
        directory = tmp_path / str(page_bytes)
        write_pages(frame, str(directory), "overwrite", page_bytes)
        groups = [pq.read_metadata(path) for path in directory.glob("*.parquet")]
        sizes = [g.row_group(i).num_rows for g in groups for i in range(g.num_row_groups)]
        assert (sum(sizes), max(sizes)) == (1000, rows)
