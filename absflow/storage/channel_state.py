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

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count

from absflow.columnar.pages import SEQ_BITS
from absflow.errors import StorageError
from absflow.protocol.checkpoints import ChannelState
from absflow.storage.channel_log import ChannelCommit, ChannelFile, channel_commit, read_to
from absflow.storage.delta.log import log_file

__all__ = ["channel_state"]

_AT_ONCE = 16


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
    for text in _texts(read, channel, version):
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


def _texts(read: Callable[[str], str | None], channel: str, version: int) -> Iterator[str]:
    """The log's files from a version on, as many of them at once as have come, up to a bound.

    A store far away answers each in 30 ms, and a backlog has thousands.
    """
    ahead: deque[Future[str | None]] = deque()
    asked = version
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            for come in count():
                while len(ahead) < min(come + 1, _AT_ONCE):
                    ahead.append(pool.submit(read, log_file(channel, asked)))
                    asked += 1
                text = ahead.popleft().result()
                if text is None:
                    return
                yield text
        finally:
            pool.shutdown(cancel_futures=True)
