"""The command that reads a checkpoint through without restoring it."""

from __future__ import annotations

from pathlib import Path

import click
from rich import box
from rich.table import Table

from absflow.cli.completion_command import checkpoint_argument
from absflow.cli.documents import text
from absflow.cli.options import (
    Wanted,
    WithExamples,
    on_storage,
    open_console,
    reader_of,
    waiting,
)
from absflow.cli.verification import Verification, verify

__all__ = ["verify_command"]


@click.command(
    "verify",
    cls=WithExamples,
    examples=[
        "absflow verify",
        "absflow verify 4",
    ],
)
@checkpoint_argument
@on_storage
def verify_command(
    checkpoint_id: Wanted, storage: str | None, properties_file: Path | None, as_json: bool
) -> None:
    """Read all that checkpoint ID, or the latest, needs, and say what is damaged.

    Its sets of state, its rows in flight, and the files of large state that its attempt works on
    are compared with what was written. Nothing is restored or changed. The exit code is 1 if
    anything is gone or damaged. Whether the sources still have what came since is what `absflow
    restore --plan` looks at: only the job's program knows them.
    """
    with waiting("reading") as status:
        reader = reader_of(storage, properties_file)
        found = verify(
            reader, reader.number(checkpoint_id), lambda part: status.update(f"reading {part}")
        )
    if as_json:
        click.echo(text(_document(found)))
    else:
        _show(found)
    click.get_current_context().exit(1 if found.problems else 0)


def _document(found: Verification) -> dict[str, object]:
    return {
        "checkpoint_id": found.checkpoint_id,
        "whole": not found.problems,
        "parts": [
            {
                "stage": part.stage,
                "part": part.name,
                "files": part.files,
                "rows": part.rows,
                "bytes": part.bytes,
                "problems": list(part.problems),
            }
            for part in found.parts
        ],
        "advice": found.advice,
    }


def _show(found: Verification) -> None:
    console = open_console()
    table = Table(box=box.HORIZONTALS, show_edge=False)
    table.add_column("stage")
    table.add_column("part")
    for name in ("files", "rows", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("result")
    for part in found.parts:
        numbers = (f"{n:,}" for n in (part.files, part.rows, part.bytes))
        table.add_row(part.stage, part.name, *numbers, "DAMAGED" if part.problems else "whole")
    console.print(table)
    if not found.problems:
        console.print(f"checkpoint {found.checkpoint_id} is whole")
        return
    for problem in found.problems:
        console.print(problem, soft_wrap=True)
    console.print(found.advice, soft_wrap=True)
