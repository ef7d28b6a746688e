"""When a checkpoint is triggered, and which stages it awaits.

Rules of this file: pure functions of what :mod:`absflow.protocol.pending` remembers.
"""

from __future__ import annotations

from dataclasses import replace

from absflow.protocol.alignment import Barrier
from absflow.protocol.messages import Action, RootInput, Topology, WriteBarrier
from absflow.protocol.pending import Coordinator, Pending

__all__ = ["all_exhausted", "live_stages", "next_trigger_ms", "trigger_due"]


def live_stages(topology: Topology, ended: frozenset[RootInput]) -> frozenset[str]:
    """The stages that still have an input that has not ended."""
    live: set[str] = set()
    for stage, upstream in topology.upstream.items():
        roots = {r for r in topology.roots if r.stage == stage}
        if roots - ended or live.intersection(upstream):
            live.add(stage)
    return frozenset(live)


def next_trigger_ms(state: Coordinator) -> int | None:
    """When the next checkpoint may be triggered; None while something else must happen first."""
    if state.stopping or len(state.pending) >= state.policy.max_concurrent:
        return None
    if not live_stages(state.topology, state.ended):
        return None
    if all_exhausted(state):
        # The final checkpoint does not wait for the clock; a second one is of no use.
        after_exhaustion = max(state.exhausted.values()) < state.next_id - 1
        return None if after_exhaustion and state.pending else 0
    due = state.triggered_ms + state.policy.interval_ms
    if state.completed_ms is not None:
        due = max(due, state.completed_ms + state.policy.min_pause_ms)
    return due


def all_exhausted(state: Coordinator) -> bool:
    """Whether no root input has anything left to read."""
    return bool(state.topology.roots) and state.exhausted.keys() >= state.topology.roots


def trigger_due(state: Coordinator, now_ms: int) -> tuple[Coordinator, tuple[Action, ...]]:
    """Trigger the next checkpoint if its time has come."""
    due = next_trigger_ms(state)
    tolerated = state.failures <= state.policy.tolerable_failed
    if due is None or now_ms < due or not tolerated:
        return state, ()
    barrier = Barrier(state.next_id, state.completed_id, state.completed_id, now_ms)
    pending = Pending(barrier, live_stages(state.topology, state.ended))
    state = replace(
        state,
        next_id=state.next_id + 1,
        triggered_ms=now_ms,
        pending={**state.pending, barrier.checkpoint_id: pending},
    )
    return state, (WriteBarrier(barrier),)
