"""What the coordinator remembers: its pending checkpoints, and what must always hold of them.

Rules of this file: records only. They belong to :mod:`absflow.protocol.coordinator.machine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from absflow.errors import ProtocolViolation
from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import FactKind, Kind, Manifest, SetDigest, StageReport
from absflow.protocol.coordinator.messages import Policy, RootInput, Topology

__all__ = ["PHASE_TRANSITIONS", "Coordinator", "Pending", "Phase", "validate"]


class Phase(Enum):
    """Where a pending checkpoint stands; completed and aborted ones are facts, not phases."""

    TRIGGERING = "triggering"
    COLLECTING = "collecting"
    READY = "ready"
    FINALIZING = "finalizing"


# What a pending checkpoint can go through; the last column is where it leaves this machine. Only
# to a savepoint it does not matter whether a later one has completed. The diagram in the docs is
# drawn from this table and the tests walk it.
PHASE_TRANSITIONS: Mapping[tuple[Phase, str], Phase | FactKind] = {
    (Phase.TRIGGERING, "barrier written"): Phase.COLLECTING,
    (Phase.TRIGGERING, "failed"): FactKind.ABORTED,
    (Phase.TRIGGERING, "timeout"): FactKind.ABORTED,
    (Phase.TRIGGERING, "stop"): FactKind.ABORTED,
    (Phase.TRIGGERING, "later completed"): FactKind.ABORTED,
    (Phase.COLLECTING, "all acknowledged"): Phase.READY,
    (Phase.COLLECTING, "failed"): FactKind.ABORTED,
    (Phase.COLLECTING, "timeout"): FactKind.ABORTED,
    (Phase.COLLECTING, "stop"): FactKind.ABORTED,
    (Phase.COLLECTING, "later completed"): FactKind.ABORTED,
    (Phase.READY, "finalise"): Phase.FINALIZING,
    (Phase.READY, "timeout"): FactKind.ABORTED,
    (Phase.READY, "stop"): FactKind.ABORTED,
    (Phase.READY, "later completed"): FactKind.ABORTED,
    (Phase.FINALIZING, "manifest committed"): FactKind.COMPLETED,
    (Phase.FINALIZING, "failed"): FactKind.ABORTED,
}


@dataclass(frozen=True, slots=True)
class Pending:
    """A checkpoint that has been asked for and has no terminal fact yet.

    Attributes:
        barrier: what travels.
        since_ms: when it was triggered, by the steady clock; the barrier has the wall clock's time.
        awaited: the stages that must report; ended ones are not among them.
        phase: where it stands.
        reports: what the stages said so far.
        found: stages whose history was found in their table's log.
        digests: of the sets that they wrote.
        kind: CHECKPOINT or SAVEPOINT.
        request: the request that a savepoint answers.
        stop: the job is to stop once it has completed.
        overtaken: its barriers do not wait to be aligned any more.
    """

    barrier: Barrier
    since_ms: int
    awaited: frozenset[str]
    phase: Phase = Phase.TRIGGERING
    reports: Mapping[str, StageReport] = field(default_factory=dict)
    found: frozenset[str] = frozenset()
    digests: Mapping[str, SetDigest] = field(default_factory=dict)
    kind: Kind = Kind.CHECKPOINT
    request: str = ""
    stop: bool = False
    overtaken: bool = False

    @property
    def complete(self) -> bool:
        """Whether every awaited stage has reported and is durable."""
        return self.awaited <= self.found and self.awaited <= self.reports.keys()


@dataclass(frozen=True, slots=True)
class Coordinator:
    """All that the coordinator remembers; rebuilt from facts by :func:`recover`.

    Its times are the steady clock's, which has no meaning beyond this process. Facts have the wall
    clock's. Nothing needs both: what was pending in another process is aborted.

    Attributes:
        topology: the graph.
        policy: the settings.
        next_id: the id of the next checkpoint; ids are never used twice.
        completed: the manifest that increments go on from, of the newest completed checkpoint.
        completed_ms: when it completed.
        triggered_ms: when the clock last triggered a checkpoint (or the job started).
        pending: by id, rising.
        failures: counted failures since the last success.
        last_failure: the newest of them, in words.
        exhausted: root inputs without anything left, and the newest id triggered at that time.
        ended: root inputs whose END row is written.
        stopping: no more triggers.
        stopped: StopJob was said.
    """

    topology: Topology
    policy: Policy
    next_id: int = 1
    completed: Manifest | None = None
    completed_ms: int | None = None
    triggered_ms: int = 0
    pending: Mapping[int, Pending] = field(default_factory=dict)
    failures: int = 0
    last_failure: str = ""
    exhausted: Mapping[RootInput, int] = field(default_factory=dict)
    ended: frozenset[RootInput] = frozenset()
    stopping: bool = False
    stopped: bool = False

    @property
    def completed_id(self) -> int:
        """The newest completed checkpoint; 0 if there is none."""
        return self.completed.checkpoint_id if self.completed else 0

    @property
    def leaving(self) -> bool:
        """Whether a savepoint is pending that is to stop the job."""
        return any(pending.stop for pending in self.pending.values())

    def exhausted_before(self, checkpoint_id: int) -> frozenset[RootInput]:
        """The root inputs that had nothing left when a checkpoint was triggered."""
        return frozenset(r for r, newest in self.exhausted.items() if checkpoint_id > newest)


def validate(state: Coordinator) -> None:
    """Check what must always hold between two events; for tests and the simulator.

    Raises:
        ProtocolViolation: naming the first invariant that does not hold.
    """
    finalizing = [n for n, p in state.pending.items() if p.phase is Phase.FINALIZING]
    ready = [n for n, p in state.pending.items() if p.phase is Phase.READY]
    savepoints = {n: p for n, p in state.pending.items() if p.kind is Kind.SAVEPOINT}
    periodic = state.pending.keys() - savepoints.keys()
    stops = [n for n, p in state.pending.items() if p.stop]
    checks = {
        "ids rise": all(n < state.next_id for n in state.pending),
        "completed is below next": state.completed_id < state.next_id,
        "one is finalised at a time": len(finalizing) <= 1,
        "a ready one is finalised": bool(finalizing) or not ready,
        "reports are awaited": all(
            p.reports.keys() <= p.awaited and p.found <= p.reports.keys()
            for p in state.pending.values()
        ),
        "max-concurrent is kept": len(periodic) <= state.policy.max_concurrent,
        "savepoints are full": all(p.barrier.base_id == 0 for p in savepoints.values()),
        "savepoints answer requests, each its own": all(
            bool(p.request) is (n in savepoints) for n, p in state.pending.items()
        )
        and len({p.request for p in savepoints.values()}) == len(savepoints),
        "only savepoints stop the job": savepoints.keys() >= set(stops),
        "a job that is to stop triggers nothing more": not stops
        or max(periodic, default=0) < min(stops),
        "savepoints are aligned": not any(
            p.overtaken and any(s < n for s in savepoints) for n, p in state.pending.items()
        )
        and not any(p.overtaken for p in savepoints.values()),
        "ended inputs were exhausted": state.ended <= state.exhausted.keys(),
    }
    for invariant, holds in checks.items():
        if not holds:
            raise ProtocolViolation(f"invariant broken: {invariant}; state {state}")
