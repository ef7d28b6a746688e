"""``absflow changes``, ``diff`` and ``export``: state over checkpoints, and out of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from absflow.cli import cells, documents
from absflow.cli.completion_command import completed_ids, stage_argument
from absflow.cli.differences import Difference, difference
from absflow.cli.options import (
    Wanted,
    WithExamples,
    at_option,
    checkpoint_named,
    limit_option,
    limited,
    on_storage,
    open_console,
    reader_of,
    values_of,
    waiting,
)
from absflow.errors import NotFoundError, StorageError
from absflow.facts.stages import check_key, find_stage

__all__ = ["changes_command", "diff_command", "export_command"]

_CHECKPOINTS = 50


@click.command(
    "changes",
    cls=WithExamples,
    examples=[
        "absflow changes aircraft --key tailnum=N14228",
    ],
)
@stage_argument
@click.option(
    "--key",
    multiple=True,
    required=True,
    metavar="NAME=VALUE",
    help="The key: for each key column its value; NAME alone for NULL.",
)
@limit_option("the newest N checkpoints")
@on_storage
def changes_command(
    stage: str,
    key: tuple[str, ...],
    storage: str | None,
    properties_file: Path | None,
    as_json: bool,
    limit: int | None,
) -> None:
    """Show what one key of STAGE was at each checkpoint.

    The newest first; a checkpoint at which nothing had changed is left out. Abandoned checkpoints
    are no part of the job any more, and are left out, too.
    """
    reader = reader_of(storage, properties_file)
    asked = values_of(key)
    check_key(find_stage(reader.stages, stage), asked)
    with waiting(f"reading {stage}"):
        found = reader.past(stage, asked, limited(limit, as_json) or _CHECKPOINTS)
    # Of equal ones in a row the oldest is the one at which it came to be so.
    shown = [
        (checkpoint_id, row)
        for place, (checkpoint_id, row) in enumerate(found)
        if place + 1 == len(found) or found[place + 1][1] != row
    ]
    if as_json:
        rows = [{"checkpoint_id": n, "state": row and documents.plain(row)} for n, row in shown]
        click.echo(documents.text({"stage": stage, "key": documents.plain(asked), "changes": rows}))
        return
    if all(row is None for _, row in found):
        raise NotFoundError(
            f"stage {stage!r} had no key {' '.join(key)} at any of the {len(found)} newest "
            "checkpoints; absflow state shows which it has, --limit looks further back"
        )
    names = [*reader.stages[stage].state]
    table = cells.table("checkpoint>", *names)
    for checkpoint_id, row in shown:
        values = [cells.NONE if row is None else documents.cell(row.get(n)) for n in names]
        table.add_row(str(checkpoint_id), *values)
    open_console().print(table)


@click.command(
    "diff",
    cls=WithExamples,
    examples=[
        "absflow diff 4 latest",
        "absflow diff 4 latest --stage aircraft",
    ],
)
@click.argument("earlier", callback=checkpoint_named, shell_complete=completed_ids)
@click.argument("later", callback=checkpoint_named, shell_complete=completed_ids)
@click.option("--stage", help="Only this stage, key by key.")
@limit_option("the first N keys of each kind")
@on_storage
def diff_command(
    earlier: Wanted,
    later: Wanted,
    stage: str | None,
    storage: str | None,
    properties_file: Path | None,
    as_json: bool,
    limit: int | None,
) -> None:
    """Compare the state at two checkpoints, EARLIER and LATER.

    Without --stage, how many keys of each stage came, went and changed; with it, which, and how.
    """
    reader = reader_of(storage, properties_file)
    ids = reader.number(earlier), reader.number(later)
    both = [{s.report.stage for s in reader.manifest(n)[0].stages} for n in ids]
    there = both[0] & both[1]
    stages = [n for n, columns in reader.stages.items() if n in there and columns.key]
    if stage is not None:
        find_stage(reader.stages, stage)
        stages = [stage]
    with waiting("comparing"):
        found = [difference(reader, name, *ids) for name in stages]
    count = limited(limit, as_json)
    if as_json:
        rows = [_document(each, count if stage else 0) for each in found]
        document = {"earlier": ids[0], "later": ids[1], "stages": rows}
        click.echo(documents.text(document))
        return
    console = open_console()
    table = cells.table("stage", "came>", "went>", "changed>")
    for each in found:
        numbers = (each.came.num_rows, each.went.num_rows, each.after.num_rows)
        table.add_row(each.stage, *map(cells.count, numbers))
    console.print(table)
    if stage is not None:
        console.print()
        console.print(_keys(found[0], count))


def _document(found: Difference, count: int | None) -> dict[str, Any]:
    def rows(table: pa.Table) -> list[Any]:
        return list(documents.plain(table.slice(0, count).to_pylist()))

    made: dict[str, Any] = {
        "stage": found.stage,
        "came": found.came.num_rows,
        "went": found.went.num_rows,
        "changed": found.after.num_rows,
    }
    if count == 0:
        return made
    kinds = {"came": found.came, "went": found.went, "before": found.before, "after": found.after}
    return made | {"keys": {kind: rows(table) for kind, table in kinds.items()}}


def _keys(found: Difference, count: int | None) -> Any:
    names = [name for name in found.after.column_names if name not in found.key]
    table = cells.table("", *found.key, *names)

    def add(sign: str, rows: pa.Table) -> None:
        for row in rows.slice(0, count).to_pylist():
            table.add_row(sign, *(documents.cell(row.get(n)) for n in (*found.key, *names)))

    add("+", found.came)
    add("-", found.went)
    before, after = (t.slice(0, count).to_pylist() for t in (found.before, found.after))
    for then, now in zip(before, after, strict=True):
        table.add_row("~", *(documents.cell(now[n]) for n in found.key), *_values(then, now, names))
    return table


def _values(then: dict[str, Any], now: dict[str, Any], names: Sequence[str]) -> list[str]:
    return [
        documents.cell(now[name])
        if name not in then or then[name] == now[name]
        else f"{documents.cell(then[name])} -> {documents.cell(now[name])}"
        for name in names
    ]


@click.command(
    "export",
    cls=WithExamples,
    examples=[
        "absflow export aircraft aircraft.parquet",
        "absflow export aircraft aircraft.csv --at 4",
    ],
)
@stage_argument
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@at_option
@on_storage
def export_command(
    stage: str,
    file: Path,
    at: Wanted | None,
    storage: str | None,
    properties_file: Path | None,
    as_json: bool,
) -> None:
    """Write the state of STAGE at a checkpoint into FILE, which ends in .parquet or .csv.

    One row for each key, sorted by key. CSV has no lists, maps and structs: take Parquet for these.
    """
    if file.suffix not in {".parquet", ".csv"}:
        raise click.UsageError(f"{str(file)!r} ends in neither .parquet nor .csv")
    reader = reader_of(storage, properties_file)
    with waiting(f"reading {stage}"):
        record = reader.state(stage, None if at is None else reader.number(at))
    nested = [field.name for field in record.rows.schema if pa.types.is_nested(field.type)]
    if nested and file.suffix == ".csv":
        raise click.UsageError(f"column {nested[0]!r} has no form in CSV; write a .parquet file")
    try:
        if file.suffix == ".csv":
            csv.write_csv(record.rows, str(file))
        else:
            pq.write_table(record.rows, file)
    except OSError as error:
        raise StorageError(f"could not write {str(file)!r}: {error}; give another file") from error
    rows, number = record.rows.num_rows, record.checkpoint_id
    if as_json:
        found = {"file": str(file), "stage": stage, "checkpoint_id": number, "keys": rows}
        click.echo(documents.text(found))
    else:
        click.echo(f"wrote {file}: {rows:,} keys of {stage} at checkpoint {number}")
