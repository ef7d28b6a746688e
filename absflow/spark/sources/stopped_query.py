"""Where a streaming query of plain Spark stood when it was stopped, read from its checkpoint.

A job that takes such a query over goes on there (:meth:`absflow.Job.write_savepoint`). Nothing in
the query's checkpoint is changed, so it can be started again.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from absflow.columnar.spec import InputSpec
from absflow.errors import StateError
from absflow.spark.sources.positions import NOTHING_READ
from absflow.storage.files import Files

__all__ = ["StoppedAt", "stopped_at"]

# Spark's offset log, one file for each micro-batch: its version, metadata, an offset per source.
_VERSION = "v1"
_BEFORE_OFFSETS = 2


@dataclass(frozen=True, slots=True)
class StoppedAt:
    """Where a source of a stopped query goes on.

    Attributes:
        position: as Spark writes it.
        log: the directory of what it needs beside itself.
    """

    position: str
    log: str


def stopped_at(files: Files, source: InputSpec, given: str) -> StoppedAt | None:
    """Where ``source`` goes on; None if the query had read nothing of it.

    Args:
        files: for reading.
        source: the source, as the stage sees it that reads it.
        given: the query's ``checkpointLocation``; with ``#2`` behind it its third source is meant,
            else its only one.

    Raises:
        StateError: there is no such query, it was stopped within a micro-batch, or its source is
            of another kind.
        StorageError: its checkpoint cannot be read.
    """
    match = re.fullmatch(r"(.+?)(?:#(\d+))?", given)
    path, number = (match[1], match[2]) if match else (given, None)
    path = files.qualified(path).rstrip("/")
    offsets = _offsets(files, path)
    if number is None and len(offsets) != 1:
        raise StateError(
            f"the query of {path!r} reads {len(offsets)} sources; say which one source "
            f"{source.name!r} is, by its place among them: '{path}#0' is the first"
        )
    place = int(number or 0)
    if place >= len(offsets):
        raise StateError(
            f"source {source.name!r} is {given!r}, but the query of {path!r} reads {len(offsets)} "
            "sources, of which #0 is the first"
        )
    position = offsets[place]
    if position == NOTHING_READ:
        return None
    if _is_of_files(position) != source.files:
        raise StateError(
            f"source {source.name!r} is {source.format}, but source {place} of the query of "
            f"{path!r} stands at {position}, which is a position of another kind; give the "
            "source the format that it had in the query"
        )
    return StoppedAt(position, f"{path}/sources/{place}")


def _offsets(files: Files, path: str) -> list[str]:
    """Where each source stood at the end of the newest micro-batch."""
    committed, planned = _newest(files, f"{path}/commits"), _newest(files, f"{path}/offsets")
    if committed is None or planned is None:
        raise StateError(
            f"{path!r} has no micro-batch of a streaming query; give the checkpointLocation of one "
            "that has run"
        )
    if planned != committed:
        raise StateError(
            f"the query of {path!r} was stopped within micro-batch {planned}, whose rows may be in "
            "its sink and are not in its state; start it once more with "
            "trigger(availableNow=True), wait for its end, and try again"
        )
    text = files.read(f"{path}/offsets/{planned}") or ""
    version, *lines = text.splitlines() or [""]
    if version != _VERSION:
        raise StateError(
            f"'{path}/offsets/{planned}' begins with {version!r}, expected {_VERSION!r}: another "
            "Spark has written it, in a form that is not known here"
        )
    return lines[_BEFORE_OFFSETS - 1 :]


def _newest(files: Files, log: str) -> int | None:
    """The newest micro-batch in one of a query's logs; None if there is none."""
    return max((int(name) for name in files.names(log) if name.isdecimal()), default=None)


def _is_of_files(position: str) -> bool:
    """Whether it is a file source's: a number of its own log."""
    try:
        found = json.loads(position)
    except ValueError:
        return False
    return isinstance(found, dict) and set(found) == {"logOffset"}
