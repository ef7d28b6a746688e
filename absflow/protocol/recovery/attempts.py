"""Where a start of the driver begins, and what a restore changes; known before anything is written.

Rules of this file: plain functions over facts and descriptions.

An *attempt* is one life of the job between restores. A STARTED fact opens it and names the
checkpoint it was restored from; nothing of it runs before its READY fact. So a start that finds no
READY discards what is there and makes the same restore again, as a new attempt, and nothing of an
attempt that was never ready can be seen (Flink: a restored job is not RUNNING before every task has
its state).

A restore changes nothing but the sinks, and those last. A RESTORED fact says that the state is in
and that from here on they are put back; a FAILED fact, that the restore ended with an error. One
that failed, when no sink was touched, is over: a start that asks for nothing goes on with the
attempt before. One that was killed is not: nobody has seen it end, and it can still be made. And
behind a RESTORED fact there is no way back, for the output of the attempt before may be gone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

__all__ = [
    "LATEST",
    "Attempt",
    "Begin",
    "GoOn",
    "Origin",
    "Restore",
    "RestoreTarget",
    "Start",
    "current",
    "decide",
    "parse_target",
]


@dataclass(frozen=True, slots=True)
class Origin:
    """The checkpoint that an attempt begins with.

    Attributes:
        root: the storage root it lies under.
        checkpoint_id: its id there.
    """

    root: str
    checkpoint_id: int

    def __str__(self) -> str:
        """As ``spark.absflow.restore.from`` takes it."""
        return f"{self.root}#{self.checkpoint_id}"

    def written(self, here: str) -> str:
        """As a STARTED fact under a root has it: of that root as ``#ID``, for that may be moved."""
        return f"#{self.checkpoint_id}" if self.root == here else str(self)

    @classmethod
    def read(cls, text: str, here: str) -> Origin:
        """What a STARTED fact under a root says."""
        root, _, checkpoint_id = text.rpartition("#")
        return cls(root or here, int(checkpoint_id))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt in the ``attempts`` table.

    Attributes:
        attempt: its number, from 1 on.
        origin: what it was restored from; None if it began with nothing.
        ready: its READY fact is there.
        incarnation: the driver that opened it.
        restored: its RESTORED fact is there: sinks may have been put back.
        failed: a FAILED fact is there; of one that is not ready, its restore ended with an error.
    """

    attempt: int
    origin: Origin | None = None
    ready: bool = False
    incarnation: int = 0
    restored: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """What ``spark.absflow.restore.from`` says.

    Attributes:
        root: another storage root; None for the job's own.
        checkpoint_id: None for the latest.
    """

    root: str | None = None
    checkpoint_id: int | None = None


# The latest checkpoint of the job's own root, whatever it is at that start.
LATEST = RestoreTarget()


@dataclass(frozen=True, slots=True)
class Begin:
    """Start ``attempt`` with nothing, or finish the preparation that a killed driver began."""

    attempt: int = 1


@dataclass(frozen=True, slots=True)
class GoOn:
    """Go on with ``attempt`` where Spark's own checkpoints stand."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Start ``attempt`` from a checkpoint; ``discard`` names attempts that were never ready."""

    attempt: int
    target: RestoreTarget
    discard: tuple[int, ...] = ()


Start = Begin | GoOn | Restore


def parse_target(text: str) -> RestoreTarget:
    """``latest``, ``ID``, ``PATH#ID`` or ``PATH#latest``.

    Raises:
        ValueError: with what is expected.

    >>> parse_target("/data/job#42")
    RestoreTarget(root='/data/job', checkpoint_id=42)
    """
    path, sign, last = text.strip().rpartition("#")
    if (sign and not path) or not re.fullmatch(r"latest|[1-9]\d{0,17}", last):
        raise ValueError("latest, a checkpoint's id, PATH#ID or PATH#latest")
    root = (path.rstrip("/") or "/") if sign else None
    return RestoreTarget(root, None if last == "latest" else int(last))


def current(attempts: Collection[Attempt]) -> Attempt | None:
    """The attempt that the job is in, ready or still to be made so; None before the first.

    It is the newest, unless that is a restore that failed and no sink has been put back since the
    newest ready one.
    """
    newest = max(attempts, key=lambda a: a.attempt, default=None)
    ready = max((a for a in attempts if a.ready), key=lambda a: a.attempt, default=None)
    if newest is None or ready is None or not newest.failed:
        return newest
    touched = any(a.restored for a in attempts if a.attempt > ready.attempt)
    return newest if touched else ready


def decide(
    attempts: Sequence[Attempt], target: RestoreTarget | None, written: Collection[int] = ()
) -> Start:
    """What a start has to do.

    Args:
        attempts: all attempts under the storage root.
        target: a restore that was asked for. It is made at every start that asks for it.
        written: written savepoints there; only a job without any attempt is
            begun with the newest of them unasked.
    """
    newest = max(attempts, key=lambda a: a.attempt, default=None)
    unready = tuple(a.attempt for a in attempts if not a.ready)
    after = newest.attempt + 1 if newest else 1
    if target is not None:
        return Restore(after, target, unready)
    goes_on = current(attempts)
    if goes_on is None:
        return Restore(after, RestoreTarget(None, max(written))) if written else Begin()
    if goes_on.ready:
        return GoOn(goes_on.attempt)
    if goes_on.origin is None:
        return Begin(goes_on.attempt)
    return Restore(after, RestoreTarget(goes_on.origin.root, goes_on.origin.checkpoint_id), unready)
