"""Stages stand still behind the savepoint that the job will stop with.

Without this a root stage goes on reading while its barrier travels, and what it has read is in
channels and sinks when the job stops, only to be read again after a restore. A stage that has
snapshotted the savepoint runs no further batch; those behind it go on until they have, too, so the
channels empty. What a stage had read before it snapshotted, and held behind the barrier, goes out
with its snapshot all the same; :attr:`absflow.spark.control.run.Run.unflushed` counts these rows.
"""

from __future__ import annotations

import threading

__all__ = ["Drain"]


class Drain:
    """Shared by the thread of the job and those of the queries."""

    def __init__(self) -> None:
        """Nobody is held."""
        self._changed = threading.Condition()
        self._behind: int | None = None
        self._stopped = False

    def begin(self, checkpoint_id: int) -> None:
        """Hold every stage that has snapshotted ``checkpoint_id``, or a later one."""
        with self._changed:
            self._behind = checkpoint_id

    def give_up(self) -> None:
        """The savepoint has failed: let them go on."""
        with self._changed:
            self._behind = None
            self._changed.notify_all()

    def stop(self) -> None:
        """The queries are being stopped: nobody must wait any more, and nobody goes on."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def may_run(self, snapshot: int) -> bool:
        """Wait while a stage whose newest snapshot is ``snapshot`` is held.

        Returns:
            Whether it may run its batch; if not, it was held and the job stops.
        """
        with self._changed:
            held = self._is_held(snapshot)
            while self._is_held(snapshot) and not self._stopped:
                self._changed.wait()
            return not (held and self._stopped)

    def _is_held(self, snapshot: int) -> bool:
        return self._behind is not None and snapshot >= self._behind
