"""The coordinator's table, walked: every state that a small job can come into, and every event."""

from functools import cache

import pytest
from building import SINGLE, report

from absflow.errors import ProtocolViolation
from absflow.protocol.checkpoints import FactKind, FailureReason
from absflow.protocol.coordinator import machine
from absflow.protocol.coordinator.messages import (
    CheckpointFailed,
    CompletionWritten,
    HistoryFound,
    Policy,
    RefuseRequest,
    SavepointRequested,
    StageReported,
    StopRequested,
    Tick,
    TriggerWritten,
    WriteAbort,
    WriteBarrier,
    WriteCompletion,
)
from absflow.protocol.coordinator.pending import PHASE_TRANSITIONS, Coordinator, Phase, validate

POLICY = Policy(
    interval_ms=10, timeout_ms=15, max_concurrent=2, tolerable_failed=99, savepoint_timeout_ms=20
)

EVENTS = (
    *(Tick(now_ms, now_ms) for now_ms in (10, 20, 25, 40)),
    StopRequested(),
    SavepointRequested("request-1", 10, 10),
    SavepointRequested("stop", 20, 20, stop=True),
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
                after, said = machine.step(state, event)
            except ProtocolViolation:
                assert repr(state) in seen
                refused.append((state, event))
                continue
            validate(after)
            moves.append((state, event, after, said))
            todo.append(after)
    return moves, refused


def phase_moves(state, event, after, said):
    """What one step did to each checkpoint, in the words of the table."""
    reasons = {a.barrier.checkpoint_id: a.reason for a in said if isinstance(a, WriteAbort)}
    for checkpoint_id, pending in state.pending.items():
        now = after.pending.get(checkpoint_id)
        if checkpoint_id in reasons:
            yield (pending.phase, CAUSES[reasons[checkpoint_id]]), FactKind.ABORTED
        elif now is None:
            assert event == CompletionWritten(checkpoint_id, 50)
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
    for state, event, after, said in walk()[0]:
        for key, target in phase_moves(state, event, after, said):
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


def test_every_request_is_answered():
    """Abort and manifest, whichever ends a checkpoint, carry its kind and its request."""
    answered = set()
    for state, _, _, said in walk()[0]:
        for action in said:
            if isinstance(action, WriteAbort):
                pending = state.pending[action.barrier.checkpoint_id]
                assert (action.kind, action.request) == (pending.kind, pending.request)
            elif isinstance(action, WriteCompletion):
                pending = state.pending[action.manifest.checkpoint_id]
                manifest = action.manifest
                assert (manifest.kind, manifest.request) == (pending.kind, pending.request)
                answered.add(manifest.request)
    assert answered == {"", "request-1", "stop"}


def test_a_request_is_taken_in_refused_or_known():
    """Each of them, in every state; and one that is taken in is triggered as a full one."""
    for state, event, after, said in walk()[0]:
        if isinstance(event, SavepointRequested):
            known = any(p.request == event.request for p in state.pending.values())
            expected = [] if known else [RefuseRequest if state.stopping else WriteBarrier]
            assert [type(a) for a in said if not isinstance(a, WriteCompletion)] == expected
            for action in said:
                if isinstance(action, WriteBarrier):
                    assert (action.request, action.barrier.base_id) == (event.request, 0)
                    assert after.pending[action.barrier.checkpoint_id].stop is event.stop


def test_a_job_stops_when_it_is_told_or_its_savepoint_completes():
    """Nothing else stops it, and nothing is triggered while the savepoint of a stop is pending."""
    stopped = set()
    for state, event, after, said in walk()[0]:
        if after.stopping and not state.stopping:
            stopped.add(type(event))
            if isinstance(event, CompletionWritten):
                assert state.pending[event.checkpoint_id].stop
            else:
                assert isinstance(event, StopRequested)
        if isinstance(event, CompletionWritten) and state.pending[event.checkpoint_id].stop:
            assert after.stopping
        if after.leaving or state.stopping:
            assert not any(isinstance(a, WriteBarrier) and not a.request for a in said)
    assert stopped == {StopRequested, CompletionWritten}


def test_savepoints_give_way_to_nothing():
    """Over every state, what is subsumed was triggered by the clock."""
    subsumed = [
        action
        for _, _, _, said in walk()[0]
        for action in said
        if isinstance(action, WriteAbort) and action.reason is FailureReason.SUBSUMED
    ]
    assert subsumed
    assert not any(action.request for action in subsumed)


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_is_left_and_reached(phase):
    """No phase is a dead end, and none but the first has no way in."""
    assert any(source is phase for source, _ in PHASE_TRANSITIONS)
    assert phase is Phase.TRIGGERING or phase in PHASE_TRANSITIONS.values()
