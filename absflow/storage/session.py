"""The conf of a session, changed for as long as one call needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

__all__ = ["conf_set"]


@contextmanager
def conf_set(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """Within the block ``key`` has ``value``; behind it what it had before, whatever happens."""
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)
