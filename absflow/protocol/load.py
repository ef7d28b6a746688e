"""How busy a stage is, and how far it is behind the stages before it.

Rules of this file: no Spark, no clock, no I/O; every time is given, in ms of one clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["WINDOW_MS", "Backlog", "Load", "Meter"]

WINDOW_MS = 60_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a stage has not read yet of one channel.

    Attributes:
        input: the stage whose channel it is.
        commits: commits of rows that it has not read, or not to their end.
        rows: unread rows.
        bytes: the sizes of their files.
        age_ms: how long ago the oldest of them was committed; 0 if there is none.
    """

    input: str
    commits: int = 0
    rows: int = 0
    bytes: int = 0
    age_ms: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """What a stage has been doing, and what it has still to do.

    Attributes:
        busy: the share of the last minute in which it ran micro-batches, 0 to 1 (Flink's
            ``busyTimeMsPerSecond``).
        backpressured: the share in which a micro-batch waited for the stage's consumers, 0 to 1
            (Flink's ``backPressuredTimeMsPerSecond``). The rest of the minute it was idle.
        backlogs: of each of its channels; None if a log could not be read.
    """

    busy: float = 0.0
    backpressured: float = 0.0
    backlogs: tuple[Backlog, ...] | None = ()


class Meter:
    """What one stage did within the last minute."""

    def __init__(self, now_ms: int) -> None:
        """Begin to watch."""
        self._since = now_ms
        self._batch = -1
        self._began: int | None = None
        self._waiting: int | None = None
        self._ran: deque[tuple[int, int]] = deque()
        self._waited: deque[tuple[int, int]] = deque()

    def began(self, batch_id: int, now_ms: int) -> None:
        """A micro-batch begins."""
        self._batch, self._began = batch_id, now_ms

    def waits(self, now_ms: int) -> None:
        """It begins to wait for the stage's consumers."""
        self._waiting = now_ms

    def goes_on(self, now_ms: int) -> None:
        """It waits no longer; said also if it did not wait."""
        if self._waiting is not None:
            self._waited.append((self._waiting, now_ms))
        self._waiting = None

    def done(self, batch_id: int, start_ms: int, end_ms: int) -> None:
        """A trigger is over; called when it is known, which may be behind the next one's begin."""
        self._ran.append((start_ms, end_ms))
        if batch_id == self._batch:
            self._began = None
        for spans in (self._ran, self._waited):
            while spans and spans[0][1] < end_ms - WINDOW_MS:
                spans.popleft()

    def died(self, now_ms: int) -> None:
        """The query has died, and its micro-batch with it."""
        self.goes_on(now_ms)
        if self._began is not None:
            self._ran.append((self._began, now_ms))
        self._began = None

    def shares(self, now_ms: int) -> tuple[float, float]:
        """The shares of the last minute that it was busy, and backpressured."""
        since = max(self._since, now_ms - WINDOW_MS)
        if now_ms <= since:
            return 0.0, 0.0

        def within(spans: Iterable[tuple[int, int]], opened: int | None) -> int:
            last = [] if opened is None else [(opened, now_ms)]
            every = [*spans, *last]
            return sum(max(0, min(end, now_ms) - max(start, since)) for start, end in every)

        waited = within(self._waited, self._waiting)
        ran = within(self._ran, self._began) - waited
        whole = now_ms - since
        return min(max(ran / whole, 0.0), 1.0), min(waited / whole, 1.0)
