"""Simulated time: processes are generators that yield how many ms they wait.

A process belongs to a life. When a life ends, its processes and those of every life that hangs on
it are never resumed, as if the machine had lost power between two of their steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator

__all__ = ["Clock", "Life", "Process"]

Process = Generator[int, None, None]


class Life:
    """How long a driver or a query lives; ends at most once, and with its parent."""

    def __init__(self, parent: Life | None = None) -> None:
        """Begin a life that hangs on ``parent``."""
        self._parent = parent
        self._ended = False

    @property
    def alive(self) -> bool:
        """Whether processes of this life still run."""
        return not self._ended and (self._parent is None or self._parent.alive)

    def end(self) -> None:
        """Never resume any process of this life again."""
        self._ended = True


class Clock:
    """The queue of processes; resumes them in the order of their times, then of their arrival."""

    def __init__(self) -> None:
        """Start at 0 ms with nothing to do."""
        self.now_ms = 0
        self._serial = 0
        self._queue: list[tuple[int, int, Life, Process]] = []

    def spawn(self, process: Process, life: Life, after_ms: int = 0) -> None:
        """Let ``process`` begin after ``after_ms``, if ``life`` has not ended by then."""
        self._serial += 1
        heapq.heappush(self._queue, (self.now_ms + after_ms, self._serial, life, process))

    def step(self) -> bool:
        """Resume the next process up to its next wait; False if there is none."""
        while self._queue:
            due_ms, _, life, process = heapq.heappop(self._queue)
            if not life.alive:
                continue
            self.now_ms = due_ms
            wait_ms = next(process, None)
            if wait_ms is not None:
                self.spawn(process, life, wait_ms)
            return True
        return False
