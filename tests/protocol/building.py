"""Builders for tests of the coordinator: a topology, a policy, and a job that takes events."""

from absflow.protocol.checkpoints import StageReport
from absflow.protocol.coordinator import machine, pending
from absflow.protocol.coordinator.messages import (
    CheckpointFailed,
    CompletionWritten,
    HistoryFound,
    Policy,
    RootInput,
    SavepointRequested,
    StageReported,
    Tick,
    Topology,
    Triggered,
    TriggerWritten,
    WriteAbort,
    WriteBarrier,
    WriteCompletion,
)
from absflow.protocol.coordinator.pending import Coordinator, Phase

X = RootInput("a", "x")
Y = RootInput("b", "y")
Z = RootInput("c", "z")

# Source x into stage a, source y into stage b, both into stage c.
JOIN = Topology({"a": (), "b": (), "c": ("a", "b")}, frozenset({X, Y}))
SINGLE = Topology({"a": ()}, frozenset({X}))


def report(checkpoint_id, stage, rows_changed=1, **more):
    return StageReport(stage, checkpoint_id, batch_id=0, rows_changed=rows_changed, **more)


class Job:
    """A coordinator that gets one event after the other, and its answers."""

    def __init__(self, topology=SINGLE, state=None, **policy):
        """Begin at 0 ms, or with ``state``; the interval is 10 ms and the timeout 100 ms."""
        settings = {"interval_ms": 10, "timeout_ms": 100} | policy
        self.state = state or Coordinator(topology, Policy(**settings))
        self.said = []

    def post(self, *events):
        """Step through the events; what was said to all of them."""
        said = []
        for event in events:
            self.state, actions = machine.step(self.state, event)
            pending.validate(self.state)
            said.extend(actions)
        self.said.extend(said)
        return said

    def tick(self, now_ms):
        return self.post(Tick(now_ms, at_ms=now_ms))

    def trigger(self, now_ms):
        """Trigger at ``now_ms`` and have the barrier written; its id."""
        (barrier,) = [a.barrier for a in self.tick(now_ms) if isinstance(a, WriteBarrier)]
        self.post(TriggerWritten(barrier.checkpoint_id))
        return barrier.checkpoint_id

    def savepoint(self, now_ms, request="request-1", stop=False):
        """Have a savepoint triggered and its barrier written; its id."""
        said = self.post(SavepointRequested(request, now_ms, now_ms, stop))
        (number,) = triggered(said)
        self.post(TriggerWritten(number))
        return number

    def acknowledge(self, checkpoint_id, stages="a", rows_changed=1):
        """Each of the stages reports, and its history is found."""
        return self.post(
            *(StageReported(report(checkpoint_id, s, rows_changed)) for s in stages),
            *(HistoryFound(checkpoint_id, s) for s in stages),
        )

    def complete(self, checkpoint_id, stages="a", now_ms=0, rows_changed=1):
        """Acknowledge and commit."""
        self.acknowledge(checkpoint_id, stages, rows_changed)
        return self.post(CompletionWritten(checkpoint_id, now_ms))

    def fail(self, checkpoint_id, reason, cause=""):
        return self.post(CheckpointFailed(checkpoint_id, reason, cause))

    def phase(self, checkpoint_id):
        return self.state.pending[checkpoint_id].phase

    @property
    def pending(self):
        return list(self.state.pending)

    @property
    def finalising(self):
        return [n for n, p in self.state.pending.items() if p.phase is Phase.FINALIZING]


def triggered(said):
    return [a.barrier.checkpoint_id for a in said if isinstance(a, WriteBarrier)]


def manifests(said):
    return [a.manifest for a in said if isinstance(a, WriteCompletion)]


def aborted(said):
    return [(a.barrier.checkpoint_id, a.reason) for a in said if isinstance(a, WriteAbort)]


def rows(said):
    """The triggers among what was said, as the ``barriers`` table has them."""
    return tuple(
        Triggered(a.barrier, a.kind, a.request) for a in said if isinstance(a, WriteBarrier)
    )
