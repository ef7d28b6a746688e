"""Records as tables for a terminal; nothing is read or printed here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import pyarrow as pa
from rich.table import Table
from rich.text import Text

from absflow.cli import cells
from absflow.cli.documents import cell, summary
from absflow.cli.records import DeletionRecord, StateRecord
from absflow.drawing.words import PHASES
from absflow.facts.listing import HistoryRecord
from absflow.facts.records import CheckpointRecord
from absflow.facts.stages import sentence_of
from absflow.protocol.checkpoints import Kind, StageManifest, StageReport, Status, own_reports
from absflow.protocol.event_time import holding_back, to_datetime
from absflow.protocol.load import Backlog
from absflow.protocol.retention.inventory import sentence

__all__ = [
    "deletion",
    "head",
    "history",
    "loads",
    "phases",
    "plan",
    "positions",
    "size_cells",
    "sizes",
    "state",
    "summary_line",
    "times",
    "watermarks",
]

_STYLES = {
    Status.COMPLETED: "green",
    Status.ABORTED: "red",
    Status.PENDING: "yellow",
    Status.DELETED: "bright_black",
}
# Of each phase of a stage its sign in the bar, and its colour.
_SIGNS = {
    "start_delay_ms": (".", "bright_black"),
    "alignment_ms": ("=", "yellow"),
    "sync_ms": ("#", "red"),
    "commit_ms": ("+", "blue"),
    "async_ms": ("~", "cyan"),
}
_BAR_WIDTH = 60


def history(records: Iterable[CheckpointRecord]) -> Table:
    """One line per checkpoint."""
    table = cells.table("id>")
    table.add_column("status", no_wrap=True)
    names = ("at-\ntempt", "triggered (UTC)", "duration", "rows\nchanged", "bytes\nchanged")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("notes", overflow="fold")
    for record in records:
        done = record.status is Status.COMPLETED
        table.add_row(
            str(record.checkpoint_id),
            Text(record.status.value, _STYLES[record.status]),
            str(record.attempt),
            cells.time(record.triggered_at),
            cells.duration(record.duration_ms),
            cells.count(record.rows_changed) if done else cells.NONE,
            cells.size(record.bytes_changed) if done else cells.NONE,
            "\n".join(_notes(record)),
        )
    return table


def _notes(record: CheckpointRecord) -> Iterator[str]:
    if record.kind is Kind.SAVEPOINT:
        yield "savepoint"
    if record.abandoned:
        yield "abandoned"
    if record.reason:
        yield record.reason


def summary_line(history: HistoryRecord) -> str:
    """Counts and the median duration; says so if fewer than all are shown."""
    numbers = summary(history)
    names = ["completed", "aborted", "pending", *(["deleted"] if numbers["deleted"] else [])]
    line = ", ".join(f"{cells.count(numbers[name])} {name}" for name in names)
    middle = numbers["median_duration_ms"]
    line += f"; median duration {cells.duration(middle)}" if middle is not None else ""
    shown = len(history.shown)
    return line + (f" (the newest {shown} shown)" if shown < history.total else "")


def head(record: CheckpointRecord) -> Table:
    """What is said of the checkpoint as a whole."""
    base = "full snapshots" if record.base_id == 0 else f"changes since {record.base_id}"
    lines: list[tuple[str, str | Text]] = [
        (record.kind.value.lower(), str(record.checkpoint_id)),
        ("status", Text(record.status.value, _STYLES[record.status])),
        ("base", base),
        ("attempt", str(record.attempt)),
        ("triggered", f"{cells.time(record.triggered_at)} UTC"),
    ]
    if record.ended_at is not None:
        ended = f"{cells.time(record.ended_at)} UTC, after {cells.duration(record.duration_ms)}"
        lines.append((record.status.value.lower(), ended))
    if record.reason:
        why = sentence_of(record.reason)
        lines.append(("reason", f"{record.reason}: {why}" if why else record.reason))
    if record.abandoned:
        lines.append(("abandoned", "by a restore to an older one; latest never means it"))
    if record.cause:
        lines.append(("cause", record.cause))
    if record.versions:
        versions = ", ".join(f"{name} {value}" for name, value in record.versions.items())
        lines.append(("versions", versions))
    return cells.pairs(lines)


def sizes(record: CheckpointRecord) -> Table:
    """One line per stage: what its snapshot wrote, what its state is, and what it held at most.

    And what was in flight to it, if the checkpoint has overtaken anything.
    """
    table = cells.table(
        "stage", "rows\nchanged>", "rows\ntotal>", "bytes\nchanged>", "bytes\ntotal>"
    )
    table.add_column("held while\naligning", justify="right", no_wrap=True)
    overtaken = any(stage.in_flight for stage in record.stages)
    if overtaken:
        table.add_column("in flight\nto it", justify="right", no_wrap=True)
    for stage in record.stages:
        report = stage.report
        own = report.checkpoint_id == record.checkpoint_id
        held = f"{cells.count(report.held_rows)}, {cells.size(report.held_bytes)}"
        table.add_row(
            *size_cells(report, record.checkpoint_id),
            held if own and report.held_rows else cells.NONE,
            *([_in_flight(stage)] if overtaken else []),
        )
    return table


def size_cells(report: StageReport, checkpoint_id: int) -> tuple[str, ...]:
    """A stage, what its snapshot at a checkpoint wrote, and what its state is: rows, then bytes."""
    own = report.checkpoint_id == checkpoint_id
    return (
        report.stage if own else f"{report.stage} (ended, as of {report.checkpoint_id})",
        cells.count(report.rows_changed) if own else cells.NONE,
        cells.count(report.keys_total),
        cells.size(report.bytes_changed) if own else cells.NONE,
        cells.size(report.bytes_total),
    )


def _in_flight(stage: StageManifest) -> str:
    rows, size = (sum(getattr(s, name) for s in stage.in_flight) for name in ("rows", "bytes"))
    return f"{cells.count(rows)}, {cells.size(size)}" if rows else cells.NONE


def times(record: CheckpointRecord) -> Table:
    """One line per stage that took part: how long each of its phases was."""
    table = cells.table("stage", *(f"{name}>" for name in PHASES.values()))
    for report in own_reports(record.checkpoint_id, record.stages):
        table.add_row(report.stage, *(cells.duration(getattr(report, field)) for field in PHASES))
    return table


def watermarks(record: CheckpointRecord) -> Table:
    """One line per stage with event time: how far it has come, and what holds it there."""
    table = cells.table("stage", "watermark (UTC)", "held back by", "late rows>", "emitted\nlate>")
    for stage in record.stages:
        time = stage.report.time
        if time is not None:
            reached = to_datetime(time.stage.value)
            table.add_row(
                stage.report.stage,
                cells.NONE if reached is None else cells.precise_time(reached),
                holding_back(time) or cells.NONE,
                cells.count(stage.report.late_rows),
                cells.count(stage.report.late_emitted),
            )
    return table


def loads(record: CheckpointRecord) -> Table:
    """How busy each stage was, and one line per channel that it reads: what it had not read."""
    table = cells.table("stage", "busy>", "waited for\nconsumers>", "unread of")
    for name in ("commits", "rows", "bytes", "oldest"):
        table.add_column(name, justify="right", no_wrap=True)
    for stage in record.stages:
        load = stage.load
        if load is None or stage.report.checkpoint_id != record.checkpoint_id:
            continue
        shares = (f"{load.busy:.0%}", f"{load.backpressured:.0%}")
        lines = [_backlog(backlog) for backlog in load.backlogs or ()]
        first, *rest = lines or [[cells.NONE if load.backlogs == () else "not known"]]
        table.add_row(stage.report.stage, *shares, *first)
        for line in rest:
            table.add_row("", "", "", *line)
    return table


def _backlog(backlog: Backlog) -> list[str]:
    numbers = (cells.count(backlog.commits), cells.count(backlog.rows), cells.size(backlog.bytes))
    return [
        backlog.input,
        *numbers,
        cells.duration(backlog.age_ms) if backlog.commits else cells.NONE,
    ]


def phases(record: CheckpointRecord) -> Table:
    """The phases of each stage as a bar, all from the trigger on and to one scale."""
    reports = own_reports(record.checkpoint_id, record.stages)
    scale = max([record.duration_ms or 0, *map(_total_ms, reports), 1])
    grid = Table.grid(padding=(0, 2))
    for report in reports:
        grid.add_row(report.stage, _bar(report, scale))
    legend = Text("  ").join(
        Text(f"{sign} {PHASES[field]}", colour) for field, (sign, colour) in _SIGNS.items()
    )
    grid.add_row("", legend)
    return grid


def positions(record: CheckpointRecord) -> Table:
    """Where the root inputs stood: one line per input."""
    return cells.pairs(
        (f"{name} -> {s.report.stage}", position)
        for s in record.stages
        for name, position in s.report.positions.items()
    )


def state(record: StateRecord, limit: int | None) -> Table:
    """The first ``limit`` keys of a state; None for all."""
    rows = record.rows if limit is None else record.rows.slice(0, limit)
    table = cells.table()
    for column in record.rows.schema:
        style = "bold" if column.name in record.columns.key else ""
        numeric = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        right = numeric or pa.types.is_decimal(column.type)
        justify: Literal["left", "right"] = "right" if right else "left"
        table.add_column(Text(column.name), style=style, justify=justify, overflow="fold")
    for row in rows.to_pylist():
        table.add_row(*(Text(cell(value)) for value in row.values()))
    return table


def plan(document: Mapping[str, Any]) -> Iterator[Table | Text]:
    """What a restore would do, block by block.

    The document is that of :meth:`absflow.spark.start.restore_plan.RestorePlan.document`.

    Args:
        document: a plan that restores something.
    """
    origin = document["origin"]
    fork = ", a fork under another storage root" if document["fork"] else ""
    lines = [
        ("checkpoint", f"{origin['checkpoint_id']} of attempt {document['taken_in_attempt']}"),
        ("under", origin["root"]),
        ("begins", f"attempt {document['attempt']}{fork}"),
        ("next checkpoint", "full" if document["next_checkpoint_full"] else "incremental"),
    ]
    yield cells.pairs(lines)
    stages = cells.table("stage", "state of", "keys>", "sets>", "key\ngroups>", "state table")
    for stage in document["stages"]:
        then, now = stage["key_groups_then"], stage["key_groups_now"]
        empty = stage["source"] is None
        stages.add_row(
            stage["stage"],
            cells.NONE if empty else stage["source"] + (" (migrated)" if stage["migrate"] else ""),
            cells.NONE if empty else cells.count(stage["keys"]),
            cells.NONE if empty else cells.count(len(stage["lineage"])),
            str(now) if empty or then == now else f"{then} -> {now}",
            stage["table"] or cells.NONE,
        )
    yield stages
    waiting = cells.table("waits for the clock", "timers overdue>", "keys expired since>")
    for stage in document["stages"]:
        if stage["overdue_timers"] or stage["expired_since"]:
            counts = (stage["overdue_timers"], stage["expired_since"])
            waiting.add_row(stage["stage"], *map(cells.count, counts))
    if waiting.row_count:
        yield waiting
    flying = cells.table("in flight from", "to", "rows>", "bytes>")
    for stage in document["stages"]:
        for rows in stage["in_flight"]:
            size = cells.size(rows["bytes"])
            flying.add_row(rows["input"], stage["stage"], cells.count(rows["rows"]), size)
    if flying.row_count:
        yield flying
    sources = cells.table("source", "goes on behind")
    for name, position in document["positions"].items():
        sources.add_row(name, "nothing: it had read none" if position == "-" else position)
    yield sources
    yield _sinks(document["sinks"])
    if document["differences"]:
        yield cells.listed("differences", document["differences"])


def deletion(record: DeletionRecord) -> Iterator[Table | Text]:
    """What a deletion takes away, block by block."""
    table = cells.table("id>", "type", "completed (UTC)", "keys>", "state>")
    for checkpoint in record.checkpoints:
        reports = [s.report for s in checkpoint.stages]
        table.add_row(
            str(checkpoint.checkpoint_id),
            checkpoint.kind.value,
            cells.NONE if checkpoint.ended_at is None else cells.time(checkpoint.ended_at),
            cells.count(sum(r.keys_total for r in reports)),
            cells.size(sum(r.bytes_total for r in reports)),
        )
    yield table
    if record.frees:
        yield cells.listed(
            f"frees {cells.size(record.bytes)} of state history", map(sentence, record.frees)
        )
    else:
        yield Text("frees nothing by itself: all that it reads is read by others, too")


def _sinks(sinks: Iterable[Mapping[str, Any]]) -> Table:
    table = cells.table("sink", "version>", "commits\nundone>", "table")
    for sink in sinks:
        now, then = (sink["version_now"], sink["version_then"])
        undone = "".join(f"\nundone: {commit}" for commit in sink["undone"])
        note = f"\n{sink['note']}" if sink["note"] else ""
        table.add_row(
            sink["sink"],
            cells.NONE if now is None else f"{now}" if then is None else f"{now} -> {then}",
            cells.count(len(sink["undone"])),
            (sink["place"] or cells.NONE) + undone + note,
        )
    return table


def _total_ms(report: StageReport) -> int:
    return sum(getattr(report, field) for field in PHASES)


def _bar(report: StageReport, scale: int) -> Text:
    bar = Text()
    at = 0
    for field, (sign, colour) in _SIGNS.items():
        before = round(at * _BAR_WIDTH / scale)
        at += getattr(report, field)
        bar.append(sign * (round(at * _BAR_WIDTH / scale) - before), colour)
    return bar
