"""The state of a stage's keys for the live page: some of them, or one and what it has been."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from absflow.cli import cells, documents
from absflow.cli.reader import Reader
from absflow.drawing.shapes import Line, line
from absflow.errors import NotFoundError
from absflow.facts.stages import find_stage

__all__ = ["KeysPage", "read_keys"]

_ROWS = 200
_CHECKPOINTS = 20
_PLOT = (480.0, 110.0)
_MOST = 1e300
# Checkpoints, the newest first, and the key's row at each.
Past = Sequence[tuple[int, Mapping[str, object] | None]]


@dataclass(frozen=True, slots=True)
class KeysPage:
    """Keys of a stage at a checkpoint.

    Attributes:
        root: the storage root.
        stage: the stage.
        stages: all of the job.
        checkpoint_id: the checkpoint.
        columns: of the state, the key's first.
        keys: how many of them are the key.
        rows: cells, as many as a page has.
        total: how many rows there are.
        asked: values that columns must have; None for null.
        past: if one key was asked for: of each checkpoint its cells, the newest first.
        plots: of each column of numbers its line over these checkpoints, the oldest first.
        plot_size: of each.
    """

    root: str
    stage: str
    stages: tuple[str, ...]
    checkpoint_id: int
    columns: tuple[str, ...]
    keys: int
    rows: tuple[tuple[str, ...], ...]
    total: int
    asked: Mapping[str, str | None]
    past: tuple[tuple[str, ...], ...]
    plots: tuple[tuple[str, Line], ...]
    plot_size: tuple[float, float] = _PLOT


def read_keys(reader: Reader, query: Mapping[str, str]) -> KeysPage:
    """Read what is asked for.

    Args:
        reader: of the storage root.
        query: ``stage``; ``at``, a checkpoint, or the newest; and for columns ``key.NAME`` the
            value, as ``absflow state --json`` prints it, or ``null.NAME`` for null.

    Raises:
        NotFoundError: there is no such stage, checkpoint or column, or no such value.
    """
    stages = tuple(reader.stages)
    stage = query.get("stage") or next(iter(stages))
    find_stage(reader.stages, stage)
    at = query.get("at", "")
    if at and not at.isdecimal():
        raise NotFoundError(f"at={at!r} is no checkpoint's id")
    asked: dict[str, str | None] = {
        n.removeprefix("key."): v for n, v in query.items() if n.startswith("key.") and v
    }
    asked |= {n.removeprefix("null."): None for n in query if n.startswith("null.")}
    found = reader.state(stage, int(at) if at else None, asked)
    names = [*found.columns.key, *found.columns.state]
    whole = asked.keys() >= {*found.columns.key}
    key = {name: asked[name] for name in found.columns.key} if whole else {}
    past = reader.past(stage, key, _CHECKPOINTS, found.checkpoint_id) if whole else []
    return KeysPage(
        reader.layout.root,
        stage,
        stages,
        found.checkpoint_id,
        tuple(names),
        len(found.columns.key),
        tuple(
            tuple(documents.cell(row[name]) for name in names)
            for row in found.rows.slice(0, _ROWS).to_pylist()
        ),
        found.rows.num_rows,
        asked,
        tuple(_past_cells(n, row, found.columns.state) for n, row in past),
        tuple(_plots(past, found.columns.state)),
    )


def _past_cells(
    checkpoint_id: int, row: Mapping[str, object] | None, state: tuple[str, ...]
) -> tuple[str, ...]:
    values = [cells.NONE if row is None else documents.cell(row.get(name)) for name in state]
    return (str(checkpoint_id), *values)


def _plots(past: Past, state: tuple[str, ...]) -> list[tuple[str, Line]]:
    made = []
    for name in state:
        values = [None if row is None else _number(row.get(name)) for _, row in reversed(past)]
        if any(value is not None for value in values):
            made.append((name, line(values, *_PLOT)))
    return made


def _number(value: object) -> float | None:
    """One that a line can show: none below nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    number = float(value)
    return number if 0 <= number < _MOST else None
