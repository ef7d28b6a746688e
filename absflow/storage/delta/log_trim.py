"""Old commits of a log, which nobody reads any more, and how far a query has read one.

Delta itself deletes commits by their age alone, and in whole days; it cannot know how far behind a
stream is that was stopped for some days. Who knows the streams can keep less. What goes is always
the oldest part of a log, and never what is behind its last checkpoint, so a table is read as
before; only its older versions cannot be any more.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from absflow.storage.delta.log import (
    DeltaPosition,
    commits_in,
    last_checkpoint,
    log_file,
    parse_commit,
)

__all__ = ["asks_from", "trim", "vacuumed"]

_Read = Callable[[str], str | None]
_Names = Callable[[str], Sequence[str]]
# Deleted at a time, a call each.
_AT_MOST = 5000


def trim(
    read: _Read,
    names: _Names,
    delete: Callable[[str], None],
    table: str,
    upto: int | None,
    before_ms: int,
) -> int:
    """Delete the oldest commits of a log, in their order; how many.

    Args:
        read: gives a file's text or None.
        names: gives the names in a directory.
        delete: deletes a file.
        table: the table's path.
        upto: what somebody may still ask for begins here; None if nobody asks for old commits.
        before_ms: since 1970; commits of this time or later stay.
    """
    checkpoint = last_checkpoint(read, table)
    if checkpoint is None:
        return 0
    end = checkpoint if upto is None else min(checkpoint, upto)
    old = [version for version in commits_in(names, table) if version < end]
    at = datetime.fromtimestamp(before_ms / 1000, tz=timezone.utc)

    def stays(version: int) -> bool:
        text = read(log_file(table, version))
        return text is None or parse_commit(version, text).at >= at

    # Times rise with versions, so a few commits are read; a clock that jumps keeps more or less.
    gone = old[: bisect_left(old, True, key=stays)][:_AT_MOST]
    sums = set(names(f"{table}/_delta_log"))
    for version in gone:
        path = log_file(table, version)
        delete(path)
        # Delta's checksum of that version; behind the commit, which may not be there without it.
        beside = path.removesuffix(".json") + ".crc"
        if beside.rpartition("/")[2] in sums:
            delete(beside)
    return len(gone)


def vacuumed(read: _Read, table: str) -> int:
    """Up to where the last LITE VACUUM has looked at a log; -1 if there was none.

    The next one reads from there on, and refuses a log that begins later.
    """
    text = read(f"{table}/_delta_log/_last_vacuum_info")
    try:
        found = json.loads(text or "{}").get("latestCommitVersionOutsideOfRetentionWindow")
    except ValueError:
        return -1
    return -1 if found is None else int(found)


def asks_from(read: _Read, names: _Names, spark_checkpoint: str, table_id: str) -> int | None:
    """The oldest version of a streamed table that a query may still ask for.

    That is where its last committed batch began: started again, Spark asks for that batch once
    more.

    Args:
        read: gives a file's text or None.
        names: gives the names in a directory.
        spark_checkpoint: the query's.
        table_id: Delta's id of the table.

    Returns:
        None if that is not known yet.
    """
    committed = [int(n) for n in names(f"{spark_checkpoint}/commits") if n.isdecimal()]
    text = read(f"{spark_checkpoint}/offsets/{max(committed) - 1}") if committed else None
    lines = (line for line in (text or "").splitlines() if '"reservoirId"' in line)
    found = [p for p in map(DeltaPosition.parse, lines) if p.table == table_id]
    if not found or any(position.snapshot for position in found):
        return None
    return min(position.version for position in found)
