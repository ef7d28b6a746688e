"""What a step of the coordinator says, as happenings.

Rules of this file: plain functions over the machine's states, events and actions; no clock. The
driver calls those of an action once it has carried that out.
"""

from __future__ import annotations

from collections.abc import Iterator

from absflow.facts.records import CheckpointRecord, timestamp
from absflow.protocol.checkpoints import Manifest, Status, own_reports
from absflow.protocol.coordinator.messages import (
    Action,
    DiscardReport,
    Event,
    HistoryFound,
    StageReported,
    WriteAbort,
)
from absflow.protocol.coordinator.pending import Coordinator, Pending
from absflow.telemetry.happenings import (
    CheckpointEnded,
    Happening,
    JobStopping,
    ReportDiscarded,
    SnapshotFound,
    StageDone,
)

__all__ = ["aborted", "completed", "stepped"]


def stepped(
    before: Coordinator, event: Event, after: Coordinator, actions: tuple[Action, ...]
) -> Iterator[Happening]:
    """What a step has taken in; what it asks for is not done yet."""
    discarded = [action for action in actions if isinstance(action, DiscardReport)]
    for action in discarded:
        yield ReportDiscarded(action.checkpoint_id, action.stage, action.why)
    match event:
        case StageReported(report) if not discarded:
            yield StageDone(report)
        case HistoryFound() if not discarded:
            yield SnapshotFound(event.checkpoint_id, event.stage, event.async_ms)
    if after.stopping and not before.stopping:
        yield JobStopping()


def completed(
    manifest: Manifest,
    pending: Pending | None,
    attempt: int,
    ended_ms: int,
    finalised: tuple[int, int],
) -> CheckpointEnded:
    """A manifest is committed.

    Args:
        manifest: the manifest.
        pending: the checkpoint until then.
        attempt: in which it was triggered.
        ended_ms: when it ended, as the fact has it.
        finalised: when all of its stages were durable, and when the fact was written.
    """
    n = manifest.checkpoint_id
    record = CheckpointRecord(
        n,
        Status.COMPLETED,
        attempt,
        manifest.base_id,
        timestamp(manifest.triggered_ms),
        ended_at=timestamp(ended_ms),
        duration_ms=max(0, ended_ms - manifest.triggered_ms),
        stages=manifest.stages,
        kind=manifest.kind,
    )
    reports = tuple(own_reports(n, manifest.stages))
    overtaken = pending is not None and pending.overtaken
    return CheckpointEnded(record, reports, overtaken, *finalised)


def aborted(
    action: WriteAbort, pending: Pending | None, attempt: int, now_ms: int
) -> CheckpointEnded:
    """An ABORTED fact is written.

    Args:
        action: the fact.
        pending: the checkpoint until then; None if an earlier driver has triggered it.
        attempt: the job's.
        now_ms: the wall clock now.
    """
    barrier = action.barrier
    record = CheckpointRecord(
        barrier.checkpoint_id,
        Status.ABORTED,
        attempt,
        barrier.base_id,
        timestamp(barrier.triggered_ms),
        ended_at=timestamp(now_ms),
        duration_ms=max(0, now_ms - barrier.triggered_ms),
        reason=action.reason.code,
        cause=action.cause,
        kind=action.kind,
    )
    if pending is None:
        return CheckpointEnded(record)
    return CheckpointEnded(record, tuple(pending.reports.values()), pending.overtaken)
