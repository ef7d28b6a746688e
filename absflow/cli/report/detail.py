"""One checkpoint on the page: its facts, its timeline, its stages, and what has changed."""

from __future__ import annotations

from absflow.cli import cells
from absflow.cli.report.model import Detail
from absflow.cli.tables import size_cells
from absflow.facts.records import CheckpointRecord
from absflow.protocol.checkpoints import StageManifest
from absflow.protocol.event_time import holding_back, to_datetime

__all__ = ["detail_of"]


def detail_of(record: CheckpointRecord, before: CheckpointRecord | None) -> Detail:
    """All of a checkpoint; ``before`` is the completed one before it, if it is shown, too."""
    number = record.checkpoint_id
    return Detail(
        number,
        record.title,
        record.facts,
        tuple(s for s in (stage.shown(number) for stage in record.stages) if s.own),
        record.duration_ms,
        tuple(_stage_cells(stage, number) for stage in record.stages),
        tuple(cell for stage in record.stages for cell in _input_cells(stage)),
        _changes(record, before),
    )


def _stage_cells(stage: StageManifest, checkpoint_id: int) -> tuple[str, ...]:
    report = stage.report
    own = report.checkpoint_id == checkpoint_id
    reached = None if report.time is None else to_datetime(report.time.stage.value)
    flying = sum(state.rows for state in stage.in_flight)
    return (
        *size_cells(report, checkpoint_id),
        cells.count(report.held_rows) if own and report.held_rows else cells.NONE,
        cells.count(flying) if flying else cells.NONE,
        cells.count(report.late_rows) if report.late_rows else cells.NONE,
        cells.NONE if reached is None else cells.time(reached),
        (report.time is not None and holding_back(report.time)) or cells.NONE,
    )


def _input_cells(stage: StageManifest) -> list[tuple[str, ...]]:
    name, report = stage.report.stage, stage.report
    backlogs = (stage.load.backlogs or ()) if stage.load else ()
    channels = [
        (
            name,
            b.input,
            cells.count(b.rows),
            cells.size(b.bytes),
            cells.duration(b.age_ms) if b.rows else cells.NONE,
            cells.NONE,
        )
        for b in backlogs
    ]
    roots = [(name, n, *[cells.NONE] * 3, position) for n, position in report.positions.items()]
    return [*roots, *channels]


def _changes(record: CheckpointRecord, before: CheckpointRecord | None) -> tuple[str, ...]:
    if before is None or not record.stages:
        return ()
    then = {stage.report.stage: stage.report for stage in before.stages}
    said = []
    for stage in record.stages:
        now, old = stage.report, then.get(stage.report.stage)
        if old is None:
            said.append(f"{now.stage} is new")
            continue
        keys, size = now.keys_total - old.keys_total, now.bytes_total - old.bytes_total
        parts = [f"{keys:+,} keys"] if keys else []
        if size:
            parts.append(f"{'-' if size < 0 else '+'}{cells.size(abs(size))}")
        if parts:
            said.append(f"{now.stage}: {', '.join(parts)}")
        for name, position in now.positions.items():
            if old.positions.get(name) != position:
                said.append(f"{now.stage} reads {name} further")
    return tuple(said)
