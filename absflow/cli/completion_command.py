"""``absflow completion``, and what the shell is offered while somebody types."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from absflow.cli.options import LATEST, WithExamples, checkpoint_named, reader_of
from absflow.cli.reader import Reader
from absflow.errors import AbsflowError
from absflow.protocol.checkpoints import Status

__all__ = ["checkpoint_argument", "completed_ids", "completion_command", "stage_argument"]

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_ABSFLOW_COMPLETE"


@click.command(
    "completion",
    cls=WithExamples,
    examples=[
        "absflow completion bash >> ~/.bashrc",
        "absflow completion zsh >> ~/.zshrc",
        "absflow completion fish > ~/.config/fish/completions/absflow.fish",
    ],
)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion_command(shell: str) -> None:
    """Print the script with which SHELL completes what you type.

    Commands, options, and, once the storage root is given, the names of stages and the ids of
    checkpoints.
    """
    made = get_completion_class(shell)
    assert made is not None  # click has all three
    root = click.get_current_context().find_root()
    click.echo(made(root.command, {}, "absflow", _VARIABLE).source())


def _stage_names(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The job's stages that begin so; none if it cannot be read, as a shell has no room to say."""
    reader = _reader(context)
    try:
        names = [*reader.stages] if reader else []
    except (AbsflowError, NotImplementedError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def completed_ids(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """``latest`` and the ids of completed checkpoints that begin so, the newest first."""
    reader = _reader(context)
    try:
        shown = reader.history().shown if reader else ()
    except (AbsflowError, NotImplementedError):
        shown = ()
    there = [r for r in reversed(shown) if r.status is Status.COMPLETED]
    items = [CompletionItem(LATEST, help="the newest")]
    items += [CompletionItem(str(r.checkpoint_id), help=str(r.triggered_at)) for r in there]
    return [item for item in items if item.value.startswith(incomplete)]


def _reader(context: click.Context) -> Reader | None:
    """Of the root that has been typed so far, or that the environment names."""
    given = context.params
    try:
        return reader_of(given.get("storage"), given.get("properties_file"))
    except (AbsflowError, click.UsageError, OSError):
        return None


# The checkpoint that a command is for, by default the latest; and the stage.
checkpoint_argument = click.argument(
    "checkpoint_id",
    metavar="[ID]",
    default=LATEST,
    callback=checkpoint_named,
    shell_complete=completed_ids,
)
stage_argument = click.argument("stage", shell_complete=_stage_names)
