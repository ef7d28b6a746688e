"""The log of a Delta table, read commit by commit without a Spark job.

absflow asks one thing of a log: is this commit of mine really there. That needs only the JSON files
behind the last version that was read. A tail starts behind the newest checkpoint of the log: what
is before it may have been cleaned up, and is more with every day (PROTOCOL.md of Delta, "Delta Log
Entries" and "Last Checkpoint File").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any
from urllib.parse import unquote

__all__ = [
    "Commit",
    "DeltaPosition",
    "LogTail",
    "actions_of",
    "checkpoint_file",
    "commit_of",
    "commits_in",
    "file_of",
    "find_commit",
    "find_newest",
    "has_commit",
    "last_checkpoint",
    "log_file",
    "newest_version",
    "parse_commit",
]

_VERSION_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Commit:
    """What absflow needs of one commit.

    Attributes:
        version: the table's version.
        transactions: application id -> version, of this commit alone.
        changes_data: rows came or went; false for a compaction, or a change of properties.
        operation: what did it, as Delta calls it.
        at: when; 1970 if the commit does not say.
        note: the JSON object in its ``userMetadata``; empty if there is none.
    """

    version: int
    transactions: dict[str, int] = field(default_factory=dict)
    changes_data: bool = False
    operation: str = ""
    at: datetime = datetime(1970, 1, 1, tzinfo=timezone.utc)
    note: dict[str, Any] = field(default_factory=dict)


def actions_of(text: str) -> list[dict[str, Any]]:
    """The actions in a log file, a JSON object in each line."""
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def parse_commit(version: int, text: str) -> Commit:
    """Parse the JSON lines of one log file."""
    return commit_of(version, actions_of(text))


def commit_of(version: int, actions: Sequence[Mapping[str, Any]]) -> Commit:
    """What these actions say."""
    found = (action["txn"] for action in actions if "txn" in action)
    changes = [a.get("add") or a.get("remove") for a in actions]
    info: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
    return Commit(
        version,
        {txn["appId"]: txn["version"] for txn in found},
        changes_data=any(change and change.get("dataChange", True) for change in changes),
        operation=info.get("operation", ""),
        at=datetime.fromtimestamp(info.get("timestamp", 0) / 1000, tz=timezone.utc),
        note=_object(info.get("userMetadata")),
    )


def _object(text: str | None) -> dict[str, Any]:
    """A JSON object; empty for anything else, for a commit of others may say what it likes."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def log_file(table: str, version: int) -> str:
    """The path of a commit."""
    return f"{table}/_delta_log/{version:0{_VERSION_DIGITS}d}.json"


def checkpoint_file(table: str, version: int) -> str:
    """The path of the log's checkpoint at a version, if that is one file."""
    return f"{_log(table)}/{version:0{_VERSION_DIGITS}d}.checkpoint.parquet"


def file_of(table: str, path: str) -> str:
    """The file that a log means by a path: relative to the table, mostly; percent-encoded."""
    decoded = unquote(path)
    return decoded if ":/" in decoded or decoded.startswith("/") else f"{table}/{decoded}"


def find_commit(
    read: Callable[[str], str | None], table: str, newest: int, app_id: str, txn_version: int
) -> tuple[int, list[str]] | None:
    """The commit of a transaction: its version, and the paths of the files that it adds.

    Args:
        read: gives a file's text or None.
        table: the table's path.
        newest: the table's version; the search goes back from there.
        app_id: names the writer.
        txn_version: of the transaction.

    Returns:
        None if an older commit of the writer comes first, or the log ends.
    """
    for version in range(newest, -1, -1):
        text = read(log_file(table, version))
        if text is None:
            return None
        actions = actions_of(text)
        found = commit_of(version, actions).transactions.get(app_id, txn_version + 1)
        if found <= txn_version:
            adds = [action["add"]["path"] for action in actions if "add" in action]
            return (version, adds) if found == txn_version else None
    return None


def newest_version(names: Iterable[str]) -> int | None:
    """The newest version among the names in a log's directory; None if there is none."""
    return max(_versions(names), default=None)


