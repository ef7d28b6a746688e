"""When a checkpoint is triggered, and which stages it awaits.

Rules of this file: pure functions of what :mod:`absflow.protocol.coordinator.pending` remembers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from absflow.errors import ProtocolViolation
from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import Kind, StageManifest, own_stages
from absflow.protocol.coordinator.messages import (
    Action,
    Policy,
    RefuseRequest,
    RootInput,
    SavepointRequested,
    Topology,
    WriteBarrier,
)
from absflow.protocol.coordinator.pending import Coordinator, Pending
from absflow.protocol.tiers import run_to_merge

__all__ = ["all_exhausted", "live_stages", "next_trigger_ms", "trigger_due", "trigger_savepoint"]

_Stepped = tuple[Coordinator, tuple[Action, ...]]


def live_stages(topology: Topology, ended: frozenset[RootInput]) -> frozenset[str]:
    """The stages that still have an input that has not ended."""
    live: set[str] = set()
    for stage, upstream in topology.upstream.items():
        roots = {r for r in topology.roots if r.stage == stage}
        if roots - ended or live.intersection(upstream):
            live.add(stage)
    return frozenset(live)


def next_trigger_ms(state: Coordinator) -> int | None:
    """When the clock may trigger a checkpoint; None while something else must happen first.

    A pending savepoint takes one of the ``max_concurrent`` places: what is triggered behind it
    could hardly complete before it.
    """
    if state.stopping or state.leaving or len(state.pending) >= state.policy.max_concurrent:
        return None
    if not live_stages(state.topology, state.ended):
        return None
    if all_exhausted(state):
        # The final checkpoint does not wait for the clock; a second one is of no use.
        mark = max(state.exhausted.values())
        if any(n > mark for n in state.pending):
            return None
        if state.completed_id <= mark:
            return 0
        # Such a one has completed, but with rows in flight: the clock decides when to try again.
    due = state.triggered_ms + state.policy.interval_ms
    if state.completed_ms is not None:
        due = max(due, state.completed_ms + state.policy.min_pause_ms)
    return due


def all_exhausted(state: Coordinator) -> bool:
    """Whether no root input has anything left to read."""
    return bool(state.topology.roots) and state.exhausted.keys() >= state.topology.roots


def trigger_due(state: Coordinator, now_ms: int, at_ms: int) -> _Stepped:
    """Trigger a checkpoint if its time has come; the wall clock says ``at_ms``."""
    due = next_trigger_ms(state)
    tolerated = state.failures <= state.policy.tolerable_failed
    if due is None or now_ms < due or not tolerated:
        return state, ()
    base_id = 0 if _full_is_due(state) else state.completed_id
    barrier = Barrier(state.next_id, base_id, state.completed_id, at_ms)
    pending = Pending(barrier, now_ms, live_stages(state.topology, state.ended))
    return _trigger(replace(state, triggered_ms=now_ms), pending)


def _full_is_due(state: Coordinator) -> bool:
    """Whether a full snapshot is to take the place of an increment, and of a compaction.

    Its set stands alone: nobody reads the older ones any more, and none is compacted. It does not
    say what has changed, so the one behind it is an increment.
    """
    last = state.completed
    if last is None or last.base_id == 0:
        return False
    if any(pending.barrier.base_id == 0 for pending in state.pending.values()):
        return False
    stages = own_stages(last.checkpoint_id, last.stages)
    return _brings_most(state.policy, stages) or _would_be_compacted(state.policy, stages)


def _brings_most(policy: Policy, stages: Sequence[StageManifest]) -> bool:
    """Whether an increment would bring most of the state once more: a full one is little more."""
    reports = [stage.report for stage in stages]
    if sum(report.rows_changed for report in reports) < policy.full_from_rows:
        return False
    total = sum(report.bytes_total for report in reports)
    brought = sum(
        report.bytes_total * min(report.rows_changed, report.keys_total) / report.keys_total
        for report in reports
        if report.keys_total
    )
    return 2 * brought > total


def _would_be_compacted(policy: Policy, stages: Sequence[StageManifest]) -> bool:
    """Whether behind one more such increment all sets of most of the state would become one.

    To find the rows that count, a compaction reads all of them. Who holds the state has no others.
    Of few rows it takes no time.
    """
    total = sum(stage.report.bytes_total for stage in stages)
    compacted = 0
    for stage in stages:
        report, of_sets = stage.report, {each.set_id: each.rows for each in stage.sets}
        rows = [*(of_sets.get(set_id, 0) for set_id in stage.lineage), report.rows_changed]
        merges_all = run_to_merge(rows, report.keys_total, policy.tiers) == 0
        if merges_all and sum(rows) >= policy.full_from_rows:
            compacted += report.bytes_total
    return 2 * compacted > total and total <= policy.full_upto_bytes


def trigger_savepoint(state: Coordinator, event: SavepointRequested) -> _Stepped:
    """Trigger a savepoint at once, whatever is pending; a request that is pending is known."""
    if not event.request:
        raise ProtocolViolation("a savepoint was requested without a name for the request")
    if any(pending.request == event.request for pending in state.pending.values()):
        return state, ()
    awaited = live_stages(state.topology, state.ended)
    if state.stopping or not awaited:
        why = "the job is stopping" if state.stopping else "every input has ended"
        return state, (RefuseRequest(event.request, why),)
    barrier = Barrier(state.next_id, 0, state.completed_id, event.at_ms)
    pending = Pending(
        barrier,
        event.now_ms,
        awaited,
        kind=Kind.SAVEPOINT,
        request=event.request,
        stop=event.stop,
    )
    return _trigger(state, pending)


def _trigger(state: Coordinator, pending: Pending) -> _Stepped:
    state = replace(
        state,
        next_id=state.next_id + 1,
        pending={**state.pending, pending.barrier.checkpoint_id: pending},
    )
    return state, (WriteBarrier(pending.barrier, pending.kind, pending.request),)
