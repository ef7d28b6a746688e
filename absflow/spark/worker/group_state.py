"""The ``GroupState`` of one key in one call, with Spark's rules for timeouts.

A timeout is a timer of absflow's. Spark says that a key has timed out when its timeout is *less*
than the watermark, or than the time of the batch, in whole milliseconds; a timer is due when its
time is not behind the watermark, in microseconds. So the timer of a timeout stands in the last
microsecond of its millisecond, which is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import Row, StructType

from absflow.columnar.process import Context
from absflow.protocol.event_time import from_datetime

__all__ = [
    "TIMEOUTS",
    "GroupStateOfKey",
    "spark_watermark_ms",
    "timeout_defaults",
    "timeout_timers",
]

TIMEOUTS = ("NoTimeout", "ProcessingTimeTimeout", "EventTimeTimeout")


def timeout_defaults(timeout: str) -> dict[str, object]:
    """What keys have that are restored from a state without timeouts: state, and no timeout."""
    return {} if timeout == GroupStateTimeout.NoTimeout else {"_exists": True, "_timeout_ms": None}


class GroupStateOfKey(GroupState):
    """The state of one key, during one call."""

    def __init__(
        self,
        value: Row | None,
        schema: StructType,
        context: Context,
        timeout: str,
        *,
        timed_out: bool = False,
    ) -> None:
        watermark = context.watermark
        super().__init__(
            optionalValue=value,  # type: ignore[arg-type]  # None is what Spark gives, too
            batchProcessingTimeMs=context.time_ms,
            eventTimeWatermarkMs=_NONE if watermark is None else spark_watermark_ms(watermark),
            timeoutConf=timeout,
            hasTimedOut=timed_out,
            # Spark has one from the first batch on, which is 0 then.
            watermarkPresent=context.timed,
            defined=value is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=_NONE,
            keyAsUnsafe=b"",
            valueSchema=schema,
        )
        if context.timed and watermark is None:
            self._event_time_watermark_ms = 0

    @property
    def value(self) -> Row:
        """What the key has from now on; of use if it was updated."""
        return self._value

    @property
    def updated(self) -> bool:
        """Whether ``update`` was called last."""
        return self._updated

    @property
    def removed(self) -> bool:
        """Whether ``remove`` was called last."""
        return self._removed

    def setTimeoutDuration(self, durationMs: int) -> None:
        """As Spark's; an error that says what to declare if keys do not time out so."""
        self._check_timeout("setTimeoutDuration", GroupStateTimeout.ProcessingTimeTimeout)
        super().setTimeoutDuration(durationMs)

    def setTimeoutTimestamp(self, timestampMs: int) -> None:
        """As Spark's; an error that says what to declare if keys do not time out so."""
        self._check_timeout("setTimeoutTimestamp", GroupStateTimeout.EventTimeTimeout)
        super().setTimeoutTimestamp(timestampMs)

    def getCurrentWatermarkMs(self) -> int:
        """As Spark's; an error that says what to declare if there is none."""
        if not self._watermark_present:
            raise ValueError(
                "getCurrentWatermarkMs was called, but no source of the stage has event time; "
                "declare source(..., event_time=...)"
            )
        return super().getCurrentWatermarkMs()

    def _check_timeout(self, called: str, wanted: str) -> None:
        if self._timeout_conf != wanted:
            raise ValueError(
                f"{called} was called, but the stage's keys do not time out so; declare "
                f'stage(..., timeout="{wanted}")'
            )

    @property
    def timeout_ms(self) -> int | None:
        """When the key times out; None if the call has set no timeout."""
        return None if self._timeout_timestamp == _NONE else int(self._timeout_timestamp)


_NONE = GroupState.NO_TIMESTAMP


def spark_watermark_ms(watermark: datetime) -> int:
    """A watermark as Spark says it: the least time that is not late, in whole ms."""
    return (from_datetime(watermark) + 1) // 1_000


def timeout_timers(keys: pa.Table, times_ms: Sequence[int | None], domain: str) -> pa.Table:
    """The timers of timeouts: due once the time is less than Spark's, which counts in ms."""
    times = pa.array([None if ms is None else ms * 1_000 + 999 for ms in times_ms], pa.int64())
    there = times.is_valid()
    rows = keys.filter(there)
    rows = rows.append_column("time", times.filter(there).cast(pa.timestamp("us", tz="UTC")))
    return rows.append_column("domain", pa.array([domain] * rows.num_rows, pa.string()))
