"""The command that starts a job from a checkpoint, or says what that would do."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from absflow.cli import cells, documents, submit, tables
from absflow.cli.options import (
    STORAGE_SETTING,
    STORAGE_VARIABLE,
    Wanted,
    WithExamples,
    checkpoint_named,
    conf_of,
    conf_option,
    on_storage,
    open_console,
    pair,
)
from absflow.cli.reader import Reader
from absflow.errors import AbsflowError, NotFoundError, RestoreError
from absflow.facts.attempts import plain_root
from absflow.facts.lock import holder
from absflow.protocol.recovery.attempts import LATEST, RestoreTarget, parse_target
from absflow.settings.catalog import PREFIX

__all__ = ["restore_command", "show_plan"]

_RESTORE = f"{PREFIX}restore.from"


def _restore_from(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        parse_target(text)
    except ValueError as expected:
        raise click.BadParameter(f"{text!r} is not {expected}") from expected
    return text


@click.command(
    "restore",
    cls=WithExamples,
    examples=[
        "absflow restore --from latest --properties-file job.conf job.py",
        'absflow restore --at "2026-11-23 09:00" --plan --properties-file job.conf job.py',
    ],
    context_settings={"allow_interspersed_args": False},
)
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@conf_option("A setting of Spark or absflow, as for spark-submit.")
@click.option("--plan", "plan_only", is_flag=True, help="Only show what would be done.")
@click.option(
    "--from",
    "source",
    callback=_restore_from,
    metavar="CHECKPOINT",
    help="latest, ID, or PATH#ID of another storage root, of which this becomes a fork. PATH#ID of "
    "the job's own root is the same as ID.",
)
@click.option(
    "--at",
    callback=checkpoint_named,
    metavar="TIME",
    help="Instead of --from: the newest checkpoint that was triggered by this time, such as "
    "'2026-11-23 09:00' (UTC).",
)
@click.option("--yes", is_flag=True, help="Do not ask. Nobody is asked without a terminal.")
@on_storage
def restore_command(
    script: str,
    args: tuple[str, ...],
    conf: tuple[str, ...],
    plan_only: bool,
    source: str | None,
    at: Wanted | None,
    yes: bool,
    storage: str | None,
    properties_file: Path | None,
    as_json: bool,
) -> None:
    """Start the job of SCRIPT from a checkpoint, with spark-submit.

    A checkpoint that is not there is refused before Spark is started, and so is a job whose driver
    runs, as far as that can be seen: it would be stopped, and what its sinks have got since the
    checkpoint taken back. On a terminal you are asked before that is done.

    With --plan nothing is changed: SCRIPT runs up to job.start(), and what a restore would do is
    shown. What SCRIPT itself prints then goes to stderr. The exit code is 1 if the checkpoint
    cannot be restored. --json needs --plan.

    --properties-file goes to spark-submit whole, and so does each --conf.
    """
    if as_json and not plan_only:
        raise click.UsageError("--json is for the plan; give --plan, too")
    if (source is None) == (at is None):
        seen = "none" if source is None else "both"
        raise click.UsageError(f"found {seen} of --from and --at; give one, to name the checkpoint")
    root = storage or (None if properties_file else os.environ.get(STORAGE_VARIABLE))
    settings = {**({STORAGE_SETTING: root} if root else {}), **dict(map(pair, conf))}
    if not Path(script).exists() and ":/" not in script:
        raise NotFoundError(f"there is no file {script!r}; give the program that declares the job")
    program = [script, *args]
    spark_submit = submit.spark_submit()
    known = {**conf_of(properties_file), **settings}
    known_root = known.get(STORAGE_SETTING)
    target = source or _at(known, at)
    given = parse_target(target)
    if own := given.root is not None and _place(given.root) == _place(known_root):
        target = target.rpartition("#")[2]
        given = parse_target(target)
    options = submit.options({**settings, _RESTORE: target}, properties_file)
    problem = _missing(known, given, plan=plan_only)
    if problem and not plan_only:
        raise NotFoundError(problem)
    if own and not problem:
        click.echo(f"this is the job's own storage root, so the same as --from {target}", err=True)
    if not plan_only:
        if known_root is not None:
            _refuse_beside_driver(known_root)
            _confirm(known, given, yes=yes)
        submit.become([spark_submit, *options, *program])
    run = [spark_submit, *options]
    document = documents.no_plan(problem) if problem else submit.plan_of(run, program)
    if as_json:
        click.echo(documents.text(document))
    else:
        show_plan(document, [*submit.options(settings, properties_file), *program])
    click.get_current_context().exit(1 if document["problems"] else 0)


def _at(conf: Mapping[str, str], at: Wanted | None) -> str:
    """The checkpoint of a time, as ``restore.from`` names it; it is said which one it is."""
    root = conf.get(STORAGE_SETTING)
    if root is None or at is None:
        raise click.UsageError("--at needs the storage root; give --storage or --properties-file")
    reader = Reader(root, conf)
    record = reader.checkpoint(reader.number(at))
    moment = cells.time(record.triggered_at)
    click.echo(f"{record.title} is meant, triggered at {moment} UTC", err=True)
    return str(record.checkpoint_id)


def _refuse_beside_driver(root: str) -> None:
    """Refuse a restore that would stop a driver, and take back what its sinks have got.

    Raises:
        RestoreError: a driver runs; on a file system that is not local that is not known.
    """
    if driver := holder(_place(root) or ""):
        raise RestoreError(
            f"nothing was changed: a driver runs the job under {root!r} ({driver}). A restore "
            "would stop it, and take back from its sinks what they have got since the checkpoint. "
            "Stop it first, as by absflow stop; --plan shows what would be done"
        )


def _confirm(conf: Mapping[str, str], target: RestoreTarget, *, yes: bool) -> None:
    """On a terminal, ask before a job that is there goes back; all but yes ends the command."""
    if yes or not sys.stdin.isatty():
        return
    root = conf[STORAGE_SETTING]
    try:
        newest = Reader(root, conf).number("latest")
    except (AbsflowError, NotImplementedError):
        return  # there is no job yet that could lose anything, or only Spark can see it
    number = target.checkpoint_id or (newest if target.root is None else "latest")
    which = f"checkpoint {number}" if target.root is None else f"{target.root}#{number}"
    click.echo(
        f"The job under {root} goes back to {which}; its newest is {newest}. What came after is "
        "abandoned, and taken back from its Delta sinks. --plan shows it."
    )
    click.confirm("Restore it?", abort=True)


def _place(root: str | None) -> str | None:
    """A storage root as all its names come to; None if it cannot be known here."""
    try:
        return None if root is None else plain_root(Reader(root).layout.root)
    except (AbsflowError, NotImplementedError):
        return None


def _missing(conf: Mapping[str, str], target: RestoreTarget, *, plan: bool) -> str:
    """Why a start would not find the checkpoint; "" if it would, or if only Spark can say.

    Args:
        conf: Spark's; without the job's storage root if only its program knows it.
        target: what is asked for.
        plan: a plan is wanted. A start from the latest goes on without any, a plan does not.
    """
    place = target.root or conf.get(STORAGE_SETTING)
    if place is None or (target == LATEST and not plan):
        return ""
    try:
        Reader(place, conf).find(target.checkpoint_id)
    except NotFoundError as error:
        return str(error)
    except (AbsflowError, NotImplementedError):
        return ""  # Spark may know a file system, or have rights, that this process has not
    return ""


def show_plan(document: documents.Document, arguments: Sequence[str]) -> None:
    """Print the plan, and at last what to run to do it."""
    console = open_console()
    if document["restores"]:
        for block in tables.plan(document):
            console.print(block)
            console.print()
    if document["problems"]:
        console.print(cells.listed("problems", document["problems"], "red"))
        console.print("\nThis cannot be restored, and nothing was changed.")
    elif document["restores"]:
        origin = document["origin"]
        which = f"{origin['root']}#" if document["fork"] else ""
        target = f"{which}{origin['checkpoint_id']}"
        console.print("Nothing was changed. To do it, stop the job if it runs, then:")
        console.print(
            shlex.join(["absflow", "restore", "--from", target, *arguments]), soft_wrap=True
        )
    else:
        console.print(f"Nothing would be restored: the program does not heed {_RESTORE}.")
