"""The command that starts a job from a checkpoint, or says what that would do."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from absflow.cli import cells, documents, submit, tables
from absflow.cli.options import (
    STORAGE_SETTING,
    STORAGE_VARIABLE,
    conf_option,
    given_root,
    on_storage,
    open_console,
    pair,
)
from absflow.cli.reader import Reader
from absflow.errors import AbsflowError, NotFoundError
from absflow.protocol.recovery.attempts import LATEST, RestoreTarget, parse_target
from absflow.settings.catalog import PREFIX

__all__ = ["restore_command", "show_plan"]

_RESTORE = f"{PREFIX}restore.from"


def _restore_from(_: click.Context, __: click.Parameter, text: str) -> str:
    try:
        parse_target(text)
    except ValueError as expected:
        raise click.BadParameter(f"{text!r} is not {expected}") from expected
    return text


@click.command("restore", context_settings={"allow_interspersed_args": False})
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@conf_option("A setting of Spark or absflow, as for spark-submit.")
@click.option("--plan", "plan_only", is_flag=True, help="Only show what would be done.")
@click.option(
    "--from",
    "target",
    required=True,
    callback=_restore_from,
    metavar="CHECKPOINT",
    help="latest, ID, or PATH#ID of another storage root, of which this becomes a fork.",
)
@on_storage
def restore_command(
    script: str,
    args: tuple[str, ...],
    conf: tuple[str, ...],
    plan_only: bool,
    target: str,
    storage: str | None,
    properties_file: Path | None,
    as_json: bool,
) -> None:
    """Start the job of SCRIPT from a checkpoint, with spark-submit.

    A checkpoint that is not there is refused before Spark is started.

    With --plan nothing is changed: SCRIPT runs up to job.start(), and what a restore would do is
    shown. What SCRIPT itself prints then goes to stderr. The exit code is 1 if the checkpoint
    cannot be restored. --json needs --plan.

    --properties-file goes to spark-submit whole, and so does each --conf.
    """
    if as_json and not plan_only:
        raise click.UsageError("--json is for the plan; give --plan, too")
    root = storage or (None if properties_file else os.environ.get(STORAGE_VARIABLE))
    settings = {**({STORAGE_SETTING: root} if root else {}), **dict(map(pair, conf))}
    program = [script, *args]
    spark_submit = submit.spark_submit()
    options = submit.options({**settings, _RESTORE: target}, properties_file)
    known_root = settings.get(STORAGE_SETTING) or given_root(properties_file)
    problem = _missing(known_root, parse_target(target), plan=plan_only)
    if not plan_only:
        if problem:
            raise NotFoundError(problem)
        submit.become([spark_submit, *options, *program])
    run = [spark_submit, *options]
    document = documents.no_plan(problem) if problem else submit.plan_of(run, program)
    if as_json:
        click.echo(documents.text(document))
    else:
        show_plan(document, [*submit.options(settings, properties_file), *program])
    click.get_current_context().exit(1 if document["problems"] else 0)


def _missing(root: str | None, target: RestoreTarget, *, plan: bool) -> str:
    """Why a start would not find the checkpoint; "" if it would, or if only Spark can say.

    Args:
        root: the job's storage root; None if only its program knows it.
        target: what is asked for.
        plan: a plan is wanted. A start from the latest goes on without any, a plan does not.
    """
    place = target.root or root
    if place is None or (target == LATEST and not plan):
        return ""
    try:
        Reader(place).find(target.checkpoint_id)
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
