"""The key-group ranges of an attempt: the keys by which Spark knows them, chosen when it begins."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

__all__ = ["choose_ranges", "kept_ranges", "shuffle_partitions"]


def choose_ranges(spark: SparkSession, key_groups: int) -> list[int]:
    """Keys by which Spark is to know the ranges of key groups of a stage that begins.

    As in Flink (KeyGroupRange), key groups that follow each other are a range, and there is a range
    for each task: Spark's call for a group costs about as much as a small key group's work. Spark
    deals groups to partitions by a hash of their key; of 128 key groups in 64 partitions one would
    have 6. So these keys are chosen such that each partition gets one.

    Returns:
        A key for each range, in the order of the key groups. They belong to the attempt, as Spark
        keeps the number of shuffle partitions for as long: state is found by them.
    """
    partitions = shuffle_partitions(spark)
    wanted = _count(key_groups, partitions)
    ranges: dict[int, int] = {}
    candidates = 8 * partitions
    while len(ranges) < wanted:
        candidates *= 2
        key = F.col("id").cast("int")
        partition = F.pmod(F.hash(key), F.lit(partitions))
        rows = spark.range(candidates).select(key, partition).collect()
        ranges = {row[1]: row[0] for row in reversed(rows)}
    return [ranges[partition] for partition in sorted(ranges)[:wanted]]


def shuffle_partitions(spark: SparkSession) -> int:
    """What the session asks for."""
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 200)


def kept_ranges(attempt: int, ranges: int, key_groups: int, partitions: int) -> str:
    """What a log says of another number of shuffle partitions; empty if it changes nothing.

    Args:
        attempt: the attempt's number.
        ranges: how many key-group ranges each of its stages has.
        key_groups: the number of key groups, which does not change either.
        partitions: what the session asks for now.

    >>> kept_ranges(1, ranges=128, key_groups=128, partitions=200)
    ''
    """
    if _count(key_groups, partitions) == ranges:
        return ""
    return (
        f"spark.sql.shuffle.partitions is {partitions}, but attempt {attempt} was begun with "
        f"{ranges} tasks for each micro-batch of a stage, and keeps them until a restore, as from "
        "the latest checkpoint"
    )


def _count(key_groups: int, partitions: int) -> int:
    return min(key_groups, partitions)
