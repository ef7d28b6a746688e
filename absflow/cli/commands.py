"""The commands: options in, records printed out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from absflow.cli import asking, documents, tables
from absflow.cli.completion_command import (
    checkpoint_argument,
    completion_command,
    stage_argument,
)
from absflow.cli.doctor_command import doctor_command
from absflow.cli.new_command import new_command
from absflow.cli.options import (
    Wanted,
    WithExamples,
    at_option,
    limit_option,
    limited,
    on_storage,
    open_console,
    reader_of,
    retention_policy,
    setting_of,
    timeout_option,
    values_of,
    waiting,
)
from absflow.cli.reader import Reader
from absflow.cli.reasons import grouped
from absflow.cli.records import DeletionRecord
from absflow.cli.report.command import report_command, serve_command
from absflow.cli.restore_command import restore_command
from absflow.cli.savepoint_commands import savepoint_command, stop_command
from absflow.cli.simulate_command import simulate_command
from absflow.cli.state_commands import changes_command, diff_command, export_command
from absflow.cli.status_command import status_command
from absflow.cli.verify_command import verify_command
from absflow.cli.watch_command import watch_command
from absflow.errors import AbsflowError, DeletionError
from absflow.facts.records import CheckpointRecord
from absflow.protocol.checkpoints import Status
from absflow.protocol.retention.inventory import sentence

__all__ = ["absflow"]


class _Group(click.Group):
    """Prints an error of absflow as one line and exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except AbsflowError as error:
            click.echo(f"absflow: {' '.join(str(error).split())}", err=True)
            ctx.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="absflow", message="%(prog)s %(version)s")
def absflow() -> None:
    """Look into the checkpoints of an absflow job, running or not, without Spark.

    And start the job from one of them: only `restore` runs Spark.

    The storage root of the job is taken from --storage, else from the file given as
    --properties-file, else from the environment variable ABSFLOW_STORAGE.
    """


@absflow.command(
    cls=WithExamples,
    examples=[
        "absflow history --limit 5",
        "absflow history --json",
    ],
)
@limit_option("the newest N")
@on_storage
def history(
    storage: str | None, properties_file: Path | None, as_json: bool, limit: int | None
) -> None:
    """List the checkpoints.

    How each one ended, when, how long it took and what it wrote; which ones are savepoints, and
    which ones a restore has abandoned. What a driver that is no more has left pending is aborted.
    """
    record = reader_of(storage, properties_file).history(limited(limit, as_json))
    if as_json:
        click.echo(documents.text(documents.history(record)))
        return
    console = open_console()
    console.print(tables.history(record.shown))
    console.print(tables.summary_line(record))


@absflow.command(
    cls=WithExamples,
    examples=[
        "absflow show",
        "absflow show 4",
        'absflow show "2026-11-23 09:00"',
    ],
)
@checkpoint_argument
@on_storage
def show(
    checkpoint_id: Wanted, storage: str | None, properties_file: Path | None, as_json: bool
) -> None:
    """Show all of the checkpoint ID, or of the latest.

    Its stages, how long each of their phases took, how busy and how far behind they were when it
    completed, and where the sources stood.
    """
    reader = reader_of(storage, properties_file)
    record = reader.checkpoint(reader.number(checkpoint_id))
    if as_json:
        click.echo(documents.text(documents.checkpoint(record)))
        return
    console = open_console()
    console.print(tables.head(record))
    if record.status is Status.COMPLETED:
        blocks = (tables.sizes, tables.watermarks, tables.times, tables.phases, tables.loads)
        for table in (block(record) for block in (*blocks, tables.positions)):
            if table.row_count:
                console.print()
                console.print(table)


absflow.add_command(new_command)
absflow.add_command(status_command)
absflow.add_command(verify_command)
absflow.add_command(doctor_command)
absflow.add_command(restore_command)
absflow.add_command(savepoint_command)
absflow.add_command(stop_command)
absflow.add_command(watch_command)
absflow.add_command(changes_command)
absflow.add_command(diff_command)
absflow.add_command(export_command)
absflow.add_command(report_command)
absflow.add_command(serve_command)
absflow.add_command(simulate_command)
absflow.add_command(completion_command)


