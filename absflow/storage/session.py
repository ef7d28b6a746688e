"""The conf of a session, changed for as long as something needs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from pyspark.sql import SparkSession

__all__ = ["conf_set"]


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
