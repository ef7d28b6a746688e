"""The copies of a file source's log in one attempt, and how they are merged.

Each checkpoint adds a file with what is new (:mod:`absflow.spark.sources.positions`), called after
the last offset in it: ``17``. Ten files of one kind are merged into one, called after the last of
them and how often its entries were merged: ``17.1``, ten of those into one ``99.2``, and so on. So
their number grows with the logarithm of that of the checkpoints, and so does what is written for
one of them.

A file is put in place whole before those that it is made of are deleted. At any time all files
together hold every entry up to the last offset, some of them twice; nothing else is asked of them.
What a kill leaves twice is known by its name: a file merged more often holds all that there was up
to its offset.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from absflow.errors import StorageError
from absflow.spark.sources import file_log
from absflow.spark.sources.file_log import FileEntry

__all__ = ["entries_of", "last_offset", "merge", "texts"]

_AT_ONCE = 10
_LOOKS = 5


class _Files(Protocol):
    def names(self, path: str) -> list[str]:
        """The names in a directory, but for hidden ones."""

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""

    def write(self, path: str, text: str) -> None:
        """Put a file in place whole."""

    def delete(self, path: str) -> None:
        """Delete a file."""


@dataclass(frozen=True, slots=True, order=True)
class _Copy:
    """The name of a copy: its last offset, and how often its entries were merged."""

    upto: int
    merged: int = 0

    def __str__(self) -> str:
        return f"{self.upto}.{self.merged}" if self.merged else str(self.upto)


def last_offset(names: Iterable[str]) -> int:
    """The last offset in the copies of these names; -1 if there are none."""
    return max((copy.upto for copy in _copies(names)), default=-1)


def texts(files: _Files, folder: str) -> dict[str, str]:
    """All files of a directory of copies, by name, whatever is merged there meanwhile.

    Raises:
        StorageError: a file cannot be read.
    """
    for _ in range(_LOOKS):
        found = {name: files.read(f"{folder}/{name}") for name in files.names(folder)}
        whole = {name: text for name, text in found.items() if text is not None}
        if len(whole) == len(found):
            return whole
    raise StorageError(f"files in {folder!r} go as fast as they are read; try again")


def entries_of(files: _Files, folder: str) -> list[FileEntry]:
    """All entries in a directory of copies of a file source's log; some may come twice.

    Raises:
        StorageError: a file cannot be read, or is damaged.
    """
    there = texts(files, folder)
    return [entry for copy in _copies(there) for entry in file_log.parse(there[str(copy)])]


def merge(files: _Files, folder: str) -> None:
    """Merge what is due to be; delete what earlier merges left. For one caller at a time.

    Raises:
        StorageError: a file cannot be read, is damaged, or cannot be written; nothing is lost.
    """
    there = _copies(files.names(folder))
    while due := _due(there):
        made = _Copy(max(due).upto, max(due).merged + 1)
        read: Mapping[str, str | None] = {str(c): files.read(f"{folder}/{c}") for c in due}
        gone = [name for name, text in read.items() if text is None]
        if gone:
            raise StorageError(f"{folder}/{gone[0]} is gone, which the position of a source needs")
        entries = {e: None for text in read.values() for e in file_log.parse(text or "")}
        files.write(f"{folder}/{made}", file_log.text(entries))
        there.append(made)
        there = _delete_covered(files, folder, there)
    _delete_covered(files, folder, there)


def _delete_covered(files: _Files, folder: str, there: Collection[_Copy]) -> list[_Copy]:
    covered = _covered(there)
    for copy in sorted(covered):
        files.delete(f"{folder}/{copy}")
    return [copy for copy in there if copy not in covered]


def _covered(there: Collection[_Copy]) -> set[_Copy]:
    """What stands in a file that was merged more often."""
    return {
        old
        for old in there
        if any(new.merged > old.merged and new.upto >= old.upto for new in there)
    }


def _due(there: Collection[_Copy]) -> list[_Copy]:
    """All files of one kind, if they are many: what is merged least comes first."""
    left = set(there) - _covered(there)
    for merged in sorted({copy.merged for copy in left}):
        kind = [copy for copy in left if copy.merged == merged]
        if len(kind) >= _AT_ONCE:
            return sorted(kind)
    return []


def _copies(names: Iterable[str]) -> list[_Copy]:
    found = (re.fullmatch(r"(\d+)(?:\.(\d+))?", name) for name in names)
    return [_Copy(int(m[1]), int(m[2] or 0)) for m in found if m]
