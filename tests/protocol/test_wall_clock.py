"""A wall clock that jumps changes nothing that the coordinator does, but the times in its facts."""

from dataclasses import replace

from building import JOIN, Job, X
from hypothesis import given, settings
from hypothesis import strategies as st

from absflow.protocol.coordinator.messages import (
    CompletionWritten,
    HeldTooMuch,
    InputExhausted,
    SavepointRequested,
    Tick,
    TriggerWritten,
    WriteBarrier,
    WriteCompletion,
)

HOUR = 3_600_000
STEPS = st.one_of(
    st.tuples(st.just("tick"), st.sampled_from([1, 9, 10, 25, 100])),
    st.tuples(st.sampled_from(["written", "acknowledge", "complete", "held"]), st.integers(0, 2)),
    st.sampled_from([("savepoint", 0), ("exhausted", 0)]),
)
# How far the wall clock is set before each step.
JUMPS = st.sampled_from([0, 0, HOUR, -HOUR, 17, -17])
POLICY = {
    "min_pause_ms": 15,
    "max_concurrent": 2,
    "tolerable_failed": 3,
    "savepoint_timeout_ms": 60,
    "aligned_timeout_ms": 20,
}


def blank(action):
    """The action without the wall clock's times."""
    if isinstance(action, WriteCompletion):
        return replace(action, manifest=replace(action.manifest, triggered_ms=0))
    if hasattr(action, "barrier"):
        return replace(action, barrier=replace(action.barrier, triggered_ms=0))
    return action


def said(steps, jumps):
    """What the coordinator says to each step, and the times in its triggers."""
    job, now, wall, answers, stamps = Job(JOIN, **POLICY), 0, 0, [], []
    for number, (step, more) in enumerate(steps):
        wall += jumps[number]
        before = len(job.said)
        if step == "tick":
            now, wall = now + more, wall + more
            events = [Tick(now, wall)]
        elif step == "savepoint":
            events = [SavepointRequested(f"request {number}", now, wall)]
        elif step == "exhausted":
            events = [InputExhausted(X)]
        else:
            events = about(job, step, job.state.next_id - 1 - more, now)
        job.post(*events)
        answer = job.said[before:]
        stamps += [(a.barrier.triggered_ms, wall) for a in answer if isinstance(a, WriteBarrier)]
        answers.append([blank(action) for action in answer])
    return answers, stamps


def about(job, step, checkpoint_id, now):
    """Events about a checkpoint, if it is there for them."""
    if step == "held":
        return [HeldTooMuch(checkpoint_id)]
    if step == "written":
        return [TriggerWritten(checkpoint_id)]
    if step == "acknowledge" and checkpoint_id in job.pending:
        job.acknowledge(checkpoint_id, sorted(job.state.pending[checkpoint_id].awaited))
    if step == "complete" and checkpoint_id in job.finalising:
        return [CompletionWritten(checkpoint_id, now)]
    return []


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(STEPS, JUMPS), max_size=60))
def test_a8_a_wall_clock_that_jumps_changes_nothing_but_stamps(history):
    """Nothing is triggered, overtaken, expired or completed sooner or later for it."""
    steps = [step for step, _ in history]
    answers, stamps = said(steps, [jump for _, jump in history])
    steady, _ = said(steps, [0] * len(steps))
    assert answers == steady
    assert all(stamp == wall for stamp, wall in stamps)
