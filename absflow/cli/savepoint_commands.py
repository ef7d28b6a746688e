"""``absflow savepoint`` and ``stop``: what a running driver is asked for."""

from __future__ import annotations

from pathlib import Path

import click

from absflow.cli import asking, documents
from absflow.cli.options import WithExamples, on_storage, reader_of, timeout_option, waiting
from absflow.cli.reader import Reader

__all__ = ["savepoint_command", "stop_command"]

_PATIENCE_S = 600


@click.command(
    "savepoint",
    cls=WithExamples,
    examples=[
        "absflow savepoint --storage /data/job",
    ],
)
@timeout_option(_PATIENCE_S, "How long to wait for it.")
@on_storage
def savepoint_command(
    timeout: float, storage: str | None, properties_file: Path | None, as_json: bool
) -> None:
    """Take a savepoint of a running job.

    A savepoint is a full checkpoint that stays until you delete it. The exit code is 1 if it fails;
    the job then goes on. The program that started the job need not be asked.
    """
    _take(reader_of(storage, properties_file), timeout, as_json)


@click.command(
    "stop",
    cls=WithExamples,
    examples=[
        "absflow stop --storage /data/job --drain",
    ],
)
@click.option(
    "--drain",
    is_flag=True,
    help="No stage goes on behind the savepoint, so that channels empty.",
)
@click.option(
    "--fire-timers",
    is_flag=True,
    help="With --drain: every timer fires first, for a job that ends for good.",
)
@timeout_option(_PATIENCE_S, "How long to wait for the savepoint.")
@on_storage
def stop_command(
    drain: bool,
    fire_timers: bool,
    timeout: float,
    storage: str | None,
    properties_file: Path | None,
    as_json: bool,
) -> None:
    """Stop a running job with a savepoint.

    The next start goes on where it stopped, or from the savepoint if that is asked for. The exit
    code is 1 if the savepoint fails; the job then goes on.
    """
    if fire_timers and not drain:
        raise click.UsageError("--fire-timers is for a drained stop; give --drain, too")
    reader = reader_of(storage, properties_file)
    _take(reader, timeout, as_json, stop=True, drain=drain, fire_timers=fire_timers)


def _take(
    reader: Reader,
    timeout: float,
    as_json: bool,
    *,
    stop: bool = False,
    drain: bool = False,
    fire_timers: bool = False,
) -> None:
    request, incarnation = asking.ask(reader, stop=stop, drain=drain, fire_timers=fire_timers)
    with waiting(f"driver {incarnation} takes the savepoint"):
        taken = asking.await_answer(reader, request, incarnation, timeout)
    if as_json:
        click.echo(documents.text(documents.checkpoint(reader.again().checkpoint(taken))))
        return
    click.echo(
        f"savepoint {taken} of the job under {reader.root}" + (", which stops" if stop else "")
    )
