"""How a terminal shows numbers, times and plain tables; nothing is read or printed here."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.table import Table
from rich.text import Text

from absflow.drawing.words import NONE, count, duration, precise_time, size, time

__all__ = [
    "NONE",
    "count",
    "duration",
    "listed",
    "pairs",
    "precise_time",
    "size",
    "table",
    "time",
]


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
