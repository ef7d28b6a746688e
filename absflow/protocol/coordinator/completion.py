"""What the completion of a checkpoint needs: who is awaited, the manifest, what it subsumes.

Rules of this file: plain functions over the coordinator's state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from absflow.errors import ProtocolViolation
from absflow.protocol.checkpoints import (
    Kind,
    Manifest,
    SetDigest,
    StageManifest,
)
from absflow.protocol.coordinator.messages import (
    DiscardReport,
    RootInput,
    Topology,
    Unexpected,
)
from absflow.protocol.coordinator.pending import (
    Coordinator,
    Pending,
)
from absflow.protocol.lineage import extend_lineage
from absflow.protocol.watermarks import StageTime, unsettled

__all__ = [
    "advance",
    "compose_manifest",
    "expected",
    "missing_stages",
    "subsumed",
    "unsettled_stages",
]


def missing_stages(pending: Pending) -> str:
    """The stages that a pending checkpoint waits for, in words."""
    silent = sorted(pending.awaited - pending.reports.keys())
    unfound = sorted(pending.awaited - pending.found - set(silent))
    parts = [f"no report from {', '.join(silent)}"] if silent else []
    parts += [f"history not found of {', '.join(unfound)}"] if unfound else []
    return "; ".join(parts)


def expected(
    state: Coordinator, checkpoint_id: int, stage: str
) -> tuple[Pending | None, tuple[DiscardReport, ...]]:
    """The pending checkpoint that awaits this stage; None, and why its report is discarded."""
    if stage not in state.topology.upstream:
        raise ProtocolViolation(
            f"stage {stage!r} reported checkpoint {checkpoint_id}, "
            f"but the job has {sorted(state.topology.upstream)}"
        )
    pending = state.pending.get(checkpoint_id)
    if pending is not None and stage in pending.awaited:
        return pending, ()
    known = pending is None and checkpoint_id < state.next_id
    why = Unexpected.LATE if known else Unexpected.UNKNOWN
    return None, (DiscardReport(checkpoint_id, stage, why),)


def compose_manifest(state: Coordinator, pending: Pending) -> Manifest:
    """The manifest of a checkpoint that every awaited stage has reported."""
    stages = []
    for name in state.topology.upstream:
        before = state.completed.stage(name) if state.completed else None
        report = pending.reports.get(name)
        if report is not None:
            lineage = extend_lineage(
                before.lineage if before else (),
                report.checkpoint_id,
                pending.barrier.base_id,
                report.rows_changed,
            )
            known = (*(before.sets if before else ()), *_digest(pending, name))
            sets = tuple(each for each in known if each.set_id in lineage)
            stages.append(StageManifest(report, lineage, sets=sets))
        elif before is not None:
            stages.append(before)
    barrier = pending.barrier
    return Manifest(
        barrier.checkpoint_id,
        barrier.base_id,
        barrier.triggered_ms,
        tuple(stages),
        pending.kind,
        pending.request,
    )


def unsettled_stages(
    times: Mapping[str, StageTime], topology: Topology, exhausted: Collection[RootInput]
) -> int:
    """How many stages would still change by themselves behind a checkpoint.

    Args:
        times: of the stages with event time what they had there.
        topology: the graph.
        exhausted: the root inputs that its trigger has said to be exhausted.
    """
    count = 0
    for name, time in times.items():
        senders = {sender: times[sender] for sender in topology.upstream[name] if sender in times}
        mine = [r.name for r in exhausted if r.stage == name and r.name in time.inputs]
        count += unsettled(time, senders, mine)
    return count


def _digest(pending: Pending, stage: str) -> tuple[SetDigest, ...]:
    return (pending.digests[stage],) if stage in pending.digests else ()


def advance(state: Coordinator, manifest: Manifest, now_ms: int) -> Coordinator:
    """Go on from this checkpoint; a savepoint that completes behind a later one changes nothing."""
    if manifest.checkpoint_id < state.completed_id:
        return state
    return replace(state, completed=manifest, completed_ms=now_ms, failures=0)


def subsumed(state: Coordinator, checkpoint_id: int) -> list[int]:
    """The pending ones that are of no use now; a savepoint always is, to the one who asked."""
    pending = sorted(state.pending.items())
    return [n for n, p in pending if n < checkpoint_id and p.kind is Kind.CHECKPOINT]
