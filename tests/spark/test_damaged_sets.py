"""Damaged files through Spark: an error of ours, never other values, and a way on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chain import chain, check, conf, run
from damaging import flip, flip_in_values
from deltalake import DeltaTable
from diamond import write_source
from pyspark.sql import SparkSession
from reading import completed, stage_of
from session import settings, spark_conf

import absflow
from absflow.columnar.digest import set_digests
from absflow.facts.explained import explained
from absflow.facts.inventory import gather
from absflow.facts.spark_reader import SparkStorageReader
from absflow.protocol.checkpoints import SetDigest
from absflow.protocol.lineage import Compacted
from absflow.spark.control.failures import failure_of
from absflow.spark.control.retention import Retention
from absflow.spark.worker.set_digests import read_digests
from absflow.storage.files import Files
from absflow.storage.layout import Layout
from absflow.storage.root import StorageRoot

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FILES = 4


@pytest.fixture(scope="module")
def root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of two stages that has run to its end, with several checkpoints."""
    root = tmp_path_factory.mktemp("damaged")
    write_source(root / "a", files=FILES, rows=200, seed=5)
    # A bit of a value, not of what it is compressed to.
    with spark_conf(spark, {"spark.sql.parquet.compression.codec": "uncompressed"}):
        run(spark, root)
    assert len(completed(spark, root / "job")) >= 2
    return root


@pytest.fixture
def damaged(spark: SparkSession, root: Path) -> Iterator[tuple[int, int, Path]]:
    """A set of stage left with a flipped bit in a value: the set, who needs it not, the file."""
    rows = completed(spark, root / "job")
    newest = rows[-1]["checkpoint_id"]
    set_id = stage_of(rows[-1], "left")["lineage"][-1]
    whole = max(r["checkpoint_id"] for r in rows if set_id not in stage_of(r, "left")["lineage"])
    path = sorted((root / "job" / "state" / "left" / f"set_id={set_id}").glob("*.parquet"))[0]
    before = path.read_bytes()
    flip_in_values(path, "total")
    yield newest, whole, path
    path.write_bytes(before)


def test_a14_history_names_a_damaged_file_and_who_does_not_need_it(
    spark: SparkSession, root: Path, damaged: tuple[int, int, Path]
) -> None:
    """In frames, in what is made of them, and in views; what does not need it is read."""
    newest, whole, path = damaged
    history = absflow.history(spark, str(root / "job"))
    frame = history.state("left", newest)
    (view,) = (name for name in history.create_views("damaged_") if name.endswith("left_state"))
    said = f"file '{path.relative_to(root / 'job')}' .* absflow restore --from {whole} "
    with pytest.raises(absflow.DamagedError, match=said):
        frame.toPandas()
    with pytest.raises(absflow.DamagedError, match=said):
        frame.groupBy("n").sum("total").collect()
    with pytest.raises(absflow.DamagedError, match=said):
        spark.sql(f"SELECT sum(total) FROM {view} WHERE at_checkpoint = {newest}").show()
    assert history.state("left", whole).toPandas()["total"].notna().all()


def test_a14_a_restore_from_a_damaged_file_fails_with_what_still_works(
    spark: SparkSession, root: Path, damaged: tuple[int, int, Path]
) -> None:
    """It names the file and a checkpoint that does not need it; a restore from that one works."""
    newest, whole, path = damaged
    with settings(spark, conf(root, restore__from=str(newest))):
        with pytest.raises(absflow.DamagedError) as raised:
            chain(spark, root).start()
    assert f"'{path.relative_to(root / 'job')}'" in str(raised.value)
    assert f"absflow restore --from {whole} " in str(raised.value)
    assert "\tat " not in str(raised.value)
    finished = run(spark, root, restore__from=str(whole))
    check(spark, root, finished, FILES)


@pytest.mark.parametrize(
    ("error", "words", "remedy"),
    [
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {root}/channels/left/"
            "attempt=99/_epoch=1/p.parquet.  SQLSTATE: KD001\n\tat org.apache.x(Y.scala:1)",
            "It is of epoch 1 of the channel of stage 'left', attempt 99. No checkpoint needs it; ",
            "A start would read the same file again, a restore need not",
        ),
        (
            "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error\n\tat org.apache.x(Y.scala:1)",
            "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error",
            "A start would read the same again: restore the job from its newest checkpoint",
        ),
        (
            "Traceback\nabsflow.errors.PageCorruptError: state of 3 is corrupt\n\tat x",
            "PageCorruptError: state of 3 is corrupt",
            "A start would read the same again: restore the job from its newest checkpoint",
        ),
        ("disk full\n\tat x", "disk full", "Nothing is lost: mend the cause and start"),
    ],
)
def test_a14_a_query_that_read_a_damaged_file_says_failure_of(
    spark: SparkSession, root: Path, error: str, words: str, remedy: str
) -> None:
    """A restore where a start would meet the same bytes again; and no stack of the JVM."""
    opened = StorageRoot.open(spark, str(root / "job"))
    failed = failure_of(opened, error.format(root=opened.layout.root))
    assert words in failed.words
    assert "\tat " not in failed.words
    assert failed.remedy.startswith(remedy)


