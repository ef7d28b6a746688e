"""Checkpoints as people look at them: one by one, or the newest of many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median

from absflow.drawing import words
from absflow.drawing.html import facts as named
from absflow.drawing.html import fragment, headed, table
from absflow.drawing.pictures import bars_of, strip_picture
from absflow.errors import NotFoundError
from absflow.facts.absent import no_checkpoint
from absflow.facts.attempts import JobNow
from absflow.facts.reading import FactReader
from absflow.facts.records import CheckpointRecord, sentence_of, timestamp
from absflow.protocol.checkpoints import FailureReason, Kind, Status
from absflow.protocol.known import Known, Trigger
from absflow.protocol.recovery.attempts import Origin
from absflow.protocol.recovery.branch import branch_of, latest

__all__ = [
    "HistoryRecord",
    "bar_lengths",
    "by_time",
    "checkpoints",
    "latest_id",
    "newest",
    "sought",
]

# A notebook's table has so many checkpoints, and these columns.
_ROWS = 10
_COLUMNS = (
    "id",
    "status",
    "attempt",
    "triggered (UTC)",
    "duration",
    "keys changed",
    "bytes changed",
    "notes",
)


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

    def html(self, title: str) -> str:
        """As a notebook shows it, under a title."""
        pairs = [(status.value.lower(), words.count(n)) for status, n in self.counts.items()]
        pairs.append(("median duration", words.duration(self.median_duration_ms)))
        boxes = bars_of(bar_lengths(self.shown))
        bars = [record.bar(box) for record, box in zip(self.shown, boxes, strict=True)]
        rows = [_cells(record) for record in self.shown[: -_ROWS - 1 : -1]]
        parts = [headed(title), named(pairs)]
        if bars:
            parts += [strip_picture(bars), table(_COLUMNS, rows, (0, 2, 4, 5, 6))]
        return fragment(*parts)


def bar_lengths(records: Sequence[CheckpointRecord]) -> list[float]:
    """How long the bar of each is in a strip.

    The duration; of what was not completed at most the longest of those that were. A checkpoint
    that a dead driver has left is aborted when the next one starts, be it on the next day, and
    would leave nothing to be seen of the others.
    """
    lengths = [float(r.duration_ms or 0) for r in records]
    whole = [float(r.duration_ms or 0) for r in records if r.status is Status.COMPLETED]
    most = max(whole or lengths, default=0.0)
    return [min(length, most) for length in lengths]


def _cells(record: CheckpointRecord) -> tuple[str, ...]:
    """A row of a notebook's table."""
    there = record.status is Status.COMPLETED
    return (
        str(record.checkpoint_id),
        record.status.value,
        str(record.attempt),
        words.time(record.triggered_at),
        words.duration(record.duration_ms),
        words.count(record.rows_changed) if there else words.NONE,
        words.size(record.bytes_changed) if there else words.NONE,
        sentence_of(record.reason) or ("savepoint" if record.kind is Kind.SAVEPOINT else ""),
    )


def newest(facts: FactReader, limit: int | None, job: JobNow) -> HistoryRecord:
    """The newest checkpoints of a job; None for all."""
    known = facts.known(named=job.origins)
    pending = {t.barrier.checkpoint_id: t for t in known.pending}
    ids = sorted({*pending, *facts.newest_ended(known, limit)})
    shown = ids if limit is None else ids[-limit:]
    durations = facts.durations(known.there)
    lost = len(pending) if job.lost else 0
    counts = {
        Status.PENDING: len(pending) - lost,
        Status.COMPLETED: len(known.there),
        Status.ABORTED: known.aborted_count + lost,
        Status.DELETED: known.done_count - len(known.there),
    }
    middle = median(durations) if durations else None
    return HistoryRecord(tuple(_records(facts, known, shown, job)), counts, middle)


def checkpoints(facts: FactReader, ids: Sequence[int], job: JobNow) -> list[CheckpointRecord]:
    """These checkpoints, whatever their status.

    Raises:
        NotFoundError: one was never triggered, or was deleted.
    """
    records = _records(facts, facts.known(named={*ids, *job.origins}), ids, job)
    there = {r.checkpoint_id: r for r in records if r.status is not Status.DELETED}
    for checkpoint_id in ids:
        if checkpoint_id not in there:
            raise no_checkpoint(facts, checkpoint_id, job.lost)
    return [there[n] for n in ids]


