"""One driver at a time below a storage root on a local file system.

Delta's log store for local files is safe within one JVM only, so two drivers must never write at
once, not even their claims. A driver holds a lock file by ``flock`` from before it reads anything
until its queries have stopped. The kernel takes the lock from a process that dies, however it dies,
so a restart after a kill waits for nothing.

The handshake, when a newer driver finds the lock held:

1. the newer sees that nothing stands against its start, then puts a note beside the lock file;
2. the holder, which looks for the note twice a second and before its writes, stops and lets go;
3. the newer has the lock, removes the note, and only then reads what it goes by, and claims.

A holder that does not let go in time (it hangs, or is stopped) has done nothing wrong: the newer
withdraws its note and is refused. (A holder that was just about to stop then ends too: start
again.) Of several that wait, each puts the note again when it is gone, so one runs in the end. A
note whose writer was killed is removed by the next that gets the lock.

What the lock does not close: the moment that a JVM needs to notice that its Python process was
killed, and file systems that keep ``flock`` to one machine but are mounted on several.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable
from datetime import datetime, timezone

from absflow.errors import StorageError

__all__ = ["RootLock", "driver_gone", "hold", "holder"]

# Far above what a driver needs to end its micro-batches and what it still appends.
TAKEOVER_WAIT_S = 60.0
_POLL_S = 0.1
_LOCK = "driver.lock"
_NOTE = "driver.takeover"


class RootLock:
    """The lock of a storage root; on a file system that is not local there is none to hold."""

    def __init__(self, note: str, file: int | None) -> None:
        """Held through the open ``file``; ``note`` is where another driver asks for it."""
        self._note = note
        self._file = file

    @property
    def held(self) -> bool:
        """Whether there is a lock, and this driver has it."""
        return self._file is not None

    def asked(self) -> str | None:
        """The driver that asks the holder to let go, in words; None if there is none."""
        return _text(self._note) if self.held else None

    def release(self) -> None:
        """Let go; nothing happens if there is nothing to let go of."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # a child that was forked has the file open too
            os.close(self._file)
            self._file = None


def hold(root: str, before_asking: Callable[[], object]) -> RootLock:
    """Take the lock of a storage root, from a driver that holds it if need be.

    Args:
        root: the root with its scheme, as Hadoop qualifies it; the directory is there.
        before_asking: called once if there is a holder, which must not stop for a start that will
            be refused; so it raises what would refuse it.

    Raises:
        StorageError: the holder did not let go within ``TAKEOVER_WAIT_S``, or the file system
            refuses.
    """
    directory = local_directory(root)
    if directory is None:
        return RootLock("", None)
    path, note = f"{directory}/{_LOCK}", f"{directory}/{_NOTE}"
    now = datetime.now(timezone.utc)
    me = f"pid {os.getpid()} on {socket.gethostname()}, started {now:%Y-%m-%d %H:%M:%S} UTC"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not _taken(file):
                before_asking()
                _wait(file, path, note, me)
            os.ftruncate(file, 0)
            os.pwrite(file, me.encode(), 0)
        except BaseException:
            os.close(file)
            raise
        finally:
            _remove(note)
    except OSError as error:
        raise StorageError(
            f"could not lock {path!r}: {error}; spark.absflow.storage.path must be on a file "
            "system that this user can write to and that knows flock"
        ) from error
    return RootLock(note, file)


def driver_gone(root: str) -> bool:
    """Whether the driver that held a root's lock last is no more; False also if it is not known.

    It is known of a driver of this machine only: a file system may keep ``flock`` to one. A driver
    that starts at this very moment finds the lock held, and has it at its next look.

    Args:
        root: the storage root; of one that is no local directory nothing is known.
    """
    path = f"{root}/{_LOCK}"
    if not root.startswith("/"):
        return False
    if f" on {socket.gethostname()}, started " not in (_text(path) or ""):
        return False
    return _is_held(path) is False


def holder(root: str) -> str:
    """The driver that holds a root's lock now, in words; empty if none does, or it is not known.

    Args:
        root: the storage root; of one that is no local directory nothing is known.
    """
    path = f"{root}/{_LOCK}"
    if not root.startswith("/") or not _is_held(path):
        return ""
    return _text(path) or "unknown"


def _is_held(path: str) -> bool | None:
    """Whether somebody holds a lock; None if it is not known."""
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(file)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def local_directory(root: str) -> str | None:
    """The directory of a root on a local file system; None on any other."""
    scheme, _, path = root.partition(":")
    return "/" + path.lstrip("/") if scheme == "file" else None


def _wait(file: int, path: str, note: str, me: str) -> None:
    deadline = time.monotonic() + TAKEOVER_WAIT_S
    while not _taken(file):
        if time.monotonic() >= deadline:
            raise StorageError(
                f"another driver runs on this storage root and has not stopped in "
                f"{TAKEOVER_WAIT_S:g} s: {_text(path) or 'unknown'} (it holds {path!r}). Nothing "
                "was changed. Stop it, by a signal if it hangs, and start the job again"
            )
        if not os.path.exists(note):
            _put(note, me, f"{note}.{os.getpid()}-{file}")
        time.sleep(_POLL_S)


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _put(path: str, text: str, aside: str) -> None:
    """Put a file in place whole."""
    with open(aside, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(aside, path)


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