UNCHECKED = {"parquet.page.verify-checksum.enabled": "false"}


def due_of(row: dict[str, Any], stage: str) -> list[SetDigest]:
    """The digests in a manifest."""
    sets = [SetDigest(**each) for each in stage_of(row, stage)["sets"]]
    assert [each.set_id for each in sets] == stage_of(row, stage)["lineage"]
    return sets


def test_a9_workers_spark_and_arrow_have_the_same_digests(spark: SparkSession, root: Path) -> None:
    """Of every set of every checkpoint, those of the first micro-batch, which are staged, too."""
    rows = completed(spark, root / "job")
    for stage in ("left", "tally"):
        path = str(root / "job" / "state" / stage)
        due = {each.set_id: each for row in rows for each in due_of(row, stage)}
        assert len(due) > 1
        seen = read_digests(spark.read.format("delta").load(path))
        table = DeltaTable(path).to_pyarrow_table()
        arrow = {each.set_id: each for each in set_digests(table)}
        for set_id, digest in due.items():
            assert (seen[set_id], arrow[set_id]) == (digest, digest)


def test_a9_a_restore_that_reads_other_values_fails(
    spark: SparkSession, root: Path, damaged: tuple[int, int, Path]
) -> None:
    """Where nobody looks at the checksums of pages, the digest of the set differs."""
    newest, whole, path = damaged
    with spark_conf(spark, UNCHECKED), settings(spark, conf(root, restore__from=str(newest))):
        with pytest.raises(absflow.DamagedError) as raised:
            chain(spark, root).start()
    said = str(raised.value)
    assert "of state history 'left' under" in said
    assert "as were written, but with other values. Its files: " in said
    assert path.name in said
    assert f"absflow restore --from {whole} " in said


def test_a9_damaged_sets_are_not_compacted_into_one_that_looks_good(
    spark: SparkSession, root: Path, damaged: tuple[int, int, Path]
) -> None:
    """By the checksums of pages, and without them by the digests; then nothing is written."""
    newest, _, path = damaged
    layout = Layout(str(root / "job"))
    found = gather(SparkStorageReader(spark), layout, {})
    row = next(r for r in completed(spark, root / "job") if r["checkpoint_id"] == newest)
    fact = Compacted(newest, "left", -newest, tuple(stage_of(row, "left")["lineage"]))
    assert len(fact.replaces) > 1
    retention = object.__new__(Retention)  # without its thread
    retention._spark, retention._layout, retention._files = spark, layout, Files(spark)
    with pytest.raises(absflow.DamagedError, match="file 'state/left/set_id="):
        retention._compact(fact, found)
    with spark_conf(spark, UNCHECKED), pytest.raises(absflow.DamagedError, match="other values"):
        retention._compact(fact, found)
    history = spark.read.format("delta").load(layout.state("left"))
    assert history.where(f"set_id = -{newest}").isEmpty()
    flip_in_values(path, "total")  # back to what it was
    digest = retention._compact(fact, found).digest
    assert digest is not None
    again = gather(SparkStorageReader(spark), layout, {})
    assert retention._compact(fact, again).digest == digest
    rows = DeltaTable(layout.state("left")).to_pyarrow_table(filters=[("set_id", "=", -newest)])
    assert set_digests(rows) == [digest]
    assert digest.rows == stage_of(row, "left")["keys_total"]
    spark.sql(f"DELETE FROM delta.`{layout.state('left')}` WHERE set_id = -{newest}")
    flip_in_values(path, "total")


def test_a9_spark_reads_no_other_values_whatever_bit_is_flipped(
    spark: SparkSession, root: Path, damaged: tuple[int, int, Path]
) -> None:
    """Seeded flips over one file: an error that names it, another digest, or the same rows."""
    _, _, path = damaged
    flip_in_values(path, "total")  # back to what it was
    layout, good = Layout(str(root / "job")), path.read_bytes()
    rows = spark.read.format("delta").load(layout.state("left"))
    rows = rows.where(f"set_id = {path.parent.name.removeprefix('set_id=')}")
    due, values = read_digests(rows), sorted(map(str, rows.collect()))
    met = []
    for bit in np.random.default_rng(7).integers(0, 8 * len(good), 24).tolist():
        flip(path, bit)
        try:
            with explained(spark, layout):
                seen = read_digests(rows)
                met.append(seen == due)
                if seen == due:
                    assert sorted(map(str, rows.collect())) == values, bit
        except absflow.DamagedError as error:
            met.append(path.name in str(error))
        path.write_bytes(good)
    assert len(met) == 24
    assert any(met)


def test_what_java_fails_with_is_an_error_of_the_storage(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It names the root; nothing is said to be damaged."""
    jvm: Any = spark.sparkContext._jvm
    with (
        pytest.raises(
            absflow.StorageError, match=f"under '{tmp_path}': java.io.FileNotFound"
        ) as caught,
        explained(spark, Layout(str(tmp_path))),
    ):
        jvm.java.io.FileInputStream("/no/answer")
    assert not isinstance(caught.value, absflow.DamagedError)
