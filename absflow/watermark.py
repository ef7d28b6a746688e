"""How a source says how far its event time has come: what its author declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from absflow.columnar.event_time import LATE, RootTime
from absflow.errors import GraphError
from absflow.settings.values import duration_ms, duration_or_never

__all__ = ["Watermark", "declared_delay", "root_time"]

_KAFKA = ("topic", "partition")
# Options of Spark's Kafka source that have several tasks read one partition.
_SPLITTING = {"minpartitions", "maxrecordsperpartition"}
# An option of Delta's source on Databricks; the Delta that absflow runs on passes over it.
_IN_ORDER = "witheventtimeorder"


@dataclass(frozen=True, slots=True)
class Watermark:
    """The watermark of a source: no row with an event time up to it comes any more.

    It is counted for each partition of the source: the greatest event time that the partition has
    brought, less the delay. The source's is the least of its partitions', so one that lags loses no
    row. A row whose event time is at or before the watermark of its own partition
    is late.

    Attributes:
        delay: how much older than the newest row of its partition a row may be, as "10s".
        by: one or several columns whose values are a row's partition. None: of Kafka ``topic`` and
            ``partition``, if the frame has both; else the source is one partition.
        idle: a partition without a row for so long does not hold back the others, as "1min";
            "never" if it always does.
        late: what becomes of late rows: "table": they go to the table ``late/<source>`` under the
            storage root; "drop"; "process": to the function, which finds them in ``context.late``;
            "fail": the job fails. They are counted in every case.
    """

    delay: str = "0s"
    by: str | Sequence[str] | None = None
    idle: str = "never"
    late: str = "table"


def root_time(
    name: str,
    schema: pa.Schema,
    column: str | None,
    watermark: Watermark | None,
    *,
    bounded: bool,
    format: str,
    options: Sequence[str],
) -> RootTime | None:
    """What a source declares of event time, checked; None if it declares nothing.

    Args:
        name: the source.
        schema: its columns.
        column: the one with event times.
        watermark: how far they have come.
        bounded: the source ends.
        format: its short name.
        options: the names of its options, in lower case.

    Raises:
        GraphError: it cannot be so.
    """
    if column is None and watermark is None:
        return None
    if column is None:
        raise GraphError(
            f"source {name!r} has a watermark and no event time; say which column has it, "
            'source(..., event_time="...")'
        )
    _check_column(name, schema, column)
    if format == "delta" and _IN_ORDER in options:
        raise GraphError(
            f"source {name!r} has the option withEventTimeOrder, which this Delta does not know, "
            "and would pass over in silence; leave it out, and read the table's first snapshot in "
            "one micro-batch (a greater maxFilesPerTrigger), or its commits (startingVersion)"
        )
    declared = watermark or Watermark()
    idle_ms = _duration(name, "idle", declared.idle, duration_or_never)
    if idle_ms is not None and bounded:
        raise GraphError(
            f"source {name!r} is bounded, and its watermark has idle={declared.idle!r}: a bounded "
            "source is never idle, it ends; leave idle out"
        )
    if declared.late not in LATE:
        raise GraphError(f"source {name!r}: late is {declared.late!r}, must be one of {list(LATE)}")
    by = _partition_columns(name, schema, declared.by, format)
    one_task = format == "kafka" and by == _KAFKA and not _SPLITTING.intersection(options)
    delay = _duration(name, "delay", declared.delay, duration_ms)
    return RootTime(column, (delay or 0) * 1_000, by, one_task, idle_ms, declared.late)


def declared_delay(stage: str, delay: str) -> int:
    """How much older than its watermark the rows of a stage may be, in microseconds.

    Raises:
        GraphError: it is no duration.
    """
    try:
        return duration_ms(delay) * 1_000
    except (ValueError, AttributeError, TypeError) as error:
        raise GraphError(
            f"stage {stage!r}: its watermark_delay is {delay!r}, must be a duration such as 30s"
        ) from error


def _check_column(name: str, schema: pa.Schema, column: str) -> None:
    if column not in schema.names:
        raise GraphError(
            f"source {name!r} has no column {column!r} for its event time; it has {schema.names}"
        )
    if not pa.types.is_timestamp(schema.field(column).type):
        raise GraphError(
            f"source {name!r}: its event time {column!r} is a {schema.field(column).type}, but a "
            "timestamp is expected; cast it where the source is selected"
        )


def _duration(name: str, what: str, text: Any, parse: Callable[[str], int | None]) -> int | None:
    try:
        return parse(text)
    except (ValueError, AttributeError, TypeError) as expected:
        why = expected if isinstance(expected, ValueError) else "a duration such as 10s"
        raise GraphError(
            f"source {name!r}: {what} of its watermark is {text!r}, must be {why}"
        ) from expected


def _partition_columns(
    name: str, schema: pa.Schema, by: str | Sequence[str] | None, format: str
) -> tuple[str, ...]:
    if by is None:
        return _KAFKA if format == "kafka" and {*_KAFKA} <= {*schema.names} else ()
    columns = (by,) if isinstance(by, str) else tuple(by)
    missing = [column for column in columns if column not in schema.names]
    if missing:
        raise GraphError(
            f"source {name!r} has no column {missing[0]!r}, by which its watermark is counted; it "
            f"has {schema.names}"
        )
    return columns