@absflow.command(
    cls=WithExamples,
    examples=[
        "absflow state aircraft --limit 5",
        "absflow state aircraft --at 4 --key tailnum=N14228",
    ],
)
@stage_argument
@at_option
@click.option(
    "--key",
    multiple=True,
    metavar="NAME=VALUE",
    help="Only keys with this value in this column, of key or state; NAME alone for NULL. May be "
    "repeated.",
)
@limit_option("the first N keys")
@on_storage
def state(
    stage: str,
    at: Wanted | None,
    key: tuple[str, ...],
    storage: str | None,
    properties_file: Path | None,
    as_json: bool,
    limit: int | None,
) -> None:
    """Show the state of STAGE at a checkpoint.

    One line per key, sorted by key. Times are ISO 8601, binary is base64, in --key too.
    """
    reader = reader_of(storage, properties_file)
    record = reader.state(stage, None if at is None else reader.number(at), values_of(key))
    count = limited(limit, as_json)
    if as_json:
        click.echo(documents.text(documents.state(record, count)))
        return
    shown = record.rows.num_rows if count is None else min(count, record.rows.num_rows)
    console = open_console()
    console.print(tables.state(record, count))
    console.print(
        f"{shown:,} of {record.rows.num_rows:,} keys of {stage} at checkpoint "
        f"{record.checkpoint_id}" + (f" with {', '.join(key)}" if key else "")
    )


@absflow.command(
    cls=WithExamples,
    examples=[
        "absflow gc --dry-run --retained 2",
    ],
)
@click.option("--dry-run", is_flag=True, required=True, help="Only say what would be done.")
@click.option(
    "--retained", type=click.IntRange(min=1), metavar="N", help=setting_of("checkpoint.retained")
)
@click.option(
    "--max-sets", type=click.IntRange(min=1), metavar="N", help=setting_of("lineage.max-sets")
)
@on_storage
def gc(
    dry_run: bool,
    retained: int | None,
    max_sets: int | None,
    storage: str | None,
    properties_file: Path | None,
    as_json: bool,
) -> None:
    """Say what retention would delete, why the rest stays, and what failed.

    Nothing is deleted: the driver of a running job does that by itself, after a checkpoint. What
    failed there is tried again after the next one.
    """
    policy = retention_policy(properties_file, retained, max_sets)
    record = reader_of(storage, properties_file).retention(policy)
    if as_json:
        click.echo(documents.text(documents.retention(record)))
        return
    lines = [sentence(action) for action in record.actions]
    for line in lines or ["nothing is to be done"]:
        click.echo(line)
    for line in grouped(record.reasons):
        click.echo(f"stays: {line}")
    for failure in record.failing:
        click.echo(f"failed: {documents.failure_sentence(failure)}")


@absflow.command(
    cls=WithExamples,
    examples=[
        "absflow delete 4 --dry-run",
        "absflow delete 4 --yes",
    ],
)
@click.argument("checkpoint_ids", metavar="ID...", type=int, nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option("--yes", is_flag=True, help="Do not ask. Needed with --json and without a terminal.")
@timeout_option(120, "How long to wait for a driver that runs.")
@on_storage
def delete(
    checkpoint_ids: tuple[int, ...],
    dry_run: bool,
    yes: bool,
    timeout: float,
    storage: str | None,
    properties_file: Path | None,
    as_json: bool,
) -> None:
    """Delete savepoints, or other checkpoints.

    What the job itself needs is refused, and then none of them is deleted. The driver of the job
    deletes them; if none runs, the next one does, as soon as it is started.
    """
    reader = reader_of(storage, properties_file)
    record = reader.deletion(checkpoint_ids)
    if record.refused:
        raise DeletionError(f"nothing was deleted: {record.refused}")
    console = open_console(quiet=as_json)
    for block in tables.deletion(record):
        console.print(block)
        console.print()
    if dry_run:
        answer = "DRY RUN"
    else:
        if not yes:
            _confirm(f"Delete {_these(record.checkpoints)}?", as_json)
        answer = _delete(reader, [r.checkpoint_id for r in record.checkpoints], timeout)
    if as_json:
        click.echo(documents.text(documents.deletion(record, answer)))
    else:
        console.print(_answer_text(answer, record, reader.root), soft_wrap=True)


def _confirm(question: str, as_json: bool) -> None:
    """Ask on the terminal; anything but yes ends the command."""
    if as_json or not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here; give --yes, or --dry-run to look first")
    click.confirm(question, abort=True)


def _delete(reader: Reader, checkpoint_ids: list[int], timeout: float) -> str:
    request = asking.ask_to_delete(reader, checkpoint_ids)
    with waiting("waiting for the driver"):
        return "DELETED" if asking.await_deletion(reader, request, timeout) else "STANDS"


def _answer_text(answer: str, record: DeletionRecord, root: str) -> str:
    which = _these(record.checkpoints)
    match answer:
        case "DELETED":
            return f"deleted {which} of the job under {root}; files go within a day"
        case "STANDS":
            return (
                f"no driver runs the job under {root}: the request stands, and the next one "
                f"deletes {which} as soon as it is started"
            )
    return "nothing was deleted"


def _these(records: Sequence[CheckpointRecord]) -> str:
    return ", ".join(record.title for record in records)
