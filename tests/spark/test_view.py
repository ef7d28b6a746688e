"""Sinks and states at one checkpoint are one cut, for absflow and for any reader of Delta."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from chain import chain, conf, expected, run
from deltalake import DeltaTable
from diamond import source_files
from pyspark.sql import SparkSession
from reading import assert_same_rows, completed, files_read
from session import settings

import absflow

pytestmark = pytest.mark.spark

CONF = {
    "checkpoint__interval": "100ms",
    "checkpoint__aligned_timeout": "never",  # so that a checkpoint has no rows in flight
    "trigger__interval": "300ms",
}


@pytest.fixture(
    scope="module", params=[pytest.param("immediate", marks=pytest.mark.soak), "on-checkpoint"]
)
def root(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A job that ended, was put back to a checkpoint in its middle, and ended once more."""
    root = tmp_path_factory.mktemp("view")
    files = source_files(root / "a", rows=50, seed=17)
    _ended(spark, root, files, request.param)
    middle = completed(spark, root / "job")[1]
    _ended(spark, root, files, request.param, restore__from=str(middle["checkpoint_id"]))
    return root


def _ended(spark: SparkSession, root: Path, files: Iterator[None], mode: str, **more: str) -> None:
    for _ in range(4):
        next(files)
    with settings(spark, conf(root, **CONF, **more)):
        started = chain(spark, root, mode=mode).start()
        assert started.await_termination(timeout=300)


def test_every_checkpoint_has_its_view(spark: SparkSession, root: Path) -> None:
    """Also those that the restore has left behind: their tables' versions are there."""
    history = absflow.history(spark, str(root / "job"))
    rows = completed(spark, root / "job")
    assert len({row["attempt"] for row in rows}) == 2
    for row in rows:
        view = history.view(row["checkpoint_id"])
        due = expected(root, files_read(row, "left", "a"))
        assert (dict(view.lacking), [*view.sinks]) == ({}, ["out"])
        assert_same_rows(view.sink("out").toPandas(), due["sink"], ["id"])
        for stage, key in (("left", "k"), ("tally", "g")):
            assert_same_rows(view.state(stage).toPandas(), due[stage], [key])


def test_any_reader_opens_the_same_version(spark: SparkSession, root: Path) -> None:
    """The newest is that of the last checkpoint."""
    view = absflow.history(spark, str(root / "job")).view()
    there = view.sinks["out"]
    table = DeltaTable(there.path.removeprefix("file:"), version=there.version)
    read = pa.table(table.to_pyarrow_table()).to_pandas()
    assert_same_rows(read, view.sink("out").toPandas(), ["id"])
    assert view.checkpoint == completed(spark, root / "job")[-1]["checkpoint_id"]


def test_views_in_sql_are_of_one_checkpoint(spark: SparkSession, root: Path) -> None:
    """What the state has counted is what the sink has."""
    history = absflow.history(spark, str(root / "job"))
    middle = completed(spark, root / "job")[1]["checkpoint_id"]
    names = history.view(middle).create_views("then_")
    assert sorted(names) == ["then_left_at", "then_out_at", "then_tally_at"]
    counted = "SELECT (SELECT sum(n) FROM then_tally_at) = (SELECT count(*) FROM then_out_at)"
    assert spark.sql(counted).head()[0]


def test_what_is_not_there_is_named(spark: SparkSession, root: Path) -> None:
    """A sink, a stage, a checkpoint."""
    history = absflow.history(spark, str(root / "job"))
    view = history.view()
    with pytest.raises(absflow.NotFoundError, match=r"no sink 'other' at checkpoint .*, only out"):
        view.sink("other")
    with pytest.raises(absflow.NotFoundError, match=r"no stage 'other' with state .*left, tally"):
        view.state("other")
    with pytest.raises(absflow.NotFoundError, match="9999"):
        history.view(9999)


def test_a_sink_that_is_gone_is_lacking(spark: SparkSession, tmp_path: Path) -> None:
    """The others are still there; and so is the view's own word for it."""
    files = source_files(tmp_path / "a", rows=20, seed=5)
    next(files)
    run(spark, tmp_path)
    (tmp_path / "sink").rename(tmp_path / "moved")
    view = absflow.history(spark, str(tmp_path / "job")).view()
    assert not view.sinks
    with pytest.raises(absflow.NotFoundError, match=r"sink 'out' .* has no version of checkpoint"):
        view.sink("out")
    with pytest.raises(absflow.NotFoundError, match="any more"):
        view.create_views()
    assert view.state("left").count() > 0
