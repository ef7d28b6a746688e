"""The coordinator's table, walked: every state that a small job can come into, and every event."""

from functools import cache

import pytest
from building import SINGLE, report

from absflow.errors import ProtocolViolation
from absflow.protocol import coordinator
from absflow.protocol.checkpoints import FactKind, FailureReason
from absflow.protocol.coordinator import PHASE_TRANSITIONS, Coordinator, Phase
from absflow.protocol.messages import (
    CheckpointFailed,
    CompletionWritten,
    HistoryFound,
    Policy,
    StageReported,
    StopRequested,
    Tick,
    TriggerWritten,
    WriteAbort,
    WriteCompletion,
)

POLICY = Policy(interval_ms=10, timeout_ms=15, max_concurrent=2, tolerable_failed=99)

EVENTS = (
    *(Tick(now_ms) for now_ms in (10, 20, 25, 40)),
    StopRequested(),
    *(
        event
        for n in (1, 2)
        for event in (
            TriggerWritten(n),
            StageReported(report(n, "a")),
            HistoryFound(n, "a"),
            CheckpointFailed(n, FailureReason.SNAPSHOT_FAILED),
            CheckpointFailed(n, FailureReason.FINALIZE_FAILED),
            CompletionWritten(n, 50),
        )
    ),
)

CAUSES = {
    FailureReason.EXPIRED: "timeout",
    FailureReason.SUBSUMED: "later completed",
    FailureReason.JOB_STOPPED: "stop",
    FailureReason.SNAPSHOT_FAILED: "failed",
    FailureReason.FINALIZE_FAILED: "failed",
}

# Several moves that one event can lead to, one after the other.
ONWARD = (
    (Phase.TRIGGERING, "barrier written", Phase.COLLECTING),
    (Phase.COLLECTING, "all acknowledged", Phase.READY),
    (Phase.READY, "finalise", Phase.FINALIZING),
)


@cache
def walk():
    """Every (state, event, new state, actions) of a job of one stage and two checkpoints.

    Also every (state, event) that was refused.
    """
    moves, refused = [], []
    seen, todo = set(), [Coordinator(SINGLE, POLICY)]
    while todo:
        state = todo.pop()
        if repr(state) in seen or state.next_id > 3:
            continue
        seen.add(repr(state))
        for event in EVENTS:
            try:
                after, said = coordinator.step(state, event)
            except ProtocolViolation:
                assert repr(state) in seen
                refused.append((state, event))
                continue
            coordinator.validate(after)
            moves.append((state, event, after, said))
            todo.append(after)
    return moves, refused


def phase_moves(state, after, said):
    """What one step did to each checkpoint, in the words of the table."""
    reasons = {a.barrier.checkpoint_id: a.reason for a in said if isinstance(a, WriteAbort)}
    for checkpoint_id, pending in state.pending.items():
        now = after.pending.get(checkpoint_id)
        if checkpoint_id in reasons:
            yield (pending.phase, CAUSES[reasons[checkpoint_id]]), FactKind.ABORTED
        elif now is None:
            assert after.completed_id == checkpoint_id
            yield (pending.phase, "manifest committed"), FactKind.COMPLETED
        elif now.phase is not pending.phase:
            phases = [move[0] for move in ONWARD] + [Phase.FINALIZING]
            passed = ONWARD[phases.index(pending.phase) : phases.index(now.phase)]
            assert passed, f"{checkpoint_id} went back from {pending.phase} to {now.phase}"
            for old, word, new in passed:
                yield (old, word), new


def test_the_table_is_what_the_machine_does():
    """Over every reachable state of two checkpoints: each entry of the table, and no other."""
    found = {}
    for state, _, after, said in walk()[0]:
        for key, target in phase_moves(state, after, said):
            assert found.setdefault(key, target) is target
    assert found == dict(PHASE_TRANSITIONS)


def test_only_wrong_completions_and_early_finds_are_refused():
    """Everything else is answered, in every state: nothing the outside can say breaks the job."""
    _, refused = walk()
    assert refused
    for state, event in refused:
        pending = state.pending.get(event.checkpoint_id)
        if isinstance(event, HistoryFound):
            assert pending is not None
            assert "a" not in pending.reports
        else:
            assert isinstance(event, CompletionWritten)
            assert pending is None or pending.phase is not Phase.FINALIZING


def test_every_checkpoint_has_one_terminal_fact():
    """A checkpoint leaves the pending ones by one abort or one completion, never by both."""
    for state, event, after, said in walk()[0]:
        gone = set(state.pending) - set(after.pending)
        aborts = [a.barrier.checkpoint_id for a in said if isinstance(a, WriteAbort)]
        assert len(aborts) == len(set(aborts))
        completed = {event.checkpoint_id} if isinstance(event, CompletionWritten) else set()
        assert gone == set(aborts) ^ completed


def test_a_manifest_is_asked_for_once():
    """Whatever happens in whatever order, no second commit of one manifest is ever asked for."""
    for state, _, after, said in walk()[0]:
        for manifest in (a.manifest for a in said if isinstance(a, WriteCompletion)):
            before = state.pending[manifest.checkpoint_id]
            assert before.phase is not Phase.FINALIZING
            assert after.pending[manifest.checkpoint_id].phase is Phase.FINALIZING


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_is_left_and_reached(phase):
    """No phase is a dead end, and none but the first has no way in."""
    assert any(source is phase for source, _ in PHASE_TRANSITIONS)
    assert phase is Phase.TRIGGERING or phase in PHASE_TRANSITIONS.values()
