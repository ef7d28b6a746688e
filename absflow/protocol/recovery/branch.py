"""Which checkpoints are those of the job as it is now.

Rules of this file: plain functions over facts.

The *branch* of a job is the newest ready attempt up to now, the attempt it was restored from up to
that checkpoint, and so on. Checkpoints beside the branch were abandoned by a restore to an older
one; they stay readable, but ``latest`` never means them.

A *written* savepoint (:mod:`absflow.protocol.recovery.savepoint_writer`) is no moment of the job:
it is of the attempt of the checkpoint that it was made from, but that attempt does not go on from
it. It is on the branch once an attempt was restored from it. Before that ``latest`` means it, until
the job has completed something newer or was restored from something else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from absflow.protocol.recovery.attempts import Attempt, Origin
from absflow.protocol.recovery.savepoint_writer import WrittenSavepoint

__all__ = ["Branch", "branch_ids", "branch_of", "latest"]


@dataclass(frozen=True, slots=True)
class Branch:
    """The branch of a job, newest first.

    Attributes:
        parts: its attempts, each with the last checkpoint of it that counts; None if all do.
        written: the written savepoints on it.
        beyond: where it leaves this root.
    """

    parts: tuple[tuple[int, int | None], ...]
    written: tuple[int, ...] = ()
    beyond: Origin | None = None

    def holds(self, attempt: int, checkpoint_id: int) -> bool:
        """Whether what an attempt took by itself is of the job as it is now."""
        # A job without any ready attempt has abandoned nothing.
        parts = [upto for at, upto in self.parts if at == attempt]
        return not self.parts or any(upto is None or checkpoint_id <= upto for upto in parts)


def branch_of(
    root: str,
    attempts: Iterable[Attempt],
    completed: Mapping[int, int],
    written: Mapping[int, WrittenSavepoint],
) -> Branch:
    """The branch of the job as it is now.

    Args:
        root: the storage root, as origins name it.
        attempts: all attempts under it.
        completed: the attempt of each completed checkpoint, by id, of deleted ones too.
        written: the written savepoints among them.
    """
    by_number = {a.attempt: a for a in attempts}
    at = max((a.attempt for a in by_number.values() if a.ready), default=None)
    upto: int | None = None
    parts: list[tuple[int, int | None]] = []
    savepoints: list[int] = []
    # What was written from nothing has an attempt that nobody started.
    while at in by_number:
        parts.append((at, upto))
        origin = by_number[at].origin
        if origin is None or origin.root != root:
            return Branch(tuple(parts), tuple(savepoints), origin)
        upto = origin.checkpoint_id
        while upto in written:
            savepoints.append(upto)
            upto = written[upto].base
        at = completed.get(upto)
    return Branch(tuple(parts), tuple(savepoints))


def branch_ids(
    root: str,
    attempts: Iterable[Attempt],
    completed: Mapping[int, int],
    written: Mapping[int, WrittenSavepoint],
) -> tuple[list[int], Origin | None]:
    """The checkpoints of the job as it is now, newest first, and where the branch leaves this root.

    Arguments as for :func:`branch_of`.
    """
    found = branch_of(root, attempts, completed, written)
    ids = [
        n
        for at, upto in found.parts
        for n, attempt in completed.items()
        if attempt == at and n not in written and (upto is None or n <= upto)
    ]
    return sorted([*ids, *found.written], reverse=True), found.beyond


def latest(
    root: str,
    attempts: Sequence[Attempt],
    completed: Mapping[int, int],
    written: Mapping[int, WrittenSavepoint],
    deleted: Collection[int] = (),
) -> Origin | None:
    """What ``latest`` means; None if nothing has completed.

    Arguments as for :func:`branch_of`; what is ``deleted`` cannot be meant.
    """
    line_ids, beyond = branch_ids(root, attempts, completed, written)
    ids = [n for n in line_ids if n not in deleted]
    ready = (a for a in attempts if a.ready)
    newest = max(ready, key=lambda a: a.attempt, default=None)
    begun = newest.incarnation if newest else 0
    savepoints = (n for n, w in written.items() if w.incarnation > begun and n not in deleted)
    since = max(savepoints, default=0)
    if since > max(ids, default=0):
        return Origin(root, since)
    return Origin(root, ids[0]) if ids else beyond
