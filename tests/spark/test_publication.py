"""On-checkpoint sinks: rows are seen with the checkpoint that holds them, and once."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from chain import chain, conf, expected
from diamond import write_source
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, files_read, rows_of
from session import settings

import absflow
from absflow.spark.control.publisher import Publisher
from absflow.storage.delta.log import log_file, parse_commit

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FILES = 6


def run(spark: SparkSession, root: Path, **more: str) -> None:
    # On a busy machine a checkpoint would overtake, and the sink rightly lack what is in flight.
    with settings(spark, conf(root, checkpoint__aligned_timeout="1h", **more)):
        chain(spark, root, mode="on-checkpoint").start().await_termination(timeout=200)


def publications(root: Path) -> dict[int, int]:
    """The version of the sink's table by the checkpoint that it published."""
    log = sorted((root / "sink" / "_delta_log").glob("*.json"))
    commits = (parse_commit(int(path.stem), path.read_text()) for path in log)
    return {c.note["published"]: c.version for c in commits if "epoch" not in c.note and c.note}


def test_every_version_of_the_sink_is_a_checkpoint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the one whose publication a failure has left to the next start, and after a restore."""
    write_source(tmp_path / "a", files=FILES, rows=150, seed=8)
    write, failed, ever = Publisher._write, [], True

    def failing(self: Publisher, sink: str, publication: object, lanes: object) -> None:
        if publication.checkpoint_id > 1 and (ever or len(failed) < 2):
            failed.append(publication.checkpoint_id)
            raise OSError("no space left")
        write(self, sink, publication, lanes)

    monkeypatch.setattr(Publisher, "_write", failing)
    words = "has stopped, but checkpoint 2 could not be published to sink 'out': no space left"
    with pytest.raises(absflow.JobFailedError, match=words):
        run(spark, tmp_path, restart__attempts="1")
    assert {*failed} == {2}
    assert max(publications(tmp_path)) == 1
    assert max(row["checkpoint_id"] for row in completed(spark, tmp_path / "job")) > 1
    ever, failed[:] = False, []
    run(spark, tmp_path)  # it fails twice more, and is tried again
    assert failed == [2, 2]
    check(spark, tmp_path)
    rows = completed(spark, tmp_path / "job")
    before = max(publications(tmp_path).values())
    run(spark, tmp_path, restore__from=str(rows[0]["checkpoint_id"]))
    # What came after that checkpoint has gone from the table before it came again.
    assert_same_rows(
        version_of_sink(spark, tmp_path, before + 1),
        expected(tmp_path, files_read(rows[0], "left", "a"))["sink"],
        ["id"],
    )
    check(spark, tmp_path)


def version_of_sink(spark: SparkSession, root: Path, version: int) -> pd.DataFrame:
    table = spark.read.format("delta").option("versionAsOf", version)
    return table.load(str(root / "sink")).toPandas()


def check(spark: SparkSession, root: Path) -> None:
    """Each version that published a checkpoint holds its rows, and the newest holds them all."""
    by_checkpoint = publications(root)
    rows = {row["checkpoint_id"]: row for row in completed(spark, root / "job")}
    assert by_checkpoint.keys() == rows.keys()
    for checkpoint_id, version in by_checkpoint.items():
        seen = version_of_sink(spark, root, version)
        due = expected(root, files_read(rows[checkpoint_id], "left", "a"))["sink"]
        assert_same_rows(seen, due, ["id"])
    newest = rows_of(root / "sink").to_pandas()
    assert_same_rows(newest, expected(root, FILES)["sink"], ["id"])
    assert not Path(log_file(str(root / "sink"), max(by_checkpoint.values()) + 1)).exists()
