"""A running job whose lineages are compacted in the middle, again and again, and restored from.

And one of a large state, in which a full checkpoint takes the place of a compaction of all sets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chain import wait
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, facts, files_read
from session import settings

import absflow
from absflow.cli.reader import Reader
from absflow.facts.records import compacted_of
from absflow.protocol.lineage import begin_of, lineage_of
from absflow.spark.control import retention
from absflow.storage.delta.log import actions_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PATIENCE_S = 600
FILES, KEYS = 300, 500
# More rows than are compacted in no time, of which a small part changes with each file.
MANY, CHANGED = 60_000, 8_000
SETTINGS = {"checkpoint.interval": "500ms", "key-groups": "2"}
FEW_SETS = {"lineage.max-sets": "3"}


def write_source(folder: Path, count: int, changed: int) -> None:
    """Every key, then files that change a few and delete (below 0) fewer."""
    folder.mkdir()
    chance = np.random.default_rng(8)
    for number in range(FILES):
        keys = np.arange(count) if number == 0 else chance.choice(count, changed, replace=False)
        values = chance.integers(-3 if number else 0, 9, len(keys))
        path = folder / f"{number:04d}.parquet"
        pq.write_table(pa.table({"k": keys, "v": values}), path)
        os.utime(path, (1_000_000 + number, 1_000_000 + number))


def keep_last(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """The last value of each key; one below 0 deletes it."""
    last = np.zeros(state.num_rows, dtype=np.int64)
    np.maximum.at(last, context.key_of_row, np.arange(rows.num_rows))
    values = rows["v"].to_numpy()[last]
    new = pa.table({"k": state["k"], "v": values})
    return absflow.Result(output=rows.select(["v"]), state=new, delete=values < 0)


def job(spark: SparkSession, root: Path) -> absflow.Job:
    """One stage, which deletes keys."""
    job = absflow.Job("runs", spark)
    frame = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
    a = job.source("a", frame.parquet(str(root / "a")))
    last = job.stage("last", a, key="k", state="v long", output="v long", process=keep_last)
    job.sink("out", last, absflow.DeltaSink(str(root / "sink")))
    return job


def expected(root: Path, files: int) -> pd.DataFrame:
    """The state after the first files, in plain pandas."""
    none = pd.DataFrame({"k": [], "v": []}, dtype="int64")
    paths = sorted((root / "a").glob("*.parquet"))[:files]
    rows = pd.concat([none, *map(pd.read_parquet, paths)]).groupby("k", as_index=False).last()
    return rows[rows["v"] >= 0]


def run(
    spark: SparkSession,
    root: Path,
    until: Callable[[absflow.Run], object],
    start: str = "",
    more: Mapping[str, str] = FEW_SETS,
) -> None:
    """Run the job, from a checkpoint if one is named."""
    given = {"storage.path": str(root / "job"), **SETTINGS, **more, "restore.from": start}
    with settings(spark, given):
        running = job(spark, root).start()
    try:
        until(running)
    finally:
        running.stop()


def wait_for_one_after(checkpoint_id: int, running: absflow.Run) -> None:
    """Until a newer checkpoint has completed."""
    wait(lambda: running.progress().checkpoint_id > checkpoint_id, running, PATIENCE_S)


def check_all(spark: SparkSession, root: Path) -> int:
    """Every completed checkpoint is what its position says, for both readers; the newest."""
    history = absflow.history(spark, str(root / "job"))
    history.create_views("runs_")
    view = spark.sql("SELECT * FROM runs_last_state").toPandas()
    for row in completed(spark, root / "job"):
        n, due = row["checkpoint_id"], expected(root, files_read(row, "last", "a"))
        assert_same_rows(view[view["at_checkpoint"] == n], due, ["k"])
        assert_same_rows(Reader(str(root / "job")).state("last", n).rows.to_pandas(), due, ["k"])
    assert_same_rows(history.state("last", n).toPandas(), due, ["k"])
    return int(n)


def rewritten(root: Path) -> dict[int, int]:
    """The rows that each compaction wrote, from the log of the state history."""
    rows: dict[int, int] = {}
    for file in (root / "job" / "state" / "last" / "_delta_log").glob("*.json"):
        for action in actions_of(file.read_text()):
            if (add := action.get("add")) and (n := int(add["partitionValues"]["set_id"])) < 0:
                rows[n] = rows.get(n, 0) + json.loads(add["stats"])["numRecords"]
    return rows


@pytest.mark.soak
def test_runs_of_a_lineage_become_one_and_every_checkpoint_can_be_restored(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a savepoint in the middle; from a checkpoint before it, then from it."""
    monkeypatch.setattr(retention, "EVERY", 0.0)
    monkeypatch.setattr(retention, "REST", 0.0)
    write_source(tmp_path / "a", KEYS, 5)
    taken: list[int] = []

    def made() -> list[tuple[int | None, bool]]:
        found = compacted_of(facts(spark, tmp_path / "job"))
        return [(begin_of(c.set_id), min(c.replaces) < 0) for c in found]

    def go_on(running: absflow.Run) -> None:
        wait(lambda: any(begin and again for begin, again in made()), running, PATIENCE_S)
        taken.append(running.savepoint(timeout=300))
        wait(lambda: running.progress().checkpoint_id > taken[0] + 3, running, PATIENCE_S)

    run(spark, tmp_path, go_on)
    newest = check_all(spark, tmp_path)
    written = rewritten(tmp_path)
    assert 0 < sum(written.values()) < len(written) * KEYS / 2  # and not all keys each time
    rows = facts(spark, tmp_path / "job")
    lineages = {
        row["checkpoint_id"]: lineage_of(
            "last", tuple(row["stages"][0]["lineage"]), compacted_of(rows)
        )
        for row in completed(spark, tmp_path / "job")
    }
    within = [n for n, sets in lineages.items() if n < taken[0] and any(map(begin_of, sets))]
    for start in (within[-1], taken[0]):
        run(spark, tmp_path, partial(wait_for_one_after, newest), str(start))
        before, newest = newest, check_all(spark, tmp_path)
        assert newest > before


def test_before_a_compaction_of_everything_comes_a_full_checkpoint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice; older sets go, nothing is compacted, and a restore has the state of the last."""
    monkeypatch.setattr(retention, "EVERY", 0.0)
    monkeypatch.setattr(retention, "REST", 0.0)
    write_source(tmp_path / "a", MANY, CHANGED)

    def full() -> list[int]:
        rows = completed(spark, tmp_path / "job")
        return [row["checkpoint_id"] for row in rows if row["base_id"] == 0][1:]

    def one_more(before: int, running: absflow.Run) -> None:
        wait(lambda: len(full()) > before, running, PATIENCE_S)

    for start in ("", "latest"):
        run(spark, tmp_path, partial(one_more, len(full()) if start else 0), start, {})
    rows = completed(spark, tmp_path / "job")
    lengths = {row["checkpoint_id"]: len(row["stages"][0]["lineage"]) for row in rows}
    reader = Reader(str(tmp_path / "job"))
    for n in full():
        assert lengths[n] == 1
        assert max(lengths[m] for m in lengths if m < n) > 3
        (row,) = (row for row in rows if row["checkpoint_id"] == n)
        due = expected(tmp_path, files_read(row, "last", "a"))
        assert_same_rows(reader.state("last", n).rows.to_pandas(), due, ["k"])
    assert not compacted_of(facts(spark, tmp_path / "job"))
