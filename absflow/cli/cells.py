"""How a terminal shows numbers, times and plain tables; nothing is read or printed here."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rich import box
from rich.table import Table
from rich.text import Text

__all__ = ["NONE", "count", "duration", "listed", "pairs", "size", "table", "time"]

NONE = "-"


def listed(what: str, sentences: Iterable[str], style: str = "") -> Table:
    """Sentences under a heading."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(overflow="fold", style=style)
    for line in sentences:
        grid.add_row("-", line)
    whole = Table.grid()
    whole.add_row(Text(what, f"bold {style}".strip()))
    whole.add_row(grid)
    return whole


def table(*columns: str) -> Table:
    """A table; ``>`` behind a name sets its column flush right and keeps it whole."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        if name.endswith(">"):
            made.add_column(name.rstrip(">"), justify="right", no_wrap=True)
        else:
            made.add_column(name, overflow="fold")
    return made


def pairs(lines: Iterable[tuple[str, str | Text]]) -> Table:
    """One line per name and value."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bright_black")
    grid.add_column(overflow="fold")
    for name, value in lines:
        grid.add_row(name, value)
    return grid


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
