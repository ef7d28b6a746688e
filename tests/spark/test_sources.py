"""What a source is made of is described alike for every kind of source, whatever name was given."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

from absflow import GraphError
from absflow.spark.sources.describe import describe_source

pytestmark = pytest.mark.spark


class Mine(DataSource):
    """A Python data source that is never read."""

    @classmethod
    def name(cls) -> str:
        return "Mine"

    def schema(self) -> str:
        return "v long"


def options(frame: DataFrame) -> dict[str, str]:
    return dict(describe_source(frame).options)


@pytest.mark.parametrize("name", ["parquet", "JSON", "csv", "orc"])
def test_files(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """A path given in three ways; and what the author made of the rows changes nothing."""
    reader = spark.readStream.schema("id long, t string").format(name)
    described = [
        describe_source(frame.where("id > 1").selectExpr("id + 1 AS n"))
        for frame in (
            reader.load(str(tmp_path)),
            reader.option("PATH", str(tmp_path)).load(),
            getattr(spark.readStream.schema("id long, t string"), name.lower())(str(tmp_path)),
        )
    ]
    for seen in described:
        assert (seen.format, seen.is_files) == (name.lower(), True)
        assert seen.options["path"] == str(tmp_path)
        assert seen.schema.simpleString() == "struct<id:bigint,t:string>"


def test_text_files(spark: SparkSession, tmp_path: Path) -> None:
    """A format with a schema of its own."""
    seen = describe_source(spark.readStream.text(str(tmp_path)))
    assert (seen.format, seen.is_files) == ("text", True)
    assert seen.schema.simpleString() == "struct<value:string>"


def test_delta(spark: SparkSession, tmp_path: Path) -> None:
    """By path and by name: the path is there in both."""
    path = str(tmp_path / "t")
    spark.range(1).write.format("delta").save(path)
    by_path = spark.readStream.format("delta").option("startingVersion", 0).load(path)
    seen = describe_source(by_path)
    assert (seen.format, seen.is_files) == ("delta", False)
    assert dict(seen.options) == {"path": path, "startingversion": "0"}
    assert seen.schema.simpleString() == "struct<id:bigint>"
    spark.sql(f"CREATE TABLE described USING delta LOCATION '{path}'")
    try:
        seen = describe_source(spark.readStream.table("described"))
    finally:
        spark.sql("DROP TABLE described")
    assert (seen.format, seen.options["path"]) == ("delta", f"file:{path}")


@pytest.mark.parametrize("name", ["kafka", "org.apache.spark.sql.kafka010.KafkaSourceProvider"])
def test_kafka(spark: SparkSession, name: str) -> None:
    """Options keep their values and lose their case; a secret is not in a description's text."""
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "subscribe": "A,b",
        "startingOffsets": "latest",
        "kafka.sasl.jaas.config": "Module required password='S3cret';",
    }
    seen = describe_source(spark.readStream.format(name).options(**given).load())
    assert (seen.format, seen.is_files) == ("kafka", False)
    assert dict(seen.options) == {key.lower(): value for key, value in given.items()}
    assert seen.schema.names[:5] == ["key", "value", "topic", "partition", "offset"]
    assert "S3cret" not in repr(seen)


@pytest.mark.parametrize("name", ["rate", "rate-micro-batch"])
def test_rate(spark: SparkSession, name: str) -> None:
    """Both of Spark's generators."""
    option = "rowsPerSecond" if name == "rate" else "rowsPerBatch"
    seen = describe_source(spark.readStream.format(name).option(option, 3).load())
    assert (seen.format, dict(seen.options)) == (name, {option.lower(): "3"})
    assert seen.schema.names == ["timestamp", "value"]


def test_a_python_data_source(spark: SparkSession) -> None:
    """By the name that the author used."""
    spark.dataSource.register(Mine)
    seen = describe_source(spark.readStream.format("Mine").option("From", "X").load())
    assert (seen.format, dict(seen.options)) == ("Mine", {"from": "X"})
    assert seen.schema.simpleString() == "struct<v:bigint>"


def test_what_is_not_one_stream_is_refused(spark: SparkSession) -> None:
    """A batch frame, two streams; beside a static frame one stream is one."""
    rate = spark.readStream.format("rate").load()
    assert describe_source(rate.join(spark.range(3).toDF("value"), "value")).format == "rate"
    with pytest.raises(GraphError, match="reads 0"):
        describe_source(spark.range(1))
    with pytest.raises(GraphError, match="reads 2"):
        describe_source(rate.union(rate))
