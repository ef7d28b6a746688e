"""The table of the benchmarks with a backlog; imports nothing, as Flink has its own environment."""

from __future__ import annotations

_NAMES = ("mode", "n", "median s", "most s", "batches", "in flight", "kB", "written", "expired")
_WIDTHS = (15, 3, 8, 8, 8, 9, 9, 9, 8)


def line(*cells: str) -> str:
    """A line of the table: a cell for each column, the first flush left."""
    first, *rest = zip(cells, _WIDTHS, strict=True)
    return " ".join([f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in rest)])


def head() -> str:
    """The names of the columns."""
    return line(*_NAMES)
