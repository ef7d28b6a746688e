"""What the thread of a job does with its time: how much of it goes into events, and which ones.

All stages report to this one thread, so a job with many of them needs to know how close it is to
having no time left.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["EventTimes", "Occupation", "ThreadLoad"]

_WINDOW_S = 60


@dataclass(frozen=True, slots=True)
class EventTimes:
    """Of the events of one kind, since the start.

    Attributes:
        count: how many.
        total_ms: the time that they took.
        longest_ms: the time of the longest.
    """

    count: int = 0
    total_ms: float = 0.0
    longest_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class ThreadLoad:
    """What the thread of a job does with its time.

    Attributes:
        busy: the share of the last minute that went into events, 0 to 1. Near 1 the job has more
            stages than one driver can answer.
        waiting: events that wait for it now.
        most_waiting: the most that have waited since the start.
        events: by kind of event, and ``clock`` for what is done because its time has come.
    """

    busy: float = 0.0
    waiting: int = 0
    most_waiting: int = 0
    events: Mapping[str, EventTimes] = field(default_factory=dict)


class Occupation:
    """Written by the job's thread, read by any; times in seconds of a steady clock."""

    def __init__(self, now_s: float) -> None:
        """Begin to watch."""
        self._lock = threading.Lock()
        self._since = now_s
        self._events: dict[str, EventTimes] = {}
        self._most_waiting = 0
        # Of each second that had an event: which, and the time that events took.
        self._seconds: deque[tuple[int, float]] = deque()

    def took(self, kind: str, begin_s: float, end_s: float, waiting: int) -> None:
        """An event is done; so many more waited when it was taken."""
        took_s = end_s - begin_s
        with self._lock:
            before = self._events.get(kind, EventTimes())
            self._events[kind] = EventTimes(
                before.count + 1,
                before.total_ms + 1000 * took_s,
                max(before.longest_ms, 1000 * took_s),
            )
            self._most_waiting = max(self._most_waiting, waiting)
            second, spent = int(end_s), took_s
            if self._seconds and self._seconds[-1][0] == second:
                spent += self._seconds.pop()[1]
            self._seconds.append((second, spent))
            self._forget(end_s)

    def load(self, now_s: float, waiting: int) -> ThreadLoad:
        """What it has been doing."""
        with self._lock:
            self._forget(now_s)
            spent = sum(spent for _, spent in self._seconds)
            whole = min(now_s - self._since, _WINDOW_S)
            busy = min(spent / whole, 1.0) if whole > 0 else 0.0
            most = max(self._most_waiting, waiting)
            return ThreadLoad(busy, waiting, most, dict(self._events))

    def _forget(self, now_s: float) -> None:
        while self._seconds and self._seconds[0][0] < int(now_s) - _WINDOW_S:
            self._seconds.popleft()
