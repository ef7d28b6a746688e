"""The two clocks: the wall clock, as every table has it, and one by which things are due."""

from __future__ import annotations

import time

__all__ = ["now_ms", "steady_ms"]


def now_ms() -> int:
    """The clock of this process, in ms since 1970, as a log has its times."""
    return round(time.time() * 1000)


def steady_ms() -> int:
    """A clock that nobody sets, in ms since any time; for timeouts, pauses and durations."""
    return round(time.monotonic() * 1000)
