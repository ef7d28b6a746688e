"""``absflow watch``: a job's status and its checkpoints, as they come."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

import click
from rich.console import Console, Group
from rich.live import Live

from absflow.cli import cells, documents, tables
from absflow.cli.options import WithExamples, on_storage, open_console, reader_of
from absflow.cli.reader import Reader
from absflow.cli.records import StatusRecord
from absflow.cli.status_command import status_blocks
from absflow.facts.records import CheckpointRecord
from absflow.protocol.checkpoints import Status

__all__ = ["watch_command"]

# So many checkpoints fit below the status on a screen, and may end between two looks.
_ON_SCREEN, _BETWEEN_LOOKS = 8, 300


@click.command(
    "watch",
    cls=WithExamples,
    examples=[
        "absflow watch --every 5",
    ],
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait between two looks.",
)
@on_storage
def watch_command(
    every_s: float, storage: str | None, properties_file: Path | None, as_json: bool
) -> None:
    """Follow a job until its driver has ended, or you press Ctrl-C.

    On a terminal it is one screen that is drawn anew. In a pipe, and with --json, it is a line for
    each checkpoint that ends from now on.
    """
    reader = reader_of(storage, properties_file)
    console = open_console()
    try:
        if console.is_terminal and not as_json:
            _screen(reader, every_s, console)
        else:
            _lines(reader, every_s, _as_json if as_json else _as_text)
    except KeyboardInterrupt:
        return  # this is how one stops to look


def _screen(reader: Reader, every_s: float, console: Console) -> None:
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for status, shown in _looks(reader, every_s, _ON_SCREEN):
            blocks = status_blocks(status, datetime.now(timezone.utc))
            live.update(Group(*blocks, "", tables.history(shown)), refresh=True)


def _lines(reader: Reader, every_s: float, form: Callable[[CheckpointRecord], str]) -> None:
    known: set[int] | None = None
    for status, shown in _looks(reader, every_s, _BETWEEN_LOOKS):
        ended = {r.checkpoint_id: r for r in shown if r.status is not Status.PENDING}
        if known is None:
            known = {*ended}
            newest = status.last.title if status.last else "none"
            click.echo(f"watching {status.root}; completed last: {newest}", err=True)
        for number in sorted(ended.keys() - known):
            click.echo(form(ended[number]))
        known |= ended.keys()
        if status.end:
            click.echo(f"driver {status.incarnation} has {status.end}", err=True)


def _looks(
    reader: Reader, every_s: float, most: int
) -> Iterator[tuple[StatusRecord, Sequence[CheckpointRecord]]]:
    """How the job is and its newest checkpoints, again and again until its driver has ended."""
    while True:
        # Anew each time: a reader keeps what it has read.
        status = reader.again().status()
        # Behind the status: what ended before the driver did is in it.
        yield status, reader.again().history(most).shown
        if status.end:
            return
        time.sleep(every_s)


def _as_text(record: CheckpointRecord) -> str:
    line = f"{cells.time(record.ended_at or record.triggered_at)} {record.title} "
    if record.status is not Status.COMPLETED:
        why = ", ".join(part for part in (record.reason, record.cause) if part)
        return f"{line}{record.status.value.lower()}: {why or 'no reason is known'}"
    took, size = cells.duration(record.duration_ms), cells.size(record.bytes_changed)
    return f"{line}completed in {took}: {record.rows_changed:,} rows changed, {size}"


def _as_json(record: CheckpointRecord) -> str:
    return json.dumps(documents.short(record), ensure_ascii=False)
