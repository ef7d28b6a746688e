"""The channel state of a checkpoint: rows in flight, found in the log of their channel.

A checkpoint that overtook a channel knows how far its reader had come. What it had not read of the
rows before the barrier is the checkpoint's channel state. It is kept by reference, and nothing of
it is read when the checkpoint completes: which files they are, and how many rows and bytes they
have, stands in the log's commits from there up to the one with the barrier.

A reader may stop between two files of a commit. Of that commit the unread files are named; all
later rows are told by their place in the order of the channel, so that a reference does not grow
with the backlog and outlives the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from absflow.columnar.pages import SEQ_BITS
from absflow.errors import StorageError
from absflow.protocol.checkpoints import ChannelState
from absflow.storage.delta_log import DeltaPosition, actions_of, commit_of, log_file

__all__ = ["channel_state"]


@dataclass(frozen=True, slots=True)
class _File:
    """A file with rows."""

    path: str
    epoch: int
    rows: int
    size: int


def channel_state(
    read: Callable[[str], str | None],
    channel: str,
    reader: str,
    sender: str,
    attempt: int,
    position: str,
    checkpoint_id: int,
) -> ChannelState | None:
    """The rows that a checkpoint has overtaken in one channel; None if there are none.

    Args:
        read: gives a file's text, or None if there is none.
        channel: the path of the table.
        reader: the stage that reads it.
        sender: the stage that writes it.
        attempt: whose it is.
        position: how far it had been read, as Spark writes it.
        checkpoint_id: the checkpoint; its barrier is in the channel.

    Raises:
        StorageError: the log ends before the barrier, or has no statistics.
    """
    place = None if position == "-" else DeltaPosition.parse(position)
    version, index = (place.version, place.index) if place else (0, -1)
    commits = list(_commits(read, channel, version, checkpoint_id))
    named: list[_File] = []
    first = next((batch for _, batch, _ in commits), 0)
    if index >= 0 and commits and commits[0][0] == version:
        first, named = first + 1, commits.pop(0)[2][index + 1 :]
    rest = [file for _, _, files in commits for file in files]
    due = [file for file in (*named, *rest) if file.epoch <= checkpoint_id]
    if not due:
        return None
    return ChannelState(
        stage=reader,
        input=sender,
        attempt=attempt,
        position=position,
        epoch=min(file.epoch for file in due),
        from_seq=first << SEQ_BITS,
        files=tuple(file.path for file in named if file in due),
        rows=sum(file.rows for file in due),
        bytes=sum(file.size for file in due),
    )


def _commits(
    read: Callable[[str], str | None], channel: str, version: int, checkpoint_id: int
) -> Iterator[tuple[int, int, list[_File]]]:
    """Version, the sender's batch, and the files, of each commit of rows up to the barrier."""
    while (text := read(log_file(channel, version))) is not None:
        actions = actions_of(text)
        note = commit_of(version, actions).note
        words = str(note.get("rows", "")).replace(",", "").split()
        if words == ["rows"]:
            adds = (action["add"] for action in actions if "add" in action)
            yield version, int(note["batch"]), [_file(channel, add) for add in adds]
        elif "end" in words or any(_passed(word, checkpoint_id) for word in words):
            return
        version += 1
    raise StorageError(
        f"the log of channel {channel!r} ends with version {version - 1}, before barrier "
        f"{checkpoint_id}; its stage has reported that checkpoint, so commits must be missing"
    )


def _passed(word: str, checkpoint_id: int) -> bool:
    return word.isdecimal() and int(word) >= checkpoint_id


def _file(channel: str, add: dict[str, Any]) -> _File:
    rows = json.loads(add.get("stats") or "{}").get("numRecords")
    if rows is None:
        raise StorageError(
            f"the log of channel {channel!r} does not say how many rows {add['path']!r} has; set "
            "spark.databricks.delta.stats.collect to true"
        )
    epoch = int(add["partitionValues"]["_epoch"])
    return _File(add["path"], epoch, int(rows), int(add["size"]))
