"""The log of a channel: which rows and barriers its commits brought, without reading a row."""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from absflow.errors import StorageError
from absflow.protocol.load import Backlog
from absflow.storage.delta.log import DeltaPosition, actions_of, commit_of, log_file

__all__ = ["ChannelCommit", "ChannelFile", "ChannelTail", "channel_commit", "read_to"]


@dataclass(frozen=True, slots=True)
class ChannelFile:
    """A file with rows, all of one epoch."""

    path: str
    epoch: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ChannelCommit:
    """A commit of a channel's log.

    Attributes:
        version: of the table.
        at_ms: when, ms since 1970 (UTC).
        batch: the sender's micro-batch; -1 for a commit of anything but rows or control rows.
        files: with rows of data; empty for a commit of control rows.
        barrier: the newest barrier in it, 0 for none.
        ends: the sender's END is in it.
    """

    version: int
    at_ms: int
    batch: int = -1
    files: tuple[ChannelFile, ...] = ()
    barrier: int = 0
    ends: bool = False

    @property
    def rows(self) -> int:
        """The rows in its files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """The sizes of its files."""
        return sum(file.bytes for file in self.files)


def channel_commit(channel: str, version: int, text: str) -> ChannelCommit:
    """Parse a log file.

    Raises:
        StorageError: it has rows and does not say how many.
    """
    actions = actions_of(text)
    commit = commit_of(version, actions)
    at_ms = round(commit.at.timestamp() * 1000)
    words = str(commit.note.get("rows", "")).replace(",", "").split()
    if not words:
        return ChannelCommit(version, at_ms)
    batch = int(commit.note["batch"])
    if words == ["rows"]:
        files = tuple(_file(channel, action["add"]) for action in actions if "add" in action)
        return ChannelCommit(version, at_ms, batch, files)
    barrier = max((int(word) for word in words if word.isdecimal()), default=0)
    return ChannelCommit(version, at_ms, batch, barrier=barrier, ends="end" in words)


def _file(channel: str, add: dict[str, Any]) -> ChannelFile:
    rows = json.loads(add.get("stats") or "{}").get("numRecords")
    if rows is None:
        raise StorageError(
            f"the log of channel {channel!r} does not say how many rows {add['path']!r} has; set "
            "spark.databricks.delta.stats.collect to true"
        )
    epoch = int(add["partitionValues"]["_epoch"])
    return ChannelFile(add["path"], epoch, int(rows), int(add["size"]))


def read_to(position: str) -> DeltaPosition | None:
    """How far a reader has come, as Spark's offset log says it; None if it has read nothing."""
    return None if position == "-" else DeltaPosition.parse(position)


class ChannelTail:
    """Follows a channel's log, and knows what is unread behind any position not yet forgotten.

    A commit is read once. What is kept is what the slowest reader has not read; asking costs a
    search, however long that is. Any thread may ask, and waits for none that reads the log.
    """

    def __init__(self, read: Callable[[str], str | None], channel: str, version: int) -> None:
        """Follow ``channel`` from ``version`` on; ``read`` gives a file's text or None."""
        self._read = read
        self._channel = channel
        self._next = version
        self._floor = version
        self._reading = threading.Lock()
        self._lock = threading.Lock()
        self._commits: list[ChannelCommit] = []
        # Rows and bytes in all commits before each, and before the one that comes next.
        self._before: list[tuple[int, int]] = [(0, 0)]

    def advance(self) -> None:
        """Read the commits since the last call.

        Raises:
            StorageError: the log cannot be read.
        """
        with self._reading:
            # What every reader has read may not be in the log any more.
            self._next = max(self._next, self._floor)
            while (text := self._read(log_file(self._channel, self._next))) is not None:
                commit = channel_commit(self._channel, self._next, text)
                self._next += 1
                if commit.files:
                    self._append(commit)

    def _append(self, commit: ChannelCommit) -> None:
        with self._lock:
            rows, size = self._before[-1]
            self._commits.append(commit)
            self._before.append((rows + commit.rows, size + commit.bytes))

    def forget(self, version: int) -> None:
        """No reader will be asked about that is before ``version``."""
        self._floor = version
        with self._lock:
            gone = self._place(version)
            del self._commits[:gone], self._before[:gone]

    def backlog(self, sender: str, position: DeltaPosition | None, now_ms: int) -> Backlog:
        """What is unread behind a position; None for a reader that has read nothing.

        Args:
            sender: whose channel it is.
            position: the reader's.
            now_ms: the wall clock, by which the log's times are.
        """
        with self._lock:
            return self._backlog(sender, position, now_ms)

    def _backlog(self, sender: str, position: DeltaPosition | None, now_ms: int) -> Backlog:
        place = self._place(position.version) if position else 0
        (rows, size), (rows_before, size_before) = self._before[-1], self._before[place]
        rows, size = rows - rows_before, size - size_before
        begun = self._commits[place] if place < len(self._commits) else None
        if begun and position and begun.version == position.version:
            read = begun.files[: position.index + 1]
            rows -= sum(file.rows for file in read)
            size -= sum(file.bytes for file in read)
            if len(read) == len(begun.files):
                place += 1
        commits = len(self._commits) - place
        age = max(0, now_ms - self._commits[place].at_ms) if commits else 0
        return Backlog(sender, commits, rows, size, age)

    def _place(self, version: int) -> int:
        return bisect_left(self._commits, version, key=lambda commit: commit.version)
