"""Options and arguments that several commands have."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.status import Status

from absflow.cli.reader import Reader
from absflow.errors import SettingsError
from absflow.protocol.retention.inventory import RetentionPolicy
from absflow.protocol.tiers import TierPolicy
from absflow.settings.catalog import PREFIX, SETTINGS

__all__ = [
    "LATEST",
    "STORAGE_SETTING",
    "STORAGE_VARIABLE",
    "Wanted",
    "WithExamples",
    "at_option",
    "checkpoint_named",
    "conf_of",
    "conf_option",
    "limit_option",
    "limited",
    "on_storage",
    "open_console",
    "pair",
    "reader_of",
    "retention_policy",
    "setting_number",
    "setting_of",
    "timeout_option",
    "values_of",
    "waiting",
]

STORAGE_VARIABLE = "ABSFLOW_STORAGE"
STORAGE_SETTING = f"{PREFIX}storage.path"
LATEST = "latest"
# A checkpoint as people name it: by its id, as the latest, or by a time, which has a zone.
Wanted = int | str | datetime
_SHOWN = 20
_PIPE_WIDTH = 160


class WithExamples(click.Command):
    """A command whose help ends with lines as they are typed; tests run each of them."""

    def __init__(self, *arguments: Any, examples: Sequence[str], **more: Any) -> None:
        """As click's, with these lines."""
        super().__init__(*arguments, **more)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the lines, each whole, however long."""
        with formatter.section("Examples"):
            for line in self.examples:
                formatter.write(f"{' ' * formatter.current_indent}{line}\n")


def timeout_option(seconds: int, what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option of a command that waits for a driver."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=seconds,
        show_default=True,
        metavar="SECONDS",
        help=what,
    )


def on_storage(command: Callable[..., None]) -> Callable[..., None]:
    """The options that every command has."""
    options = [
        click.option("--storage", metavar="PATH", help="Storage root of the job."),
        click.option(
            "--properties-file",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help=f"Take {STORAGE_SETTING} from this file (as for spark-submit), and keys for it.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    ]
    for option in options:
        command = option(command)
    return command


def conf_option(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds ``--conf`` to a command: ``conf``, settings as texts for :func:`pair`.

    Args:
        what: each is, for the help.
    """
    return click.option(
        "--conf", multiple=True, metavar="NAME=VALUE", help=f"{what} May be repeated."
    )


def checkpoint_named(_: click.Context, __: click.Parameter, text: str | None) -> Wanted | None:
    """A checkpoint as people name it; None if an option is not given."""
    if text is None or text == LATEST:
        return text
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    try:
        # What this Python reads of ISO 8601; Z is of later ones.
        moment = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is neither {LATEST}, nor a checkpoint's id, nor a time such as "
            "'2026-11-23 09:00'"
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def at_option(command: Callable[..., None]) -> Callable[..., None]:
    """Adds ``--at`` to a command that shows state."""
    return click.option(
        "--at",
        callback=checkpoint_named,
        metavar="ID",
        help="A completed checkpoint, latest, or a time such as '2026-11-23 09:00' (UTC), for the "
        "newest that was triggered by then. Default: the newest.",
    )(command)


def setting_of(setting: str) -> str:
    """Where a default comes from, for the help."""
    return f"Default: {PREFIX}{setting} of the properties file, or its own default."


def limit_option(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option of a command that shows the newest of many."""
    return click.option(
        "--limit",
        type=click.IntRange(min=0),
        metavar="N",
        help=f"Show {what}; 0 for all. Default: {_SHOWN}, with --json all.",
    )


def setting_number(name: str, properties_file: Path | None) -> int:
    """A setting from the file, else its default."""
    setting = next(s for s in SETTINGS if s.name == name)
    given = conf_of(properties_file)
    try:
        return int(setting.parse(given.get(PREFIX + name) or setting.default or ""))
    except ValueError as expected:
        raise SettingsError(
            f"{PREFIX}{name} is {given[PREFIX + name]!r}, but must be {expected}"
        ) from expected


def retention_policy(
    properties_file: Path | None, retained: int | None = None, max_sets: int | None = None
) -> RetentionPolicy:
    """What retention keeps: as given, else as the file or the default of the setting says."""
    return RetentionPolicy(
        retained or setting_number("checkpoint.retained", properties_file),
        TierPolicy(max_sets or setting_number("lineage.max-sets", properties_file)),
    )


def values_of(texts: Iterable[str]) -> dict[str, str | None]:
    """Each NAME=VALUE of ``--key``; NAME alone is null."""
    parts = (text.partition("=") for text in texts)
    return {name: value if sign else None for name, sign, value in parts}


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE, as ``--conf`` takes it."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.UsageError(f"--conf {text!r} is not NAME=VALUE")
    return name, value


def limited(limit: int | None, as_json: bool) -> int | None:
    """How many to show; None for all."""
    if limit is None:
        return None if as_json else _SHOWN
    return limit or None


def reader_of(storage: str | None, properties_file: Path | None) -> Reader:
    """Of the storage root that a command is for, reached as the properties file says."""
    conf = conf_of(properties_file)
    named = conf.get(STORAGE_SETTING) if properties_file else os.environ.get(STORAGE_VARIABLE)
    if root := storage or named:
        return Reader(root, conf)
    if properties_file:
        raise SettingsError(
            f"{str(properties_file)!r} does not set {STORAGE_SETTING}; add it, or use --storage"
        )
    raise click.UsageError(
        f"no storage root given: use --storage, --properties-file or {STORAGE_VARIABLE}"
    )


def conf_of(path: Path | None) -> dict[str, str]:
    """A file of Java properties, which Spark's are; empty without one."""
    if path is None:
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    found = (re.match(r"\s*([^\s=:#!]+)\s*[=:\s]\s*(.*?)\s*$", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def waiting(words: str) -> Status:
    """A context: while it lasts, a line on a terminal's stderr says what goes on."""
    return Console(stderr=True, markup=False, highlight=False).status(words)


def open_console(*, quiet: bool = False) -> Console:
    """Standard output; into a pipe, lines as long as the tables need."""
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    width = _PIPE_WIDTH if wide else None
    return Console(width=width, markup=False, highlight=False, emoji=False, quiet=quiet)
