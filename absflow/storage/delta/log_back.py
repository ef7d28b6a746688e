"""A table's log from its newest version back, and what a table needs that is to go back to one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from absflow.errors import StorageError
from absflow.storage.delta import tables
from absflow.storage.delta.log import Commit, actions_of, file_of, log_file, parse_commit
from absflow.storage.files import Files

__all__ = ["LogBack", "brought_back", "what_is_gone"]


class LogBack:
    """A log that is read once, from its newest version back.

    Attributes:
        table: the table's path.
        files: for looking.
        texts: the commits read so far, by version, the newest first.
    """

    def __init__(self, files: Files, table: str, newest: int) -> None:
        """Read the log of ``table``, whose newest version this is."""
        self.table = table
        self.files = files
        self.texts: dict[int, str] = {}
        self._newest = newest

    def commits(self) -> Iterator[Commit]:
        """The commits from the newest back, as far as the log goes."""
        for version in range(self._newest, -1, -1):
            text = self.files.read(log_file(self.table, version))
            if text is None:
                return
            self.texts[version] = text
            yield parse_commit(version, text)


def brought_back(
    commits: Iterable[tuple[int, Sequence[Mapping[str, Any]]]],
) -> dict[str, int]:
    """What a table needs again if it goes back to before some commits: files that it has not now.

    Args:
        commits: their versions and actions, from the newest back.

    Returns:
        The path of each file, and the version that removed it from what the table was before.
    """
    now: dict[str, bool] = {}
    before: dict[str, int | None] = {}
    for version, actions in commits:
        added = [action["add"]["path"] for action in actions if "add" in action]
        removed = [action["remove"]["path"] for action in actions if "remove" in action]
        # A file that is removed and added by one commit was there before it, and is behind it.
        for path in added:
            now.setdefault(path, True)
            before[path] = None
        for path in removed:
            now.setdefault(path, False)
            before[path] = version
    return {p: version for p, version in before.items() if version is not None and not now[p]}


def what_is_gone(spark: SparkSession, log: LogBack, then: int) -> Iterator[str]:
    """What the table needs to go back to version ``then`` and does not have any more, in words.

    Delta's RESTORE looks for the same, but by then the state of a job is in already.

    Args:
        spark: the session.
        log: the table's, read at least back to that version.
        then: the version.
    """
    since = ((v, actions_of(text)) for v, text in log.texts.items() if v > then)
    removed = {file_of(log.table, path): v for path, v in brought_back(since).items()}
    gone = log.files.missing(removed)
    if gone:
        by = max(removed[path] for path in gone)
        commit = parse_commit(by, log.texts[by])
        yield (
            f"table {log.table!r} cannot go back to version {then}: {len(gone)} of its files are "
            f"gone (VACUUM), {gone[0]!r} first; bring them back, or restore a checkpoint that was "
            f"taken after version {by} ({commit.operation}, {commit.at:%Y-%m-%d %H:%M:%S} UTC), "
            "which does not need them"
        )
        return
    try:
        tables.read(spark, log.table, then)
    except StorageError as error:
        yield (
            f"table {log.table!r} cannot go back to version {then}: {error.__cause__}; set "
            "delta.deletedFileRetentionDuration and delta.logRetentionDuration of the table above "
            "the age of the checkpoints you want to restore"
        )
