"""The log of Spark's file source: which files it has read, in ``sources/<i>`` of a checkpoint.

A file of the log is one offset of the source, ``<n>``. Every ``compact_interval``-th one is written
as ``<n>.compact`` instead and holds all entries up to ``n``; Spark reads nothing before the last of
these, and deletes it some time later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from absflow.errors import StorageError

__all__ = ["FileEntry", "build", "parse", "text"]

_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file that the source has read.

    Attributes:
        path: its path as Spark writes it, percent-encoded.
        timestamp_ms: when it was last modified.
        batch_id: the source's offset (``logOffset``) that it belongs to.
    """

    path: str
    timestamp_ms: int
    batch_id: int


def parse(log: str) -> list[FileEntry]:
    """The entries of one file of the log, compacted or not.

    Raises:
        StorageError: the text is not such a file.
    """
    version, *lines = log.split("\n")
    if version != _VERSION:
        raise StorageError(
            f"a file source's log begins with {version!r}, expected {_VERSION!r}: Spark's form of "
            "it has changed, or this is no such log"
        )
    try:
        rows = [json.loads(line) for line in lines]
        return [FileEntry(row["path"], row["timestamp"], row["batchId"]) for row in rows]
    except (ValueError, LookupError, TypeError) as error:
        raise StorageError(
            f"a file source's log does not parse ({error}): it is damaged"
        ) from error


def build(entries: Iterable[FileEntry], upto: int, compact_interval: int) -> dict[str, str]:
    """A log that ends at an offset: all its files, text by name.

    Args:
        entries: those of the files of a log that goes at least so far. The order of the files does
            not matter, and an entry may come from several of them.
        upto: the last offset; -1 if the source had read nothing.
        compact_interval: ``spark.sql.streaming.fileSource.log.compactInterval`` of the session
            that will read it.

    Raises:
        StorageError: an offset has no entry, so the log is not whole.
    """
    by_batch: dict[int, dict[FileEntry, None]] = {number: {} for number in range(upto + 1)}
    for entry in entries:
        if entry.batch_id in by_batch:
            by_batch[entry.batch_id][entry] = None
    missing = [number for number, files in by_batch.items() if not files]
    if missing:
        raise StorageError(
            f"a file source's log has no files at offset {missing[0]}, expected some at each one "
            f"up to {upto}: a part of the log is gone"
        )
    compacted = (upto + 1) // compact_interval * compact_interval
    files = {str(number): text(by_batch[number]) for number in range(compacted, upto + 1)}
    if compacted:
        before = [entry for number in range(compacted) for entry in by_batch[number]]
        files[f"{compacted - 1}.compact"] = text(before)
    return files


def text(entries: Iterable[FileEntry]) -> str:
    """One file of the log."""
    rows = (
        {"path": entry.path, "timestamp": entry.timestamp_ms, "batchId": entry.batch_id}
        for entry in entries
    )
    lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    return "\n".join([_VERSION, *lines])
