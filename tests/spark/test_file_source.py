"""A file source's log, cut at an offset, is one that Spark goes on with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from seeding import read_all, seeded

from absflow.spark.sources.file_log import FileEntry, build, parse

pytestmark = pytest.mark.spark

FILES = 9
INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"


@pytest.fixture
def interval(spark: SparkSession) -> Iterator[int]:
    """Compaction at every third offset."""
    spark.conf.set(INTERVAL, "3")
    yield 3
    spark.conf.unset(INTERVAL)


def add_file(spark: SparkSession, folder: Path, number: int) -> None:
    """A file with the number as its only row."""
    aside = folder.parent / f"aside-{number}"
    spark.range(number, number + 1, numPartitions=1).write.parquet(str(aside))
    (part,) = aside.glob("part-*.parquet")
    folder.mkdir(exist_ok=True)
    part.rename(folder / f"{number}.parquet")


def source(spark: SparkSession, folder: Path) -> DataFrame:
    """One file for each batch."""
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(folder))


def log_files(checkpoint: Path) -> dict[str, str]:
    """The log of the first source."""
    folder = checkpoint / "sources" / "0"
    return {p.name: p.read_text() for p in folder.iterdir() if not p.name.startswith(".")}


def number_of(path: str) -> int:
    """The number of a file of :func:`add_file`."""
    match = re.search(r"(\d+)\.parquet$", path)
    assert match
    return int(match[1])


def test_a_built_log_is_the_one_that_spark_reads(spark: SparkSession) -> None:
    """For many lengths and intervals: the files are just those that Spark takes for the valid ones.

    Also where it comes to another interval than the conf's, by what it finds.
    """
    jvm: Any = spark.sparkContext._jvm
    theirs = jvm.org.apache.spark.sql.execution.streaming.runtime.CompactibleFileStreamLog
    entries = [FileEntry(f"file:/{number}", 0, number) for number in range(34)]
    for conf in (1, 2, 3, 5, 10):
        for upto in range(34):
            names = build(entries, upto, conf)
            compact = [int(name.split(".")[0]) for name in names if "." in name]
            used = theirs.deriveCompactInterval(conf, compact[0]) if compact else conf
            valid = theirs.getAllValidBatches(upto, used)
            ids = [valid.apply(i) for i in range(valid.size())]
            due = {f"{b}.compact" if theirs.isCompactionBatch(b, used) else str(b) for b in ids}
            assert set(names) == due, (conf, upto)


@pytest.mark.parametrize("upto", [0, 2, 4, 7])
def test_a_query_goes_on_from_a_cut_log(
    spark: SparkSession, tmp_path: Path, interval: int, upto: int
) -> None:
    """Each file behind the cut comes once and in its own batch, and the log compacts on."""
    folder = tmp_path / "files"
    for number in range(FILES):
        add_file(spark, folder, number)
    frame = source(spark, folder)
    batches = read_all(frame, tmp_path / "first")
    order = [row for (row,) in batches]
    assert sorted(order) == list(range(FILES))
    before = log_files(tmp_path / "first")
    entries = [entry for text in before.values() for entry in parse(text)]
    files = build(entries, upto, interval)
    assert files.items() <= before.items()

    second = tmp_path / "second"
    frame = seeded(frame, second, f'{{"logOffset":{upto}}}', files)
    assert read_all(frame, second) == [[row] for row in order[upto + 1 :]]
    for number in range(FILES, 2 * FILES):
        add_file(spark, folder, number)
    later = read_all(frame, second)
    assert sorted(later) == [[row] for row in range(FILES, 2 * FILES)]
    after = log_files(second)
    assert max(int(n.split(".")[0]) for n in after if "compact" in n) > max(upto, FILES)
    kept = {entry: None for text in after.values() for entry in parse(text)}
    read = sorted(kept, key=lambda entry: entry.batch_id)
    assert [number_of(entry.path) for entry in read] == order + [row for (row,) in later]
