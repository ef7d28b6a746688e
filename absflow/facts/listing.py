"""Checkpoints as people look at them: one by one, or the newest of many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from absflow.facts.absent import no_checkpoint
from absflow.facts.reading import FactReader
from absflow.facts.records import CheckpointRecord, timestamp
from absflow.protocol.checkpoints import Status
from absflow.protocol.known import Known, Trigger

__all__ = ["HistoryRecord", "checkpoints", "newest"]


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """The newest checkpoints, and what is to be said of all.

    Attributes:
        shown: the newest ones, by id.
        counts: how many there are of each status.
        median_duration_ms: of those that are completed; None without any.
    """

    shown: tuple[CheckpointRecord, ...]
    counts: Mapping[Status, int]
    median_duration_ms: float | None

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.counts.values())


def newest(facts: FactReader, limit: int | None) -> HistoryRecord:
    """The newest checkpoints of a job; None for all."""
    known = facts.known()
    pending = {t.barrier.checkpoint_id: t for t in known.pending}
    ids = sorted({*pending, *facts.newest_ended(known, limit)})
    shown = ids if limit is None else ids[-limit:]
    durations = facts.durations(known.there)
    counts = {
        Status.PENDING: len(pending),
        Status.COMPLETED: len(known.there),
        Status.ABORTED: known.aborted_count,
        Status.DELETED: known.done_count - len(known.there),
    }
    middle = median(durations) if durations else None
    return HistoryRecord(tuple(_records(facts, known, shown)), counts, middle)


def checkpoints(facts: FactReader, ids: Sequence[int]) -> list[CheckpointRecord]:
    """These checkpoints, whatever their status.

    Raises:
        NotFoundError: one was never triggered, or was deleted.
    """
    records = _records(facts, facts.known(named=ids), ids)
    there = {r.checkpoint_id: r for r in records if r.status is not Status.DELETED}
    for checkpoint_id in ids:
        if checkpoint_id not in there:
            raise no_checkpoint(facts, checkpoint_id)
    return [there[n] for n in ids]


def _records(facts: FactReader, known: Known, ids: Iterable[int]) -> list[CheckpointRecord]:
    wanted = {*ids}
    there = {*known.there}
    pending = (t for t in known.pending if t.barrier.checkpoint_id in wanted)
    records = [
        *(_ended(r, gone=r.checkpoint_id not in there) for r in facts.ended(wanted)),
        *map(_pending, pending),
    ]
    return sorted(records, key=lambda record: record.checkpoint_id)


def _ended(record: CheckpointRecord, *, gone: bool) -> CheckpointRecord:
    """A checkpoint with a terminal fact; ``gone`` if it is not among what is completed now."""
    if record.status is Status.COMPLETED and gone:
        return replace(record, status=Status.DELETED, stages=())
    return record


def _pending(trigger: Trigger) -> CheckpointRecord:
    """A checkpoint without a terminal fact."""
    barrier = trigger.barrier
    return CheckpointRecord(
        checkpoint_id=barrier.checkpoint_id,
        status=Status.PENDING,
        attempt=trigger.attempt,
        base_id=barrier.base_id,
        triggered_at=timestamp(barrier.triggered_ms),
    )
