"""The channel state of a checkpoint: rows in flight, found in the log of their channel.

A checkpoint that overtook a channel knows how far its reader had come. What it had not read of the
rows before the barrier is the checkpoint's channel state. It is kept by reference, and nothing of
it is read when the checkpoint completes: which files they are, and how many rows and bytes they
have, stands in the log's commits from there up to the one with the barrier.

A reader may stop between two files of a commit. Of that commit the unread files are named; all
later rows are known by their place in the order of the channel, so that a reference does not grow
with the backlog and outlives the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from absflow.columnar.pages import SEQ_BITS
from absflow.errors import StorageError
from absflow.protocol.checkpoints import ChannelState
from absflow.storage.channel_log import ChannelCommit, ChannelFile, channel_commit, read_to
from absflow.storage.delta.log import log_file

__all__ = ["channel_state"]


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
    place = read_to(position)
    version, index = (place.version, place.index) if place else (0, -1)
    commits = list(_commits(read, channel, version, checkpoint_id))
    named: tuple[ChannelFile, ...] = ()
    first = next((commit.batch for commit in commits), 0)
    if index >= 0 and commits and commits[0].version == version:
        first, named = first + 1, commits.pop(0).files[index + 1 :]
    rest = [file for commit in commits for file in commit.files]
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
        bytes=sum(file.bytes for file in due),
    )


def _commits(
    read: Callable[[str], str | None], channel: str, version: int, checkpoint_id: int
) -> Iterator[ChannelCommit]:
    """The commits of rows up to the barrier."""
    while (text := read(log_file(channel, version))) is not None:
        commit = channel_commit(channel, version, text)
        if commit.files:
            yield commit
        elif commit.ends or commit.barrier >= checkpoint_id:
            return
        version += 1
    raise StorageError(
        f"the log of channel {channel!r} ends with version {version - 1}, before barrier "
        f"{checkpoint_id}; its stage has reported that checkpoint, so commits must be missing"
    )
