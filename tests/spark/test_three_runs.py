"""Three runs agree: without checkpoints, with them, and restored from one in another shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from diamond import diamond, expected_sink, expected_states, write_source
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, files_read, state_at
from session import settings

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(600)]

FILES = 4
PARTITIONS = "spark.sql.shuffle.partitions"
# What of the state does not depend on which of a stage's inputs came first, nor on the order in
# which Spark reads the files of one batch.
STATES = {
    "left": ["k", "n", "total", "newest"],
    "right": ["k", "n", "total", "newest"],
    "join": ["g", "n", "total", "newest"],
}
SINK = ["id", "g", "v"]


def run(
    spark: SparkSession,
    root: Path,
    name: str,
    *,
    partitions: int,
    files_each: int = FILES,
    **more: str,
) -> dict[str, pd.DataFrame]:
    """A run to the end, in a storage root of its own by ``name``: final states, and the sink."""
    conf = {k.replace("__", ".").replace("_", "-"): value for k, value in more.items()}
    storage, sink = root / name / "job", root / name / "sink"
    before = spark.conf.get(PARTITIONS)
    spark.conf.set(PARTITIONS, str(partitions))
    try:
        with settings(spark, {**conf, "storage.path": str(storage)}):
            started = diamond(spark, root, sink, bounded=True, files_each=files_each).start()
            assert started.await_termination(timeout=200)
    finally:
        spark.conf.set(PARTITIONS, before)
    last = completed(spark, storage)[-1]
    assert last["checkpoint_id"] == started.finished_checkpoint
    found = {
        stage: state_at(spark, storage, last, stage, columns[0])[columns]
        for stage, columns in STATES.items()
    }
    return {**found, "sink": spark.read.format("delta").load(str(sink)).toPandas()[SINK]}


def read_at(row: dict[str, Any]) -> tuple[int, int]:
    """How many files of ``a`` and of ``b`` stand before a checkpoint."""
    return files_read(row, "a", "a"), files_read(row, "right", "b")


def test_three_runs_agree(spark: SparkSession, tmp_path: Path) -> None:
    """Sink and final states are the same rows, and those of a plain computation.

    The second run reads a file in each batch, the others all there are. The third goes back to a
    checkpoint of the second that cuts both sources.
    """
    write_source(tmp_path / "a", files=FILES, rows=10, seed=6)
    write_source(tmp_path / "b", files=FILES, rows=10, seed=7)
    # Several, but not many: each takes as many batches as the stages lag.
    shape = {"checkpoint__interval": "3s", "key_groups": "32"}

    plain = run(spark, tmp_path, "plain", partitions=2, checkpoint__interval="1h", key_groups="4")
    assert len(completed(spark, tmp_path / "plain" / "job")) == 1  # the one of the end

    checkpointed = run(spark, tmp_path, "checkpointed", partitions=4, files_each=1, **shape)
    rows = completed(spark, tmp_path / "checkpointed" / "job")
    middle = next(row for row in rows if all(0 < n < FILES for n in read_at(row)))

    shape = {"checkpoint__interval": "1h", "key_groups": "200"}
    shape["restore__from"] = str(middle["checkpoint_id"])
    restored = run(spark, tmp_path, "checkpointed", partitions=7, **shape)

    expected = expected_states(tmp_path, {"a": FILES, "b": FILES})
    expected["sink"] = expected_sink(tmp_path)
    for name, seen in plain.items():
        by = ["id", "v"] if name == "sink" else [seen.columns[0]]
        assert_same_rows(seen, expected[name], by)
        assert_same_rows(checkpointed[name], seen, by)
        assert_same_rows(restored[name], seen, by)
