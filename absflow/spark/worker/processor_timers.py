"""The timers of a ``StatefulProcessor``, with Spark's rules, as timers of absflow.

A timer is a time in whole milliseconds, and fires when Spark's watermark, or the time of the
micro-batch, has come to it; a timeout of ``GroupState`` waits until it has passed. absflow's
watermark is a microsecond below Spark's, so a timer of event time stands a microsecond below its
own time. To set it twice is to set it once. The one that fires is listed until its handler is over,
and is gone then, though the handler has set it again (Spark's Python worker deletes it behind the
handler). One that is set for a time that has come already fires right behind the call that sets it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

import pyarrow as pa

from absflow.columnar.timers import Domain, Timers

__all__ = ["CallTimers", "timer_ms"]

_Times = dict[int, set[int]]


class CallTimers:
    """The timers of the keys of a call; keys by number, times in ms since 1970 (UTC)."""

    def __init__(self, pending: pa.ChunkedArray) -> None:
        """Those that wait before the call: a column of timers, one row for each key."""
        self._column = pending
        self._pending: list[set[int]] | None = None
        self._added: _Times = {}
        self._removed: _Times = {}
        self.firing: int | None = None

    def add(self, at: int, time_ms: object) -> None:
        """Set one."""
        time = operator.index(time_ms)  # type: ignore[arg-type]  # says so if it is no integer
        self._removed.get(at, set()).discard(time)
        if time != self.firing:
            self._added.setdefault(at, set()).add(time)

    def remove(self, at: int, time_ms: object) -> None:
        """Delete one; nothing happens if it is not there."""
        time = operator.index(time_ms)  # type: ignore[arg-type]
        self._added.get(at, set()).discard(time)
        self._removed.setdefault(at, set()).add(time)

    def of(self, at: int) -> list[int]:
        """Those of a key, in order."""
        firing = set() if self.firing is None else {self.firing}
        there = firing | self._waiting(at) | self._added.get(at, set())
        return sorted(there - self._removed.get(at, set()))

    def any_of(self, at: int) -> bool:
        """Whether a key has a timer behind the call."""
        left = self._waiting(at) - self._removed.get(at, set())
        return bool(left or self._added.get(at))

    def overdue(self, at: int, reached_ms: int) -> int | None:
        """Take the first of those that the call has set for a time that has come."""
        first = min(self._added.get(at, ()), default=None)
        if first is None or first > reached_ms:
            return None
        self._added[at].discard(first)
        return first

    def set_by_call(self, keys: pa.Table, domain: str) -> tuple[pa.Table | None, pa.Table | None]:
        """The timers that the call has set, and that it has deleted, as a result has them."""
        return _table(self._added, keys, domain), _table(self._removed, keys, domain)

    def _waiting(self, at: int) -> set[int]:
        if self._pending is None:
            timers = Timers.read(self._column)
            self._pending = [set() for _ in range(len(self._column))]
            for key, time in zip(timers.key.tolist(), timers.time.tolist(), strict=True):
                self._pending[key].add(timer_ms(time))
        return self._pending[at]


def timer_ms(time_us: int) -> int:
    """The time of a timer as its author has given it, of that at which it stands."""
    return (time_us + 1) // 1_000


def _table(times: Mapping[int, set[int]], keys: pa.Table, domain: str) -> pa.Table | None:
    pairs = [(at, time) for at, of_key in times.items() for time in sorted(of_key)]
    if not pairs:
        return None
    which, flat = zip(*pairs, strict=True)
    rows = keys.take(pa.array(which, pa.int64()))
    below = 1 if domain == Domain.EVENT.value else 0
    times_us = pa.array([time_ms * 1_000 - below for time_ms in flat], pa.int64())
    rows = rows.append_column("time", times_us.cast(pa.timestamp("us", tz="UTC")))
    return rows.append_column("domain", pa.array([domain] * len(flat), pa.string()))
