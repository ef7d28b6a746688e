"""Files that become visible with checkpoints, as a reader without absflow finds them."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from chain import chain, conf, expected
from diamond import source_files
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, files_read
from session import settings

import absflow
from absflow.sinks import SinkPublication

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

READERS = {
    "parquet": pd.read_parquet,
    "json": lambda file: pd.read_json(file, lines=True),
    "csv": pd.read_csv,
}


def sinks(root: Path) -> dict[str, absflow.FileSink]:
    made = {name: absflow.FileSink(str(root / name), name) for name in READERS}
    return {**made, "two": absflow.FileSink(str(root / "two"), files=2)}


def job(spark: SparkSession, root: Path) -> absflow.Job:
    made = chain(spark, root)
    for name, sink in sinks(root).items():
        made.sink(name, "tally", sink)
    return made


def run(spark: SparkSession, root: Path, restore: int | None = None) -> int:
    """To the end of its files; its last checkpoint."""
    more = {} if restore is None else {"restore__from": str(restore)}
    with settings(spark, conf(root, **more)):
        assert job(spark, root).start().await_termination(timeout=300)
    return last(spark, root)


def last(spark: SparkSession, root: Path) -> int:
    return int(completed(spark, root / "job")[-1]["checkpoint_id"])


def files_of(folder: Path) -> list[Path]:
    """What the manifests name, checkpoint by checkpoint."""
    lines = [
        line
        for manifest in sorted((folder / "manifests").iterdir())
        for line in manifest.read_text().splitlines()
    ]
    return [Path(line.removeprefix("file:")) for line in lines]


def check(root: Path, files: int) -> None:
    """A reader sees the rows of so many files; nothing is left that no manifest names."""
    due = expected(root, files)["sink"]
    for name, sink in sinks(root).items():
        named = files_of(root / name)
        found = [READERS[sink.format](io.BytesIO(path.read_bytes())) for path in named]
        assert_same_rows(pd.concat(found)[["id", "g", "v"]], due, ["id"])
        withdrawn = root / name / "withdrawn"
        kept = [*withdrawn.iterdir()] if withdrawn.exists() else []
        lines = [line for text in kept for line in text.read_text().splitlines()]
        there = {path for path in (root / name / "files").rglob("*") if path.is_file()}
        assert there == {*named, *(Path(line.removeprefix("file:")) for line in lines)}


def test_rows_of_checkpoints_in_files(spark: SparkSession, tmp_path: Path) -> None:
    """Over restarts, a restore to an older checkpoint, and one back to what was left."""
    source = source_files(tmp_path / "a", rows=60, seed=3)
    read = 0
    for _ in range(2):
        next(source)
        read += 1
    run(spark, tmp_path)
    check(tmp_path, read)
    older = completed(spark, tmp_path / "job")[-1]
    next(source)
    read += 1
    left = run(spark, tmp_path)
    check(tmp_path, read)
    newest = completed(spark, tmp_path / "job")[-1]

    with settings(spark, conf(tmp_path, restore__from=str(older["checkpoint_id"]))):
        planned = job(spark, tmp_path).plan_restore()
    assert planned.problems == ()
    for name in sinks(tmp_path):
        assert f"checkpoint {left} (attempt 1)" in planned.sinks[name].undone
        assert planned.sinks[name].published == older["checkpoint_id"]
    assert files_read(older, "left", "a") == 2
    run(spark, tmp_path, older["checkpoint_id"])
    check(tmp_path, read)
    withdrawn = {path.name for path in (tmp_path / "csv" / "withdrawn").iterdir()}
    assert any(f"{left:010d}-attempt1-csv" in name for name in withdrawn)

    run(spark, tmp_path, newest["checkpoint_id"])
    check(tmp_path, read)
    withdrawn = {path.name for path in (tmp_path / "csv" / "withdrawn").iterdir()}
    assert not any("attempt1" in name for name in withdrawn)
    assert any("attempt2" in name for name in withdrawn)

    view = absflow.history(spark, str(tmp_path / "job")).view(left)
    with pytest.raises(absflow.NotFoundError, match="its manifests up to checkpoint"):
        view.sink("csv")


def test_values_of_every_kind(spark: SparkSession, tmp_path: Path) -> None:
    """JSON as Spark writes it; nulls, quotes, nested ones."""
    rows = pa.table(
        {
            "a.b": pa.array([1, None], pa.int64()),
            "text": ['of "two"\n lines, ü', None],
            "nested": pa.array([{"x": [1, 2]}, None], pa.struct([("x", pa.list_(pa.int64()))])),
            "raw": pa.array([b"\x00\xff", None]),
        }
    )
    frame = spark.createDataFrame(rows)
    for name, found in (("json", spark.read.json), ("parquet", spark.read.parquet)):
        sink = absflow.FileSink(str(tmp_path / name), name)
        sink.check("out", rows.schema)
        sink.prepare(spark, rows.schema)
        for _ in range(2):
            sink.write(frame, published(1))
        sink.write(frame.limit(0), published(2))
        manifests = sorted((tmp_path / name / "manifests").iterdir())
        assert [len(text.read_text().splitlines()) for text in manifests] == [1, 0]
        (path,) = files_of(tmp_path / name)
        seen = found(str(path)).collect()
        assert [(row["a.b"], row["text"]) for row in seen] == [
            (1, 'of "two"\n lines, ü'),
            (None, None),
        ]
        assert seen[0]["nested"]["x"] == [1, 2]


def published(checkpoint_id: int) -> SinkPublication:
    return SinkPublication("j", "out", "s", 1, checkpoint_id, checkpoint_id - 1, 1, "0b5c")


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        (absflow.FileSink("x", "orc"), "format is 'orc', must be one of"),
        (absflow.FileSink("x", files=0), "files is 0, must be 1 at least"),
        (absflow.FileSink("x", "csv"), "column 'many' is list<.*>, which CSV has no form of"),
    ],
)
def test_what_no_file_takes(sink: absflow.FileSink, words: str) -> None:
    with pytest.raises(absflow.GraphError, match=words):
        sink.check("out", pa.schema([("many", pa.list_(pa.int64()))]))


def test_a_folder_that_is_a_table(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(absflow.GraphError, match="is a Delta table; use absflow"):
        absflow.FileSink(str(tmp_path)).prepare(spark, pa.schema([]))