def find_newest(
    read: Callable[[str], str | None],
    exists: Callable[[str], bool],
    names: Callable[[str], Sequence[str]],
    table: str,
) -> int | None:
    """The newest version of a table; None if there is none.

    A log of a week has many thousand files, so it is listed only if there is no other way: versions
    have no gap, so a few looks find the last one.
    """
    known = last_checkpoint(read, table)
    if known is None:
        if not exists(log_file(table, 0)):
            return newest_version(names(_log(table)))
        known = 0
    step = 1
    while exists(log_file(table, known + step)):
        known, step = known + step, 2 * step
    while step > 1:
        step //= 2
        known += step if exists(log_file(table, known + step)) else 0
    return known


def has_commit(
    exists: Callable[[str], bool], names: Callable[[str], Sequence[str]], table: str
) -> bool:
    """Whether there is a table: a kill may leave the directory of its log empty."""
    looks = (log_file(table, 0), f"{_log(table)}/_last_checkpoint")
    return any(exists(path) for path in looks) or newest_version(names(_log(table))) is not None


def last_checkpoint(read: Callable[[str], str | None], table: str) -> int | None:
    """The version of a table's last checkpoint; None if the log does not say."""
    hint = read(f"{_log(table)}/_last_checkpoint")
    try:
        return None if hint is None else int(json.loads(hint)["version"])
    except ValueError:
        # Delta does not put this file in place whole, so a kill may leave it empty, and Delta then
        # goes by what is there.
        return None


def commits_in(names: Callable[[str], Sequence[str]], table: str) -> list[int]:
    """The versions that are in a table's log, rising."""
    return sorted(_versions(names(_log(table))))


def _log(table: str) -> str:
    return f"{table}/_delta_log"


def _versions(names: Iterable[str]) -> list[int]:
    stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return [int(s) for s in stems if s.isdecimal() and len(s) == _VERSION_DIGITS]


@dataclass(frozen=True, slots=True)
class DeltaPosition:
    """A position as Delta writes it: all before, and a file itself, has been read.

    Attributes:
        table: the table's id.
        version: of the snapshot or commit.
        index: of the last file in it that was read; -1 for none.
        snapshot: it is in the snapshot of that version, not in its commit.
    """

    table: str
    version: int
    index: int
    snapshot: bool

    @classmethod
    def parse(cls, text: str) -> DeltaPosition:
        """Read the source's line in Spark's offset log."""
        position = json.loads(text)
        # Delta has several numbers below 0 for none; sliced with one of them, files would be lost.
        index, snapshot = max(int(position["index"]), -1), bool(position["isStartingVersion"])
        return cls(position["reservoirId"], int(position["reservoirVersion"]), index, snapshot)


class LogTail:
    """Follows the log of one table.

    Attributes:
        version: the newest version read or passed over; -1 before the first.
        transactions: application id -> newest version among the commits read.
    """

    def __init__(
        self,
        read: Callable[[str], str | None],
        names: Callable[[str], Sequence[str]],
        table: str,
    ) -> None:
        """Follow a table from its last checkpoint on.

        Args:
            read: gives a file's text or None.
            names: gives the names in a directory.
            table: the table's path.
        """
        self._read = read
        self._table = table
        self.version: int = self._begin(names)
        self.transactions: dict[str, int] = {}

    def _begin(self, names: Callable[[str], Sequence[str]]) -> int:
        known = last_checkpoint(self._read, self._table)
        if known is not None:
            return known
        # Most logs without a checkpoint begin with the table.
        if self._read(log_file(self._table, 0)) is not None:
            return -1
        return min(_versions(names(_log(self._table))), default=0) - 1

    def advance(self) -> list[Commit]:
        """The commits since the last call, in order; if a file cannot be read, none is passed."""
        commits: list[Commit] = []
        version = self.version + 1
        while (text := self._read(log_file(self._table, version))) is not None:
            commits.append(parse_commit(version, text))
            version += 1
        for commit in commits:
            self.version = commit.version
            self.transactions.update(commit.transactions)
        return commits

    def find(self, app_id: str, txn_version: int) -> bool:
        """Whether a commit of ``app_id`` with at least ``txn_version`` is in the log."""
        self.advance()
        return self.transactions.get(app_id, -1) >= txn_version
