"""Pictures as SVG: a job's graph, its checkpoints, and where the time of one went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from absflow.drawing.html import escaped, shortened
from absflow.drawing.shapes import Box, Edge, graph, strip
from absflow.drawing.words import PHASES

__all__ = [
    "STRIP",
    "TIMELINE",
    "Bar",
    "Node",
    "bars_of",
    "graph_picture",
    "graph_shapes",
    "strip_picture",
    "timeline_picture",
]

# The sizes of a strip of checkpoints, and the width of a timeline, in units of their own.
STRIP = (1000.0, 120.0)
TIMELINE = 1000.0
_NODE, _GAP = (215.0, 64.0), (80.0, 18.0)


@dataclass(frozen=True, slots=True)
class Node:
    """A box of a graph.

    Attributes:
        box: where.
        kind: "source", "stage" or "sink".
        lines: what is said in it.
        busy: share of the last minute, 0 to 1; None if it is not known.
    """

    box: Box
    kind: str
    lines: tuple[str, ...] = ()
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """A checkpoint in a strip.

    Attributes:
        box: where.
        id: the checkpoint.
        kind: the class of its outcome: completed, aborted, pending, deleted or abandoned.
        savepoint: it is one.
        overtaken: it overtook rows.
        restored: an attempt begins with it.
        title: what is said of it.
    """

    box: Box
    id: int
    kind: str
    savepoint: bool
    overtaken: bool
    restored: bool
    title: str


def graph_shapes(
    inputs: Mapping[str, Sequence[str]],
) -> tuple[list[Box], list[Edge], tuple[float, float]]:
    """Where the boxes of a graph are, its edges, and how large it is.

    Args:
        inputs: of each node the names of those that it reads from.
    """
    boxes, edges = graph(inputs, _NODE, _GAP)
    width = max((box.x + box.width for box in boxes), default=0.0)
    height = max((box.y + box.height for box in boxes), default=0.0)
    return boxes, edges, (width, height)


def graph_picture(
    nodes: Sequence[Node], edges: Sequence[tuple[Edge, str]], size: tuple[float, float]
) -> str:
    """A graph.

    Args:
        nodes: its boxes.
        edges: its edges, each with what is unread on it.
        size: of all.
    """
    parts = [_edge(edge, text) for edge, text in edges]
    parts += [_node(node) for node in nodes]
    parts += [
        f'<text class="unread" x="{edge.x:g}" y="{edge.y - 5:g}">{escaped(text)}</text>'
        for edge, text in edges
        if text
    ]
    return (
        f'<svg viewBox="0 0 {size[0] + 4:g} {size[1] + 4:g}" style="max-width: '
        f'{size[0] * 1.3:.0f}px" role="img" aria-label="graph of the job">'
        f'<g transform="translate(2 2)">{"".join(parts)}</g></svg>'
    )


def _edge(edge: Edge, text: str) -> str:
    said = f"{edge.source} to {edge.target}" + (f": unread {text}" if text else "")
    return f'<path class="edge" d="{edge.path}"><title>{escaped(said)}</title></path>'


def _node(node: Node) -> str:
    box = node.box
    parts = [
        f"<title>{escaped(box.name)}</title>",
        f'<rect class="node {node.kind}" width="{box.width:g}" height="{box.height:g}" rx="6"/>',
    ]
    if node.busy is not None:
        wide = box.width * min(node.busy, 1)
        parts.append(f'<rect class="busy" y="{box.height - 5:g}" width="{wide:.1f}" height="5"/>')
    parts.append(f'<text x="9" y="20" class="name">{escaped(shortened(box.name, 24))}</text>')
    parts += [
        f'<text x="9" y="{36 + 15 * n}">{escaped(shortened(line, 32))}</text>'
        for n, line in enumerate(node.lines)
    ]
    return f'<g transform="translate({box.x:g} {box.y:g})">{"".join(parts)}</g>'


def strip_picture(bars: Sequence[Bar], links: Mapping[int, str] | None = None) -> str:
    """A bar for each checkpoint.

    Args:
        bars: the bars.
        links: where each leads to, by id; None if nowhere.
    """
    width, height = STRIP
    return (
        f'<svg class="strip" viewBox="0 -12 {width:g} {height + 12:g}" preserveAspectRatio="none" '
        f'aria-hidden="true">{"".join(_bar(bar, links) for bar in bars)}</svg>'
    )


def _bar(bar: Bar, links: Mapping[int, str] | None) -> str:
    box, height = bar.box, STRIP[1]
    x, wide = f'x="{box.x:.2f}"', f'width="{box.width:.2f}"'
    parts = [f"<title>{escaped(bar.title)}</title>"]
    if bar.restored:
        at = f"{box.x:g}"
        parts.append(f'<line class="restored" x1="{at}" x2="{at}" y1="-12" y2="{height:g}"/>')
    parts.append(f'<rect class="reach" {x} y="0" {wide} height="{height:g}"/>')
    parts.append(f'<rect class="{bar.kind}" {x} y="{box.y:.1f}" {wide} height="{box.height:.1f}"/>')
    if bar.savepoint:
        parts.append(f'<rect class="savepoint" {x} y="-11" {wide} height="4"/>')
    if bar.overtaken:
        parts.append(f'<rect class="overtaken" {x} y="-5" {wide} height="3"/>')
    if links is None:
        return f"<g>{''.join(parts)}</g>"
    return f'<a href="{escaped(links[bar.id])}" tabindex="-1">{"".join(parts)}</a>'


def timeline_picture(boxes: Sequence[Box], texts: Mapping[str, str]) -> str:
    """The phases of a stage behind each other.

    Args:
        boxes: a box for each phase, named by it.
        texts: how long each phase was.
    """
    parts = (
        f'<rect class="{box.name}" x="{box.x:.1f}" width="{max(box.width, 2):.1f}" height="1">'
        f"<title>{escaped(PHASES[box.name])} {escaped(texts[box.name])}</title></rect>"
        for box in boxes
    )
    return (
        f'<svg viewBox="0 0 {TIMELINE:g} 1" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(parts)}</svg>"
    )


def bars_of(durations_ms: Sequence[float]) -> list[Box]:
    """Where the bars of a strip are."""
    return strip(durations_ms, *STRIP)
