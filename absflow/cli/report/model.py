"""What the page says, as plain values that its template places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from absflow.drawing.checkpoint import ShownStage
from absflow.drawing.pictures import Bar, Node
from absflow.drawing.shapes import Edge, Line

__all__ = [
    "INPUT_COLUMNS",
    "STAGE_COLUMNS",
    "AttemptLine",
    "Detail",
    "Page",
    "Trend",
]


@dataclass(frozen=True, slots=True)
class AttemptLine:
    """An attempt of the job.

    Attributes:
        attempt: its number.
        started: when, as a text; "" if that is not known.
        origin: the checkpoint it was restored from, in words; "" if it began with nothing.
        counts: how many checkpoints of those shown it has, by status.
    """

    attempt: int
    started: str
    origin: str
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Detail:
    """All of a checkpoint.

    Attributes:
        id: the checkpoint.
        title: what people call it.
        facts: names and values.
        timeline: the stages that took part; empty unless it is completed.
        duration_ms: how long it took; None if it is pending.
        stages: of each stage its cells (:data:`STAGE_COLUMNS`).
        inputs: of each input its cells (:data:`INPUT_COLUMNS`).
        changes: what differs from the completed checkpoint before, in sentences.
    """

    id: int
    title: str
    facts: tuple[tuple[str, str], ...]
    timeline: tuple[ShownStage, ...]
    duration_ms: int | None
    stages: tuple[tuple[str, ...], ...]
    inputs: tuple[tuple[str, ...], ...]
    changes: tuple[str, ...]


STAGE_COLUMNS = (
    "stage",
    "keys changed",
    "keys",
    "bytes changed",
    "state",
    "rows held",
    "in flight",
    "late rows",
    "watermark (UTC)",
    "held back by",
)
INPUT_COLUMNS = ("stage", "input", "unread rows", "unread bytes", "oldest", "position")


@dataclass(frozen=True, slots=True)
class Trend:
    """A line over the completed checkpoints that are shown.

    Attributes:
        name: what of.
        line: where.
        ticks: texts and their y.
        newest: the last value, as a text.
    """

    name: str
    line: Line
    ticks: tuple[tuple[str, float], ...]
    newest: str


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page.

    Attributes:
        root: the storage root.
        made: when, in ISO 8601.
        head: names and values, the age of the newest completed checkpoint first.
        last_ended: when that was, in ISO 8601; "" without any.
        last_age: how long ago.
        counts: how many checkpoints ended how.
        nodes: of the graph.
        edges: of it, each with a text.
        graph_size: of it.
        bars: the strip.
        details: of each checkpoint in the strip, the newest first.
        chosen: the one that is shown before any is chosen; 0 if there is none.
        trends: lines.
        late: late rows by stage, if there were any.
        sinks: each on-checkpoint sink, its newest checkpoint, and how many it is behind.
        attempts: the attempts.
        storage: tables and their sizes.
        stays: why retention keeps what it keeps.
    """

    root: str
    made: str
    head: tuple[tuple[str, str], ...]
    last_ended: str
    last_age: str
    counts: Mapping[str, int]
    nodes: tuple[Node, ...]
    edges: tuple[tuple[Edge, str], ...]
    graph_size: tuple[float, float]
    bars: tuple[Bar, ...]
    details: tuple[Detail, ...]
    chosen: int
    trends: tuple[Trend, ...]
    late: tuple[tuple[str, str], ...]
    sinks: tuple[tuple[str, str, str], ...]
    attempts: tuple[AttemptLine, ...]
    storage: tuple[tuple[str, str, str], ...]
    stays: tuple[str, ...]
