"""Where the shapes of pictures are; numbers in, numbers out.

All pictures are drawn in units of their own (SVG's ``viewBox``), y downwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Box", "Edge", "Line", "graph", "line", "side_by_side", "strip", "ticks"]

_STEPS = (1, 2, 5, 10, 20)


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle.

    Attributes:
        name: of what it shows.
        x: its left side.
        y: its upper side.
        width: in the same units.
        height: in the same units.
    """

    name: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Edge:
    """A line from the right side of one box to the left side of another.

    Attributes:
        source: the name of the first.
        target: the name of the second.
        path: of SVG.
        x: the middle.
        y: the middle.
    """

    source: str
    target: str
    path: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points, with a scale.

    Attributes:
        points: as SVG's ``polyline`` has them; one text for each part without a gap.
        ticks: values of the scale and their y.
    """

    points: tuple[str, ...]
    ticks: tuple[tuple[float, float], ...]


def ticks(most: float, count: int = 3) -> tuple[float, ...]:
    """Round numbers from 0 to the first that is not below ``most``, about so many steps.

    >>> ticks(0.7), ticks(230), ticks(0)
    ((0.0, 0.5, 1.0), (0.0, 100.0, 200.0, 300.0), (0.0, 1.0))
    """
    if most < 1e-9:
        return (0.0, 1.0)
    power = 10.0 ** math.floor(math.log10(most / count))
    step = next(s * power for s in _STEPS if s * power >= most / count)
    return tuple(number * step for number in range(math.ceil(most / step) + 1))


def strip(values: Sequence[float], width: float, height: float) -> list[Box]:
    """A bar for each value, side by side; the largest is as high as the strip.

    Even one of nothing is seen.
    """
    most, each = max([*values, 1e-9]), width / max(len(values), 1)
    made = []
    for number, value in enumerate(values):
        high = max(height * value / most, min(3.0, height))
        box = Box(str(number), number * each, height - high, max(each * 0.85, 0.5), high)
        made.append(box)
    return made


def side_by_side(parts: Mapping[str, float], whole: float, width: float) -> list[Box]:
    """The parts behind each other, to a scale at which ``whole`` is so wide; none of nothing."""
    made, at = [], 0.0
    for name, part in parts.items():
        wide = width * part / max(whole, 1e-9)
        if part > 0:
            made.append(Box(name, at, 0, wide, 1))
        at += wide
    return made


def line(values: Sequence[float | None], width: float, height: float) -> Line:
    """A line through the values, evenly apart; None is a gap."""
    scale = ticks(max([value for value in values if value is not None], default=0))
    step = width / max(len(values) - 1, 1)
    parts: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            parts.append([])
        else:
            y = height - height * value / scale[-1]
            parts[-1].append(f"{number * step:.1f},{y:.1f}")
    # A point alone has no length; it is drawn by the round end of a line.
    points = tuple(" ".join(part * 2 if len(part) == 1 else part) for part in parts if part)
    return Line(points, tuple((value, height - height * value / scale[-1]) for value in scale))


def graph(
    inputs: Mapping[str, Sequence[str]], size: tuple[float, float], gap: tuple[float, float]
) -> tuple[list[Box], list[Edge]]:
    """Boxes in columns from left to right, so that each is right of all it reads from.

    Args:
        inputs: of each node the names of those that it reads from; what is no node is one without
            inputs.
        size: of a box.
        gap: between the columns, and between boxes of one.
    """
    nodes = (name for given in inputs.values() for name in given)
    before: dict[str, Sequence[str]] = {**dict.fromkeys(nodes, ()), **inputs}
    column: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in column:
            column[name] = 1 + max((depth(each) for each in before[name]), default=-1)
        return column[name]

    rows: dict[int, int] = {}
    boxes = {}
    for name in sorted(before, key=depth):
        row = rows.setdefault(column[name], 0)
        rows[column[name]] += 1
        x, y = (size[0] + gap[0]) * column[name], (size[1] + gap[1]) * row
        boxes[name] = Box(name, x, y, *size)
    edges = []
    for target, given in before.items():
        for source in given:
            a, b = boxes[source], boxes[target]
            x0, y0, x1, y1 = a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2
            bend = gap[0] / 2
            path = f"M{x0:g},{y0:g} C{x0 + bend:g},{y0:g} {x1 - bend:g},{y1:g} {x1:g},{y1:g}"
            edges.append(Edge(source, target, path, (x0 + x1) / 2, (y0 + y1) / 2))
    return [*boxes.values()], edges
