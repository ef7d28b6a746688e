"""A channel's file is damaged before the stage behind it has read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from chain import check, conf, wait
from damaging import flip_in_values
from deltalake import DeltaTable
from diamond import OUTPUT, ROWS, STATE, source_files, to_group
from failing import FailsWhile
from pyspark.sql import SparkSession
from reading import completed
from session import settings

import absflow

pytestmark = [pytest.mark.spark]

FILES = 3


def chain_of(spark: SparkSession, root: Path, *, bounded: bool) -> absflow.Job:
    """The chain job; its second stage fails while ROOT/fail is there."""
    job = absflow.Job("chain", spark)
    rows = spark.readStream.schema(ROWS).parquet(str(root / "a"))
    left = job.stage(
        "left",
        job.source("a", rows, bounded=bounded),
        key="k",
        state=STATE,
        output=OUTPUT,
        process=to_group,
    )
    tally = job.stage(
        "tally", left, key="g", state=STATE, output=OUTPUT, process=FailsWhile(root / "fail")
    )
    job.sink("out", tally, absflow.DeltaSink(str(root / "sink")))
    return job


def test_a14_a_running_job_that_reads_a_damaged_channel_says_so_and_can_be_restored(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It ends with the file and what helps; the last checkpoint gives the exact result."""
    root, flag = tmp_path, tmp_path / "fail"
    files = source_files(root / "a", rows=100, seed=7)
    next(files)
    with settings(spark, conf(root, restart__attempts="0")):
        run = chain_of(spark, root, bounded=False).start()
        wait(lambda: run.progress().completed >= 2, run)
        flag.touch()
        for _ in range(FILES - 1):
            next(files)
        with pytest.raises(absflow.JobFailedError, match="still there"):
            run.await_termination()
        flag.unlink()
        newest = completed(spark, root / "job")[-1]["checkpoint_id"]
        channel = DeltaTable(str(root / "job" / "channels" / "left" / "attempt=1"))
        # Not all files that are there: the driver's end may have cut off one that was written.
        committed = [Path(uri.removeprefix("file://")) for uri in channel.file_uris()]
        unread = [p for p in committed if int(p.parent.name.removeprefix("_epoch=")) > newest]
        assert unread
        for path in unread:
            flip_in_values(path, "id")
        said = (
            r"(?s)file 'channels/left/attempt=1/_epoch=\d+/\S+' under .* is damaged.* "
            rf"No checkpoint needs it; .*absflow restore --from {newest} "
        )
        with pytest.raises(absflow.JobFailedError, match=said) as failed:
            chain_of(spark, root, bounded=False).start().await_termination()
        assert "\tat " not in str(failed.value)
    with settings(spark, conf(root, restore__from=str(newest))):
        run = chain_of(spark, root, bounded=True).start()
        assert run.await_termination(timeout=240)
    assert run.finished_checkpoint is not None
    check(spark, root, run.finished_checkpoint, FILES)
