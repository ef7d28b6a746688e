"""The timers of a ``StatefulProcessor``, with Spark's rules, as timers of absflow.

A timer is a time in whole milliseconds, and fires when that is *less* than the watermark, or than
the time of the micro-batch: so it stands in the last microsecond of its millisecond, as a timeout
does. To set it twice is to set it once. The one that fires is listed until its handler is over, and
is gone then, though the handler has set it again (Spark's Python worker deletes it behind the
handler). One that is set for a time that has come already fires right behind the call that sets it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

import pyarrow as pa

from absflow.columnar.timers import Timers
from absflow.spark.worker.group_state import timeout_timers

__all__ = ["CallTimers"]

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

    def overdue(self, at: int, before_ms: int) -> int | None:
        """Take the first of those that the call has set for a time before another."""
        first = min(self._added.get(at, ()), default=before_ms)
        if first >= before_ms:
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
                self._pending[key].add(time // 1_000)
        return self._pending[at]


def _table(times: Mapping[int, set[int]], keys: pa.Table, domain: str) -> pa.Table | None:
    pairs = [(at, time) for at, of_key in times.items() for time in sorted(of_key)]
    if not pairs:
        return None
    which, flat = zip(*pairs, strict=True)
    return timeout_timers(keys.take(pa.array(which, pa.int64())), flat, domain)
