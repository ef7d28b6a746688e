"""What a start asks for and does not get, because its attempt keeps what it was begun with."""

from __future__ import annotations

__all__ = ["kept_ranges"]


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
    if min(partitions, key_groups) == ranges:
        return ""
    return (
        f"spark.sql.shuffle.partitions is {partitions}, but attempt {attempt} was begun with "
        f"{ranges} tasks for each micro-batch of a stage, and keeps them until a restore, as from "
        "the latest checkpoint"
    )
