"""The log of a Delta table, read commit by commit without a Spark job.

absflow asks one thing of a log: is this commit of mine really there. That needs only the JSON files
behind the last version that was read. A tail starts behind the newest checkpoint of the log: what
is before it may have been cleaned up, and is more with every day (PROTOCOL.md of Delta, "Delta Log
Entries" and "Last Checkpoint File").
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Commit", "LogTail", "parse_commit"]


@dataclass(frozen=True, slots=True)
class Commit:
    """What absflow needs of one commit.

    Attributes:
        version: the table's version.
        transactions: application id -> version, of this commit alone.
    """

    version: int
    transactions: dict[str, int] = field(default_factory=dict)


def parse_commit(version: int, text: str) -> Commit:
    """Parse the JSON lines of one log file."""
    actions = (json.loads(line) for line in text.splitlines() if line.strip())
    found = (action["txn"] for action in actions if "txn" in action)
    return Commit(version, {txn["appId"]: txn["version"] for txn in found})


class LogTail:
    """Follows the log of one table.

    Attributes:
        version: the newest version read or passed over; -1 before the first.
        transactions: application id -> newest version among the commits read.
    """

    def __init__(self, read: Callable[[str], str | None], table: str) -> None:
        """Follow ``table`` from its last checkpoint on; ``read`` gives a file's text or None."""
        self._read = read
        self._table = table
        hint = read(f"{table}/_delta_log/_last_checkpoint")
        self.version: int = -1 if hint is None else json.loads(hint)["version"]
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
