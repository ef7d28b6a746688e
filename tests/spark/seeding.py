"""A query that begins at a recorded position, as a restored stage's does.

Batch 0 reads one file of a second source, and nothing in the place of the real one; then the offset
log is given the recorded position of the real one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame


def read_all(frame: DataFrame, checkpoint: Path) -> list[list[Any]]:
    """Run a query over all that is there; the first column of each new batch, sorted."""
    batches: list[list[Any]] = []

    def take(rows: DataFrame, _: int) -> None:
        batches.append(sorted((row[0] for row in rows.collect()), key=str))

    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    return batches


def seeded(
    frame: DataFrame, checkpoint: Path, position: str, side_files: Mapping[str, str]
) -> DataFrame:
    """Make a checkpoint directory to go on in behind ``position``; the frame to do it with.

    Args:
        frame: the source.
        checkpoint: the directory, not there yet.
        position: the source's line in an offset log.
        side_files: what is to lie in ``sources/0``, text by name.
    """
    spark, given = frame.sparkSession, checkpoint.parent / f"{checkpoint.name}-batch-0"
    nothing, row = str(given / "nothing"), str(given / "row")
    spark.createDataFrame([], frame.schema).write.parquet(nothing)
    for part in Path(nothing).glob("*"):
        part.unlink()
    spark.createDataFrame([[None] * len(frame.columns)], frame.schema).write.parquet(row)
    empty, restore = (spark.readStream.schema(frame.schema).parquet(p) for p in (nothing, row))
    assert read_all(empty.union(restore), checkpoint) == [[None]]
    offsets = checkpoint / "offsets" / "0"
    lines = offsets.read_text().splitlines()
    assert lines[2] == "-"
    offsets.write_text("\n".join([*lines[:2], position, *lines[3:]]))
    (checkpoint / "offsets" / ".0.crc").unlink()
    folder = checkpoint / "sources" / "0"
    folder.mkdir(exist_ok=True)
    for name, text in side_files.items():
        (folder / name).write_text(text)
    return frame.union(restore)
