"""Event time at a source: which of its rows are late, and the watermark behind them.

Rules of this file: no Spark, no clock, no I/O; times are integers, microseconds since 1970 (UTC).

A source has partitions, each of them in an order of its own (Kafka's partitions; one, if nothing
else is said). The watermark of a partition is the greatest event time that it has brought, less a
delay and the least unit of time (Flink's ``BoundedOutOfOrdernessWatermarks``); that of the source
is the least of its partitions', so one that lags loses no row. A partition that is known and has
brought nothing yet counts (FLINK-32828).

Whether a row is late is decided here and once, by the rows before it in its own partition. So the
verdict does not depend on where micro-batches begin, nor on other partitions; and a row that is on
time here is nowhere late: no watermark behind it can have been admitted before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from absflow.protocol.watermarks import InputTime, WatermarkStatus, combined, later

__all__ = [
    "SourceTime",
    "input_time",
    "observe",
    "partition_status",
    "start_source",
    "watermark_of",
]


@dataclass(frozen=True, slots=True)
class SourceTime:
    """How far a source has come.

    Attributes:
        delay: how much older than the newest row of its partition a row may be, microseconds.
        newest: of each partition that is known, the greatest event time; None before its first row.
        idle: the partitions that are idle.
    """

    delay: int
    newest: Mapping[str, int | None]
    idle: frozenset[str] = frozenset()


def start_source(delay: int, partitions: Iterable[str]) -> SourceTime:
    """A source that has brought nothing."""
    return SourceTime(delay, dict.fromkeys(partitions))


def observe(
    source: SourceTime, partition: str, times: Sequence[int]
) -> tuple[SourceTime, list[bool]]:
    """The next rows of a partition.

    Args:
        source: before them.
        partition: theirs; one that was not known is from now on.
        times: their event times, in the partition's order.

    Returns:
        The source behind them, and of each row whether it is late.
    """
    newest = source.newest.get(partition)
    late = []
    for time in times:
        bound = watermark_of(source.delay, newest)
        late.append(bound is not None and time <= bound)
        newest = later(newest, time)
    idle = source.idle - {partition} if times else source.idle
    return replace(source, newest={**source.newest, partition: newest}, idle=idle), late


def partition_status(source: SourceTime, idle: Iterable[str]) -> SourceTime:
    """Exactly these partitions are idle."""
    return replace(source, idle=frozenset(idle))


def watermark_of(delay: int, newest: int | None) -> int | None:
    """The watermark behind a row with the greatest event time of its partition."""
    return None if newest is None else newest - delay - 1


def input_time(source: SourceTime) -> InputTime:
    """The watermark and the status of the whole source."""
    partitions = [
        InputTime(
            watermark_of(source.delay, newest),
            WatermarkStatus.IDLE if name in source.idle else WatermarkStatus.ACTIVE,
        )
        for name, newest in source.newest.items()
    ]
    # One of which nothing is known has yet to say something.
    idle = bool(partitions) and all(p.status is WatermarkStatus.IDLE for p in partitions)
    return InputTime(combined(partitions), WatermarkStatus.IDLE if idle else WatermarkStatus.ACTIVE)
