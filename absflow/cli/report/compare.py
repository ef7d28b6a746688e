"""One checkpoint by itself, and two beside each other, for the live page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from absflow.cli import cells
from absflow.cli.differences import difference
from absflow.cli.reader import Reader
from absflow.cli.report.detail import detail_of
from absflow.cli.report.model import Detail
from absflow.errors import NotFoundError
from absflow.facts.records import CheckpointRecord
from absflow.protocol.checkpoints import Status

__all__ = ["KEY_COLUMNS", "Compared", "read_compared", "read_one"]

KEY_COLUMNS = ("stage", "keys that came", "went", "changed")


@dataclass(frozen=True, slots=True)
class Compared:
    """Two checkpoints, or one.

    Attributes:
        root: the storage root.
        details: of each; what the later lists as changed is against the earlier.
        keys: of each stage of both its cells (:data:`KEY_COLUMNS`), or why it has none.
        command: says the same on a terminal.
    """

    root: str
    details: tuple[Detail, ...]
    keys: tuple[tuple[str, ...], ...]
    command: str


def read_one(reader: Reader, query: Mapping[str, str]) -> Compared:
    """All of the checkpoint ``id``.

    Raises:
        NotFoundError: there is none.
    """
    record = _record(reader, query, "id")
    number = record.checkpoint_id
    return Compared(reader.layout.root, (detail_of(record, None),), (), f"absflow show {number}")


def read_compared(reader: Reader, query: Mapping[str, str]) -> Compared:
    """The checkpoints ``earlier`` and ``later``.

    Raises:
        NotFoundError: one of them is not there.
    """
    earlier, later = (_record(reader, query, name) for name in ("earlier", "later"))
    both = earlier.status is later.status is Status.COMPLETED
    ids = earlier.checkpoint_id, later.checkpoint_id
    there = {stage.report.stage for stage in earlier.stages}
    names = [stage.report.stage for stage in later.stages if stage.report.stage in there]
    return Compared(
        reader.layout.root,
        (detail_of(earlier, None), detail_of(later, earlier if both else None)),
        tuple(_keys(reader, name, *ids) for name in names),
        f"absflow diff {ids[0]} {ids[1]}",
    )


def _record(reader: Reader, query: Mapping[str, str], name: str) -> CheckpointRecord:
    given = query.get(name, "").strip()
    if not given.isdecimal():
        raise NotFoundError(f"{name}={given!r} is no checkpoint's id")
    return reader.checkpoint(int(given))


def _keys(reader: Reader, stage: str, earlier: int, later: int) -> tuple[str, ...]:
    if not reader.stages[stage].key:
        return (stage, *[cells.NONE] * 3)
    try:
        found = difference(reader, stage, earlier, later)
    except NotFoundError as error:  # it had another key then
        return (stage, str(error), cells.NONE, cells.NONE)
    numbers = (found.came.num_rows, found.went.num_rows, found.after.num_rows)
    return (stage, *map(cells.count, numbers))