def latest_id(facts: FactReader, job: JobNow) -> int:
    """The checkpoint that ``latest`` means.

    Raises:
        NotFoundError: nothing has completed under this root.
    """
    found = sought(facts, facts.known(named=job.origins), job, None)
    if found.root != job.root:
        raise NotFoundError(
            f"nothing has completed under {job.root!r} yet, which is a fork; its latest checkpoint "
            f"is {found.checkpoint_id} under {found.root!r}: look there"
        )
    return found.checkpoint_id


def by_time(records: Iterable[CheckpointRecord], moment: datetime, root: str) -> int:
    """The newest completed checkpoint of the job that was triggered by a moment.

    Args:
        records: all checkpoints, by id.
        moment: with its zone.
        root: the storage root, for the error.

    Raises:
        NotFoundError: there is none.
    """
    there = [r for r in records if r.status is Status.COMPLETED and not r.abandoned]
    if found := [r.checkpoint_id for r in there if r.triggered_at <= moment]:
        return found[-1]
    oldest = f"; the oldest is {there[0].title}, of {there[0].triggered_at}" if there else ""
    raise NotFoundError(f"no completed checkpoint under {root!r} was triggered by {moment}{oldest}")


def sought(facts: FactReader, known: Known, job: JobNow, checkpoint_id: int | None) -> Origin:
    """What a restore begins with that asks for a checkpoint by its id; None for the latest.

    Args:
        facts: those of the job.
        known: what matters of its checkpoints, with the job's origins, and this one.
        job: the job.
        checkpoint_id: the id.

    Returns:
        The checkpoint. The latest of a fork that has none of its own lies under another root.

    Raises:
        NotFoundError: there is none.
    """
    if checkpoint_id is None:
        found = latest(job.root, job.attempts, known.attempts, known.written, known.deleted)
        if found is not None and found.root != job.root:
            return found
        checkpoint_id = found.checkpoint_id if found else None
    if checkpoint_id is None or checkpoint_id not in known.there:
        raise no_checkpoint(facts, checkpoint_id, job.lost)
    return Origin(job.root, checkpoint_id)


def _records(
    facts: FactReader, known: Known, ids: Iterable[int], job: JobNow
) -> list[CheckpointRecord]:
    wanted = {*ids}
    there = {*known.there}
    pending = (t for t in known.pending if t.barrier.checkpoint_id in wanted)
    records = [
        *(_ended(r, gone=r.checkpoint_id not in there) for r in facts.ended(wanted)),
        *(_pending(t, job.lost) for t in pending),
    ]
    branch = branch_of(job.root, job.attempts, known.attempts, known.written)
    # What was written is no moment of the job: no restore can leave it behind.
    beside = {
        r.checkpoint_id
        for r in records
        if r.checkpoint_id not in known.written and not branch.holds(r.attempt, r.checkpoint_id)
    }
    marked = (replace(r, abandoned=r.checkpoint_id in beside) for r in records)
    return sorted(marked, key=lambda record: record.checkpoint_id)


def _ended(record: CheckpointRecord, *, gone: bool) -> CheckpointRecord:
    """A checkpoint with a terminal fact; ``gone`` if it is not among what is completed now."""
    if record.status is Status.COMPLETED and gone:
        return replace(record, status=Status.DELETED, stages=())
    return record


def _pending(trigger: Trigger, lost: str) -> CheckpointRecord:
    """A checkpoint without a terminal fact; that of a ``lost`` driver the next start aborts."""
    barrier = trigger.barrier
    return CheckpointRecord(
        checkpoint_id=barrier.checkpoint_id,
        status=Status.ABORTED if lost else Status.PENDING,
        reason=FailureReason.DRIVER_RESTART.code if lost else None,
        cause=f"{lost}; the next start aborts what it has left" if lost else None,
        kind=trigger.kind,
        attempt=trigger.attempt,
        base_id=barrier.base_id,
        triggered_at=timestamp(barrier.triggered_ms),
    )
