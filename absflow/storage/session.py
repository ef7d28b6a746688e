"""The conf of a session, changed for as long as something needs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from pyspark.sql import SparkSession

__all__ = ["check_pages", "checks_pages", "conf_set", "wait_little"]

_CHECK_PAGES = "parquet.page.verify-checksum.enabled"
# Waits of 1 ms, 2 ms and so on, 16 s in all; as HDFS has it, of 400 ms, 800 ms, 12 s in all.
_WAITS = {
    "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "1",
    "dfs.client.block.write.locateFollowingBlock.retries": "14",
}


def check_pages(spark: SparkSession) -> None:
    """Have the session look at the checksums in Parquet files, unless somebody has chosen.

    Without, a flipped bit is read as another value. Spark hands the session's conf on to every scan
    (``newHadoopConf``), those of streams and of Delta among them; options of a frame would not
    reach these.
    """
    if _chosen(spark) is None:
        spark.conf.set(_CHECK_PAGES, "true")


def wait_little(spark: SparkSession) -> None:
    """Have HDFS's client look soon whether a file is whole, unless somebody has chosen.

    The name node knows of a file's last block a moment after the client has sent it. The client
    looks once at once, and then after 0.4 s: each small file takes as long. A file
    system that was made before (YARN's, of the application's own files) keeps what it has, and
    Spark what it writes by it; absflow's own files do not go by it (``Placed.java``).
    """
    hadoop: Any = spark.sparkContext._jsc
    conf = hadoop.hadoopConfiguration()
    for name, value in _WAITS.items():
        chosen = [str(each) for each in conf.getPropertySources(name) or ()]
        if spark.conf.get(name, None) is None and set(chosen) <= {"hdfs-default.xml"}:
            spark.conf.set(name, value)


def checks_pages(spark: SparkSession) -> bool:
    """Whether the session looks at them; a worker that reads a file itself does as it does."""
    return _chosen(spark) != "false"


def _chosen(spark: SparkSession) -> str | None:
    hadoop: Any = spark.sparkContext._jsc
    found = spark.conf.get(_CHECK_PAGES, None) or hadoop.hadoopConfiguration().get(_CHECK_PAGES)
    return None if found is None else str(found).lower()


@contextmanager
def conf_set(spark: SparkSession, values: Mapping[str, str | None]) -> Iterator[None]:
    """Within the block each key has its value, or none; behind it what it had before."""
    with ExitStack() as before:
        for key, value in values.items():
            before.callback(_set, spark, key, spark.conf.get(key, None))
            _set(spark, key, value)
        yield


def _set(spark: SparkSession, key: str, value: str | None) -> None:
    if value is None:
        spark.conf.unset(key)
    else:
        spark.conf.set(key, value)
