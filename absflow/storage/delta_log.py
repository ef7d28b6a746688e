"""The log of a Delta table, read commit by commit without a Spark job.

absflow asks two things of a log on the hot path: is this commit of mine really there, and what was
in it. Both need only the JSON files behind the last version that was read, so the cost does not
grow with the age of the table (PROTOCOL.md of Delta, "Delta Log Entries").
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Commit", "LogTail", "parse_commit"]


@dataclass(frozen=True, slots=True)
class Commit:
    """What absflow needs of one commit.

    Attributes:
        version: the table's version.
        transactions: application id -> version, of this commit alone.
        files: paths of the data files it added, relative to the table.
        rows: their rows, as far as statistics tell.
        bytes: their sizes.
        user_metadata: what the writer noted.
    """

    version: int
    transactions: dict[str, int] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    rows: int = 0
    bytes: int = 0
    user_metadata: str | None = None


def parse_commit(version: int, text: str) -> Commit:
    """Parse the JSON lines of one log file."""
    transactions: dict[str, int] = {}
    files: list[str] = []
    rows = size = 0
    metadata = None
    for line in text.splitlines():
        action: dict[str, Any] = json.loads(line) if line.strip() else {}
        if txn := action.get("txn"):
            transactions[txn["appId"]] = txn["version"]
        if add := action.get("add"):
            files.append(add["path"])
            size += add["size"]
            rows += json.loads(add.get("stats") or "{}").get("numRecords", 0)
        if info := action.get("commitInfo"):
            metadata = info.get("userMetadata")
    return Commit(version, transactions, tuple(files), rows, size, metadata)


class LogTail:
    """Follows the log of one table.

    Attributes:
        version: the newest version read; -1 before the first.
        transactions: application id -> newest version among the commits read.
    """

    def __init__(self, read: Callable[[str], str | None], table: str, version: int = -1) -> None:
        """Follow ``table`` from behind ``version``; ``read`` gives a file's text or None."""
        self._read = read
        self._table = table
        self.version = version
        self.transactions: dict[str, int] = {}

    def advance(self) -> list[Commit]:
        """The commits since the last call, in order."""
        commits = []
        while (text := self._read(self._log_file(self.version + 1))) is not None:
            self.version += 1
            commit = parse_commit(self.version, text)
            self.transactions.update(commit.transactions)
            commits.append(commit)
        return commits

    def find(self, app_id: str, txn_version: int) -> bool:
        """Whether a commit of ``app_id`` with at least ``txn_version`` is in the log."""
        self.advance()
        return self.transactions.get(app_id, -1) >= txn_version

    def _log_file(self, version: int) -> str:
        return f"{self._table}/_delta_log/{version:020d}.json"
