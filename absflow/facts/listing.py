"""Checkpoints as people look at them: one by one, or the newest of many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

from absflow.facts.absent import no_checkpoint
from absflow.facts.reading import FactReader
from absflow.facts.records import stage_of, timestamp
from absflow.protocol.checkpoints import FactKind, Kind, StageManifest, Status
from absflow.protocol.known import Known, Trigger

__all__ = ["CheckpointRecord", "HistoryRecord", "checkpoints", "newest"]


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One triggered checkpoint, with its terminal fact if it has one.

    Attributes:
        checkpoint_id: its id.
        status: derived from the facts.
        attempt: the attempt in which it was triggered.
        base_id: what its snapshots are relative to; 0 means that they are full.
        triggered_at: when.
        ended_at: when it was completed or aborted; None if pending.
        duration_ms: between the two.
        reason: code of the reason why it was aborted.
        cause: what was seen then.
        stages: the manifest; empty unless completed.
        versions: of absflow, pyspark and delta-spark.
        kind: whether the clock or a person asked for it.
    """

    checkpoint_id: int
    status: Status
    attempt: int
    base_id: int
    triggered_at: datetime
    ended_at: datetime | None = None
    duration_ms: int | None = None
    reason: str | None = None
    cause: str | None = None
    stages: tuple[StageManifest, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    kind: Kind = Kind.CHECKPOINT


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
        *(_ended(row, gone=row["checkpoint_id"] not in there) for row in facts.ended(wanted)),
        *map(_pending, pending),
    ]
    return sorted(records, key=lambda record: record.checkpoint_id)


def _ended(row: Mapping[str, Any], *, gone: bool) -> CheckpointRecord:
    """A checkpoint with a terminal fact; ``gone`` if it is not among what is completed now."""
    completed = row["kind"] == FactKind.COMPLETED.value
    deleted = completed and gone
    return CheckpointRecord(
        checkpoint_id=row["checkpoint_id"],
        status=Status.DELETED if deleted else Status(row["kind"]),
        attempt=row["attempt"],
        base_id=row["base_id"],
        triggered_at=row["triggered_at"],
        ended_at=row["ended_at"],
        duration_ms=row["duration_ms"],
        reason=row["reason"],
        cause=row["cause"],
        stages=() if deleted else tuple(map(stage_of, row["stages"] or [])),
        versions=dict(row["versions"] or []),
        kind=Kind(row["type"] or Kind.CHECKPOINT.value),
    )


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
