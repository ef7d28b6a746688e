"""Numbers and times as people read them."""

from __future__ import annotations

from datetime import datetime

__all__ = ["NONE", "PHASES", "count", "duration", "precise_time", "size", "time"]

NONE = "-"

# The phases of a stage in a checkpoint in the order of time, and what each is called.
PHASES = {
    "start_delay_ms": "start delay",
    "alignment_ms": "alignment",
    "sync_ms": "sync",
    "commit_ms": "commit",
    "async_ms": "async",
}


def time(moment: datetime) -> str:
    """To the second, without its zone."""
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def precise_time(moment: datetime) -> str:
    """As :func:`time`, to the microsecond."""
    return f"{moment:%Y-%m-%d %H:%M:%S.%f}"


def duration(ms: float | None) -> str:
    """In the unit that fits; None is none."""
    if ms is None:
        return NONE
    seconds = ms / 1000
    if seconds < 1:
        return f"{ms:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {round(seconds) % 60:02} s"
    hours = minutes // 60
    if hours < 48:
        return f"{hours} h {minutes % 60:02} min"
    return f"{hours // 24} d {hours % 24} h"


def count(number: int) -> str:
    """With thousands apart."""
    return f"{number:,}"


def size(number: int) -> str:
    """Bytes in the unit that fits."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.95 or unit == "GB":
            break
        value /= 1000
    return f"{number} B" if unit == "B" else f"{value:,.1f} {unit}"
