"""Compactions of runs within lineages: whatever was merged, every checkpoint is what it was."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

# The storage roots are those that the command line is tested with.
sys.path.append(str(Path(__file__).parents[1] / "cli"))

from storage_roots import Checkpoint, Root, Stage, add_compacted, write_root

import absflow
from absflow.cli.reader import Reader
from absflow.errors import StorageError
from absflow.facts.inventory import gather
from absflow.facts.spark_reader import SparkStorageReader
from absflow.protocol.lineage import Compacted, begin_of, compacted_id, lineage_of
from absflow.protocol.retention.inventory import Action, Compact, DeleteSets, RetentionPolicy
from absflow.protocol.retention.plan import compact
from absflow.protocol.tiers import TierPolicy
from absflow.spark.control.compaction import write_compacted_set
from absflow.storage import history_sql, sql
from absflow.storage.layout import Layout

pytestmark = pytest.mark.spark

NEWEST, SAVEPOINT, ABORTED = 28, 14, 9
# All are kept.
POLICY = RetentionPolicy(100, TierPolicy(4, max_dead=0.3, free_dead=0))


def states() -> dict[int, list[dict[str, Any]]]:
    """Of 200 keys a few change with each checkpoint; some go, and come back."""
    chance = random.Random(3)
    state = {f"k{n}": {"k": f"k{n}", "v": 0} for n in range(200)}
    found = {1: list(state.values())}
    for n in range(2, NEWEST + 1):
        for key in chance.sample([f"k{n}" for n in range(210)], 3):
            state[key] = {"k": key, "v": n}
        for key in chance.sample(sorted(state), 2):
            del state[key]
        found[n] = list(state.values())
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A job of one stage, as it is before retention has looked at it."""
    stage = Stage("sums", pa.schema({"k": pa.string()}), pa.schema({"v": pa.int64()}), states())
    checkpoints = [
        Checkpoint(n, 0 if n in {1, SAVEPOINT} else n - 1 - (n == ABORTED + 1))
        if n != ABORTED
        else Checkpoint(n, n - 1, "ABORTED", "EXPIRED")
        for n in range(1, NEWEST + 1)
    ]
    return write_root(tmp_path_factory.mktemp("tiered") / "job", [stage], checkpoints)


@pytest.fixture(scope="module")
def made(spark: SparkSession, root: Root) -> list[Compacted]:
    """The compactions of that job, which were made one after the other."""
    made: list[Compacted] = []
    layout = Layout(str(root.path))
    found = gather(SparkStorageReader(spark), layout, {})

    def make(action: Action) -> bool:
        match action:
            case Compact(fact):
                there = {*found.sets["sums"]["sums"], *(c.set_id for c in made)}
                write_compacted_set(spark, layout.state("sums"), ["k"], fact, there)
                add_compacted(root, fact)
                made.append(fact)
            case DeleteSets(stage, set_ids):
                ids = ", ".join(map(str, set_ids))
                path = sql.table(layout.state(stage))
                spark.sql(f"DELETE FROM {path} WHERE set_id IN ({ids})")
        return True

    for action in compact(found.inventory, POLICY, make):
        make(action)
    return made


def test_tiers_are_merged_within_lineages_and_again(root: Root, made: list[Compacted]) -> None:
    """Some begin behind a set that stays, some are made of others, most rewrite little."""
    assert any(begin_of(c.set_id) for c in made)
    assert any(min(c.replaces) < 0 for c in made)
    # All become one when 60 rows are dead: about ten checkpoints later.
    assert 1 <= sum(begin_of(c.set_id) == 0 for c in made) <= 3
    assert Reader(str(root.path)).retention(POLICY).actions == ()


def test_every_checkpoint_reads_as_before(
    spark: SparkSession, root: Root, made: list[Compacted]
) -> None:
    """In Spark, in the views over all checkpoints and on the command line."""
    assert made
    history = absflow.history(spark, str(root.path))
    history.create_views("tiered_")
    view = spark.sql("SELECT * FROM tiered_sums_state").toArrow().to_pylist()
    for n in root.completed:
        due = sorted(root.state("sums", n), key=str)
        assert [r for r in ordered(view) if r.pop("at_checkpoint") == n] == due, n
        assert ordered(Reader(str(root.path)).state("sums", n).rows.to_pylist()) == due
    for n in (1, SAVEPOINT - 1, SAVEPOINT, SAVEPOINT + 3, NEWEST):
        found = history.state("sums", n).toArrow().to_pylist()
        assert ordered(found) == sorted(root.state("sums", n), key=str)


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((dict(row) for row in rows), key=lambda r: str({"k": r["k"], "v": r["v"]}))


def test_changes_are_as_before(spark: SparkSession, root: Root, made: list[Compacted]) -> None:
    """Also where a checkpoint lies within a set that newer ones read, and behind the savepoint."""
    assert made
    rows = absflow.history(spark, str(root.path)).changes("sums").toArrow().to_pylist()
    found = {(r["checkpoint_id"], r["op"], r["k"], r["v"]) for r in rows}
    due = {(n, op, k, row and row["v"]) for n, op, (k,), row in root.changes("sums")}
    assert found == due
    assert len(rows) == len(due)


def test_a_set_is_not_made_of_what_is_left(spark: SparkSession, root: Root) -> None:
    """A driver that hung while another one compacted the same sets writes nothing."""
    path = Layout(str(root.path)).state("sums")
    fact = Compacted(900, "sums", compacted_id(0, 900), (800, 900))
    with pytest.raises(StorageError, match=r"sets \[800, 900\] .* are gone"):
        write_compacted_set(spark, path, ["k"], fact, [800, 900])
    assert -900 not in SparkStorageReader(spark).sets(path)


def test_both_readers_count_the_rows_of_sets(spark: SparkSession, root: Root) -> None:
    """From the log of the table, and they agree with a count."""
    path = Layout(str(root.path)).state("sums")
    counted = spark.sql(f"SELECT set_id, count(*) FROM {sql.table(path)} GROUP BY 1")
    due = dict(tuple(row) for row in counted.collect())
    assert SparkStorageReader(spark).sets(path) == due
    assert Reader(str(root.path)).inventory().sets["sums"]["sums"] == due


def test_lineages_are_the_same_in_sql(spark: SparkSession) -> None:
    """The expression of the views gives what the protocol's function gives, on random facts."""
    chance = random.Random(5)
    cases = []
    for _ in range(300):
        ends = sorted(chance.sample(range(1, 12), chance.randint(0, 8)))
        facts = []
        for _ in range(chance.randint(0, 6)):
            begin, end = sorted(chance.sample(range(12), 2))
            facts.append(Compacted(end, "a", compacted_id(begin, end), ()))
        lineage = lineage_of("a", tuple(ends), facts[:2])
        cases.append((lineage, sorted((c.set_id for c in facts), reverse=True), facts))
    rows = [(list(lineage), ids) for lineage, ids, _ in cases]
    schema = "lineage array<bigint>, compacted array<bigint>"
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    found = frame.selectExpr(history_sql.lineage_of("lineage", "compacted")).collect()
    assert [tuple(row[0]) for row in found] == [
        lineage_of("a", lineage, facts) for lineage, _, facts in cases
    ]
