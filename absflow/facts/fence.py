"""What stops a driver for which a newer one has started on the same storage root.

A newer driver shows itself by the note beside the lock (:mod:`absflow.facts.lock`; local file
systems) and by its claim in the ``attempts`` table (all of them). The older looks before each of
its writes. Between a look and the end of the write that follows there is a window, as long as the
write; the lock closes it, because the newer does nothing before the older has let go. Where there
is no lock, a write in that window is harmless, for other reasons:

- the claim: drivers that start at once may have one number; Delta lets the first commit with it in,
  and the others see that it is not their own (:mod:`absflow.facts.driver_table`);
- driver tables: the newer's first commit to each has a higher ``txnVersion`` than all of the
  older's, so Delta skips what the older commits after it, or finds the two in conflict;
- channels, sinks, state histories: the write has the transaction id under which the newer repeats
  it (attempt and batch, or checkpoint), so it is there once, and its rows are the same, because
  the newer replays the batch from the same offsets;
- Spark's own offset log takes each batch from one of the two; the other's query fails.

Not closed: a foreach-batch function of the user's (it is at least once anyway), and a store where
Delta does not put a commit on the condition that there is none. On S3 the log store of
:mod:`absflow.storage.java` does; Delta's own, if somebody has chosen that, looks and then writes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from absflow.errors import FencedError
from absflow.facts.lock import RootLock
from absflow.storage import clock
from absflow.storage.delta.log import LogTail

__all__ = ["LOOK_STANDS_MS", "Fence"]

# What was seen stands for as long as some writes to an object store take.
LOOK_STANDS_MS = 500


class Fence:
    """Between one driver and every newer one; all threads of the driver ask it."""

    def __init__(
        self,
        read: Callable[[str], str | None],
        names: Callable[[str], Sequence[str]],
        attempts: str,
        incarnation: int,
        lock: RootLock,
        *,
        paid: bool = False,
    ) -> None:
        """Look out for drivers newer than ``incarnation``.

        Args:
            read: gives a file's text or None.
            names: gives the names in a directory.
            attempts: the table of the claims; it need not be there yet.
            incarnation: this driver's.
            lock: of the storage root.
            paid: whether each look is a request that is paid for.
        """
        self._log = LogTail(read, names, attempts)
        self._incarnation = incarnation
        self._lock = lock
        self._stands_ms = LOOK_STANDS_MS if paid else 0
        self._looked_ms: int | None = None
        self._mutex = threading.Lock()
        self._seen: str | None = None

    def check(self) -> None:
        """Look once: for the next file of the table's log, and for the note.

        Where a look is paid for, several writes that follow at once have one between them.

        Raises:
            FencedError: a newer driver has started; once raised, at every call.
            StorageError: the log could not be read.
        """
        with self._mutex:
            now = clock.steady_ms()
            if self._looked_ms is None or now - self._looked_ms >= self._stands_ms:
                self._seen = self._seen or self._newer()
                self._looked_ms = now
            seen = self._seen
        if seen is not None:
            raise FencedError(
                f"{seen}. This driver, incarnation {self._incarnation}, commits nothing more. "
                "Nothing is lost, the newer one goes on from the last commit; start one driver "
                "only on a storage root"
            )

    def _newer(self) -> str | None:
        for commit in self._log.advance():
            claimed = commit.note.get("incarnation")
            if isinstance(claimed, int) and claimed > self._incarnation:
                at = f"{commit.at:%Y-%m-%d %H:%M:%S} UTC"
                return f"driver incarnation {claimed} took the job over at {at}"
        asked = self._lock.asked()
        return None if asked is None else f"a newer driver takes the job over: {asked}"
