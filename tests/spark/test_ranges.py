"""Key-group ranges: one for each partition, and the same ones for as long as the attempt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chain import chain, check, conf, run
from delta.tables import DeltaTable
from diamond import write_source
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from session import settings, shuffle_partitions

from absflow.errors import GraphError
from absflow.spark.start.ranges import choose_ranges

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("key_groups", "count"), [(128, 1), (128, 7), (16, 16), (3, 8)])
def test_each_partition_gets_one_range(spark: SparkSession, key_groups: int, count: int) -> None:
    """As Spark deals their keys; with fewer key groups than partitions each is a range."""
    with shuffle_partitions(spark, count):
        ranges = choose_ranges(spark, key_groups)
    assert len(ranges) == min(key_groups, count)
    keys = spark.createDataFrame([(key,) for key in ranges], "key int")
    dealt = keys.repartition(count, "key").groupBy(F.spark_partition_id()).count().collect()
    assert [row["count"] for row in dealt] == [1] * len(ranges)


def started(spark: SparkSession, root: Path) -> dict[str, dict[str, object]]:
    """What the first attempt said of its stages."""
    facts = spark.read.format("delta").load(str(root / "job" / "attempts"))
    (row,) = facts.where("kind = 'STARTED' AND attempt = 1").collect()
    return dict(json.loads(row["details"]))


def test_an_attempt_goes_on_with_the_ranges_it_began_with(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark keeps the number of shuffle partitions of a query; so do they, and a start says it."""
    write_source(tmp_path / "given", files=4, rows=200, seed=3)
    (tmp_path / "a").mkdir()
    files = sorted((tmp_path / "given").iterdir())
    for file in files[:2]:
        file.rename(tmp_path / "a" / file.name)
    with shuffle_partitions(spark, 2):
        run(spark, tmp_path, key_groups="9")
    began = started(spark, tmp_path)
    assert {len(stage["ranges"]) for stage in began.values()} == {2}  # type: ignore[arg-type]
    for file in files[2:]:
        file.rename(tmp_path / "a" / file.name)
    assert not [r for r in caplog.records if "shuffle.partitions" in r.getMessage()]
    with shuffle_partitions(spark, 5):
        finished = run(spark, tmp_path, key_groups="9")
    (said,) = (r for r in caplog.records if "shuffle.partitions" in r.getMessage())
    assert said.levelname == "WARNING"
    assert said.getMessage().startswith(
        "spark.sql.shuffle.partitions is 5, but attempt 1 was begun with 2 tasks"
    )
    check(spark, tmp_path, finished, 4)
    assert started(spark, tmp_path) == began


def test_an_attempt_without_ranges_is_refused_and_can_be_restored(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its state is not where this version would look for it."""
    write_source(tmp_path / "a", files=2, rows=100, seed=3)
    run(spark, tmp_path)
    older = {
        name: {part: value for part, value in stage.items() if part != "ranges"}
        for name, stage in started(spark, tmp_path).items()
    }
    attempts = DeltaTable.forPath(spark, str(tmp_path / "job" / "attempts"))
    attempts.update("kind = 'STARTED'", {"details": F.lit(json.dumps(older))})
    with settings(spark, conf(tmp_path)), pytest.raises(GraphError, match="older absflow"):
        chain(spark, tmp_path).start()
    finished = run(spark, tmp_path, restore__from="latest")
    check(spark, tmp_path, finished, 2)
