"""The wall clock, as every table of a job has it."""

from __future__ import annotations

import time

__all__ = ["now_ms"]


def now_ms() -> int:
    """The clock of this process, in ms since 1970, as a log has its times."""
    return round(time.time() * 1000)
