"""From what was read to what the page says. Nothing is read here, and no HTML is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

from absflow.cli import cells
from absflow.cli.records import StatusRecord
from absflow.cli.report.detail import detail_of
from absflow.cli.report.model import AttemptLine, Page, Trend
from absflow.drawing.pictures import Bar, Node, bars_of, graph_shapes
from absflow.drawing.shapes import Box, Edge, line
from absflow.facts.listing import HistoryRecord, bar_lengths
from absflow.facts.records import CheckpointRecord
from absflow.protocol.checkpoints import StageManifest, Status, own_reports
from absflow.protocol.event_time import to_datetime

__all__ = ["TREND", "page_of"]

_Text = Callable[[float], str]
TREND = (480.0, 110.0)


def page_of(
    status: StatusRecord,
    history: HistoryRecord,
    inputs: Mapping[str, Sequence[str]],
    attempts: Sequence[AttemptLine],
    storage: Sequence[tuple[str, int, int]],
    stays: Sequence[str],
    now: datetime,
) -> Page:
    """Put together what was read.

    Args:
        status: how the job is.
        history: the checkpoints to show.
        inputs: of each stage what it reads from.
        attempts: all of them; their counts are made here.
        storage: of each table its name, files and bytes.
        stays: why things stay.
        now: when all this was read.
    """
    shown = history.shown
    completed = [r for r in shown if r.status is Status.COMPLETED]
    nodes, edges, size = _graph(status.last, inputs)
    previous = {later.checkpoint_id: earlier for earlier, later in pairwise(completed)}
    last, ids = status.last, [r.checkpoint_id for r in shown]
    return Page(
        root=status.root,
        made=now.isoformat(timespec="seconds"),
        head=_head(status),
        last_ended=last.ended_at.isoformat() if last and last.ended_at else "",
        last_age=cells.duration(status.age_ms(now)),
        counts={s.value.lower(): history.counts.get(s, 0) for s in Status},
        nodes=nodes,
        edges=edges,
        graph_size=size,
        bars=_bars(shown, attempts),
        details=tuple(detail_of(r, previous.get(r.checkpoint_id)) for r in reversed(shown)),
        chosen=last.checkpoint_id if last and last.checkpoint_id in ids else 0,
        trends=_trends(completed),
        late=_late(completed),
        sinks=_sinks(status),
        attempts=tuple(_counted(a, shown) for a in attempts),
        storage=tuple((n, cells.count(f), cells.size(b)) for n, f, b in storage),
        stays=tuple(stays),
    )


def _head(status: StatusRecord) -> tuple[tuple[str, str], ...]:
    origin = f", restored from {status.origin}" if status.origin else ""
    lines = [
        ("driver", f"{status.incarnation}, which has {status.end or 'not ended'}"),
        ("attempt", f"{status.attempt}{origin}"),
        ("pending", ", ".join(r.title for r in status.pending) or "none"),
        ("aborted since", cells.count(len(status.aborted))),
    ]
    if status.failing:
        lines.append(("retention fails", cells.count(len(status.failing))))
    if status.last is not None and status.last.versions:
        lines.append(("versions", ", ".join(f"{n} {v}" for n, v in status.last.versions.items())))
    return tuple(lines)


def _graph(
    last: CheckpointRecord | None, inputs: Mapping[str, Sequence[str]]
) -> tuple[tuple[Node, ...], tuple[tuple[Edge, str], ...], tuple[float, float]]:
    boxes, edges, size = graph_shapes(inputs)
    stages = {s.report.stage: s for s in last.stages} if last else {}
    nodes = tuple(_node(box, box.name not in inputs, stages.get(box.name)) for box in boxes)
    texts = tuple((edge, _unread(edge, stages.get(edge.target))) for edge in edges)
    return nodes, texts, size


def _node(box: Box, source: bool, stage: StageManifest | None) -> Node:
    if source or stage is None:
        return Node(box, "source" if source else "stage")
    report, load = stage.report, stage.load
    lines = [f"{cells.count(report.keys_total)} keys, {cells.size(report.bytes_total)}"]
    if report.time is not None and (reached := to_datetime(report.time.stage.value)) is not None:
        lines.append(f"watermark {cells.time(reached)}")
    return Node(box, "stage", tuple(lines), None if load is None else load.busy)


def _unread(edge: Edge, stage: StageManifest | None) -> str:
    backlogs = (stage.load.backlogs or ()) if stage is not None and stage.load else ()
    found = next((b for b in backlogs if b.input == edge.source), None)
    if found is None or not found.rows:
        return ""
    return f"{cells.count(found.rows)} rows, {cells.duration(found.age_ms)}"


def _bars(shown: Sequence[CheckpointRecord], attempts: Sequence[AttemptLine]) -> tuple[Bar, ...]:
    boxes = bars_of(bar_lengths(shown))
    first: dict[int, int] = {}
    for record in shown:
        first.setdefault(record.attempt, record.checkpoint_id)
    begun = {first[a.attempt] for a in attempts if a.origin and a.attempt in first}
    return tuple(
        r.bar(box, restored=r.checkpoint_id in begun) for box, r in zip(boxes, shown, strict=True)
    )


def _trends(completed: Sequence[CheckpointRecord]) -> tuple[Trend, ...]:
    def total(record: CheckpointRecord, field: str) -> float:
        return float(sum(getattr(stage.report, field) for stage in record.stages))

    made = [
        _trend("duration", [_number(r.duration_ms) for r in completed], cells.duration),
        _trend("state", [total(r, "bytes_total") for r in completed], _size),
        _trend("keys", [total(r, "keys_total") for r in completed], _count),
        _trend("bytes changed", [total(r, "bytes_changed") for r in completed], _size),
        _trend("longest alignment", [_most(r, "alignment_ms") for r in completed], cells.duration),
        _trend("unread rows", [_backlog(r) for r in completed], _count),
    ]
    return tuple(made) if completed else ()


def _trend(name: str, values: Sequence[float | None], text: _Text) -> Trend:
    found = line(values, *TREND)
    newest = values[-1] if values else None
    shown = tuple((text(value), y) for value, y in found.ticks)
    return Trend(name, found, shown, cells.NONE if newest is None else text(newest))


def _count(value: float) -> str:
    return cells.count(round(value))


def _size(value: float) -> str:
    return cells.size(round(value))


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)


def _most(record: CheckpointRecord, field: str) -> float:
    return float(max((getattr(stage.report, field) for stage in record.stages), default=0))


def _backlog(record: CheckpointRecord) -> float | None:
    loads = [stage.load for stage in record.stages if stage.load is not None]
    if not loads or any(load.backlogs is None for load in loads):
        return None
    return float(sum(b.rows for load in loads for b in load.backlogs or ()))


def _late(completed: Sequence[CheckpointRecord]) -> tuple[tuple[str, str], ...]:
    counts: dict[str, int] = {}
    for record in completed:
        for report in own_reports(record.checkpoint_id, record.stages):
            counts[report.stage] = counts.get(report.stage, 0) + report.late_rows
    return tuple((stage, cells.count(count)) for stage, count in counts.items() if count)


def _sinks(status: StatusRecord) -> tuple[tuple[str, str, str], ...]:
    newest = status.completed_id
    return tuple(
        (
            name,
            f"checkpoint {published}" if published else "nothing yet",
            "nothing" if published >= newest else f"what came up to checkpoint {newest}",
        )
        for name, published in status.sinks.items()
    )


def _counted(given: AttemptLine, shown: Sequence[CheckpointRecord]) -> AttemptLine:
    counts: dict[str, int] = {}
    for record in shown:
        if record.attempt == given.attempt:
            status = record.status.value.lower()
            counts[status] = counts.get(status, 0) + 1
    return replace(given, counts=counts)
