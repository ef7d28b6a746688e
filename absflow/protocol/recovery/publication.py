"""Which checkpoints an on-checkpoint sink still has to publish.

Rules of this file: plain functions over facts.

The rows of a stage wait in its channel (the pre-commit of a two-phase commit) until the checkpoint
that holds them completes (the commit). Every completed checkpoint on the branch of the job is
published once, in order; publication n brings the rows behind the one before it on the branch.
So what is owed follows from the facts, and a crash between a completion and its publication is made
good by whoever comes next. Checkpoints that a restore has left behind are not on the branch: what
they would have published was never seen, and never will be (Flink: ``Committer``, with the
checkpoint store in the place of the sink's own state).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from absflow.protocol.recovery.attempts import Attempt
from absflow.protocol.recovery.branch import branch_ids
from absflow.protocol.recovery.savepoint_writer import WrittenSavepoint

__all__ = ["Owed", "Publication", "unpublished"]


@dataclass(frozen=True, slots=True)
class Publication:
    """The rows with ``after`` < epoch <= ``checkpoint_id`` in the channel of ``attempt``."""

    checkpoint_id: int
    after: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Owed:
    """What is known of an on-checkpoint sink when a driver starts.

    Attributes:
        missing: what it must publish before anything else, in order.
        begun_with: the newest checkpoint that it held when the attempt began.
        noted: the newest that it is known to hold.
    """

    missing: Sequence[Publication]
    begun_with: int
    noted: int


def unpublished(
    root: str,
    attempts: Iterable[Attempt],
    completed: Mapping[int, int],
    written: Mapping[int, WrittenSavepoint],
    published: int,
) -> list[Publication]:
    """What must be published before anything else, in order.

    Args:
        root: the storage root, as origins name it.
        attempts: all attempts under it.
        completed: the attempt of each completed checkpoint, by id.
        written: the written savepoints among them, which bring no rows.
        published: the newest checkpoint whose rows the sink holds; 0 if there is none.
    """
    ids, beyond = branch_ids(root, attempts, completed, written)
    before = [*ids[1:], beyond.checkpoint_id if beyond else 0]
    found = [
        Publication(n, m, completed[n])
        for n, m in zip(ids, before, strict=False)
        if n not in written
    ]
    return sorted((p for p in found if p.checkpoint_id > published), key=lambda p: p.checkpoint_id)
