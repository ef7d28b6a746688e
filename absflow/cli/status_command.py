"""``absflow status``: how a job is, on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from absflow.cli import cells, documents
from absflow.cli.options import WithExamples, on_storage, open_console, reader_of
from absflow.cli.records import StatusRecord
from absflow.facts.records import CheckpointRecord
from absflow.protocol.checkpoints import own_reports
from absflow.settings.values import positive_duration_ms

__all__ = ["status_blocks", "status_command"]


def _duration(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return positive_duration_ms(text)
    except ValueError as expected:
        raise click.BadParameter(f"{text!r} is not {expected}") from expected


@click.command(
    "status",
    cls=WithExamples,
    examples=[
        "absflow status --max-age 10min",
    ],
)
@click.option(
    "--max-age",
    "max_age_ms",
    callback=_duration,
    metavar="DURATION",
    help="Exit with 1 if the newest completed checkpoint is older, such as 10min, or is not there.",
)
@on_storage
def status_command(
    max_age_ms: int | None, storage: str | None, properties_file: Path | None, as_json: bool
) -> None:
    """Show how the job is: its driver, its checkpoints, its stages.

    Stages are shown as they were when the newest checkpoint completed.
    """
    record = reader_of(storage, properties_file).status()
    now = datetime.now(timezone.utc)
    if as_json:
        click.echo(documents.text(_document(record, now)))
    else:
        console = open_console()
        for block in status_blocks(record, now):
            console.print(block)
    if max_age_ms is not None:
        _check_age(record.age_ms(now), max_age_ms)


def _check_age(age_ms: float | None, max_age_ms: int) -> None:
    if age_ms is not None and age_ms <= max_age_ms:
        return
    most = cells.duration(max_age_ms)
    found = (
        "no checkpoint has completed"
        if age_ms is None
        else f"the newest completed checkpoint is {cells.duration(age_ms)} old"
    )
    click.echo(f"absflow: {found}; at most {most} was asked for", err=True)
    click.get_current_context().exit(1)


def _document(record: StatusRecord, now: datetime) -> dict[str, Any]:
    last = record.last
    return {
        "storage": record.root,
        "driver": {"incarnation": record.incarnation, "end": record.end or None},
        "attempt": record.attempt,
        "restored_from": str(record.origin) if record.origin else None,
        "age_ms": record.age_ms(now),
        "last_completed": documents.checkpoint(last) if last else None,
        "pending": [documents.short(r) for r in record.pending],
        "aborted_since": [documents.short(r) for r in record.aborted],
        "failing": documents.failures(record.failing),
        "sinks": [{"sink": name, "published": n} for name, n in record.sinks.items()],
    }


def status_blocks(record: StatusRecord, now: datetime) -> Iterator[Table | Text]:
    """What one screen says of a job at a moment."""
    origin = f", restored from {record.origin}" if record.origin else ""
    lines: list[tuple[str, str | Text]] = [
        ("storage", record.root),
        ("driver", f"{record.incarnation}, which has {record.end or 'not ended'}"),
        ("attempt", f"{record.attempt}{origin}"),
        ("completed", _completed(record, now)),
    ]
    for checkpoint in record.pending:
        since = cells.duration((now - checkpoint.triggered_at) / timedelta(milliseconds=1))
        text = f"{checkpoint.title}, triggered {since} ago"
        lines.append(("pending", Text(text, "yellow")))
    if record.aborted:
        newest = record.aborted[-1]
        text = f"{len(record.aborted)} since then; {newest.title}: {newest.reason}"
        text += f", {newest.cause}" if newest.cause else ""
        lines.append(("aborted", Text(text, "red")))
    if record.last is not None and (late := late_rows(record.last)):
        lines.append(("late rows", Text(late, "yellow")))
    for name, published in record.sinks.items():
        if published < record.completed_id:
            has = f"has what came up to checkpoint {published}" if published else "has nothing yet"
            lines.append(("sink", Text(f"{name} {has}", "yellow")))
    for failure in record.failing:
        lines.append(("retention", Text(f"fails: {documents.failure_sentence(failure)}", "red")))
    yield cells.pairs(lines)
    if record.last is not None:
        yield Text()
        yield _stages(record.last)


def _completed(record: StatusRecord, now: datetime) -> str | Text:
    last = record.last
    if last is None or last.ended_at is None:
        return Text("none", "red")
    return Text(
        f"{last.title}, {cells.duration(record.age_ms(now))} ago "
        f"({cells.time(last.ended_at)} UTC), in {cells.duration(last.duration_ms)}",
        "green",
    )


def late_rows(last: CheckpointRecord) -> str:
    """How many rows came late in a checkpoint, in each stage that had any."""
    reports = own_reports(last.checkpoint_id, last.stages)
    late = [f"{r.stage} {r.late_rows:,}" for r in reports if r.late_rows]
    return f"in checkpoint {last.checkpoint_id}: {', '.join(late)}" if late else ""


def _stages(last: CheckpointRecord) -> Table:
    table = cells.table("stage", "keys>", "state>", "busy>", "waited for\nconsumers>")
    for name in ("rows\nunread", "oldest"):
        table.add_column(name, justify="right", no_wrap=True)
    for stage in last.stages:
        report, load = stage.report, stage.load
        ended = report.checkpoint_id != last.checkpoint_id
        row = [cells.NONE] * 4
        if load is not None and not ended:
            unread = load.backlogs
            row[:2] = [f"{load.busy:.0%}", f"{load.backpressured:.0%}"]
            if unread is None:
                row[2:] = ["not known", cells.NONE]
            elif unread:
                oldest = max(backlog.age_ms for backlog in unread)
                row[2:] = [cells.count(sum(b.rows for b in unread)), cells.duration(oldest)]
        table.add_row(
            f"{report.stage} (ended)" if ended else report.stage,
            cells.count(report.keys_total),
            cells.size(report.bytes_total),
            *row,
        )
    return table
