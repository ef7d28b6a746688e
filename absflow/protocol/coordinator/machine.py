"""The coordinator: the machine of all checkpoints of a job.

Rules of this file: as in :mod:`absflow.protocol.alignment`. Two clocks come in with the
events: a steady one, by which things are due, and the wall clock, whose times go into tables.

Theory of operation (Flink's ``CheckpointCoordinator``, ``CheckpointRequestDecider`` and
``CheckpointFailureManager``). The coordinator triggers checkpoint n by having a barrier row
written; every live stage reports once it has snapshotted n, and its history is found in the log of
its table a little later. When both are known of every stage, the manifest is written by one
commit: FINALIZING -> completed. Whatever else happens to n, it is aborted for one of a closed list
of reasons, exactly once. A checkpoint that is being finalised cannot be aborted by the clock, for
its outcome is already in the hands of the storage; one is finalised at a time, lowest id first.

Barriers that do not align within ``aligned_timeout_ms``, or for which a stage holds too much,
*overtake* (Flink's aligned checkpoint timeout): an OVERTAKE row, which every stage reads by itself,
has each snapshot what it has. Rows in flight are then part of the checkpoint.

A *bounded* input that has nothing left is exhausted. When all root inputs of the job are, one last
checkpoint is triggered at once, and its completion finishes the job: then every row is in it. When
only some are, and others go on for ever, such an input ends for good (an END row) as soon as a
checkpoint that was triggered after its exhaustion has completed. Neither is so while rows of that
checkpoint are in flight; then it is for the next one. A job all of whose inputs are bounded writes
no END: started again, it takes up what has come since, on each of them. A stage all of whose inputs
have ended takes no part in later checkpoints, and its last state counts in them.

A *savepoint* is a checkpoint that a person asked for. It is full, has a timeout of its own, and
neither gives way to a later one that completes first nor counts when it fails. It is always
aligned, so no checkpoint that was triggered behind it overtakes while it is pending. Completed, it
is a checkpoint like any other, also the last one of an exhausted job. Its terminal fact carries the
request and so answers it. One that is to stop the job holds off the clock's triggers while it is
pending: the job stops if it completes, and goes on if it fails.
"""

from __future__ import annotations

from dataclasses import replace

from absflow.errors import ProtocolViolation
from absflow.protocol.checkpoints import (
    Fact,
    FailureReason,
    Kind,
    Manifest,
    StageReport,
)
from absflow.protocol.coordinator.completion import (
    advance,
    compose_manifest,
    expected,
    missing_stages,
    subsumed,
)
from absflow.protocol.coordinator.messages import (
    Action,
    CheckpointFailed,
    CompletionWritten,
    DiscardReport,
    Event,
    FailJob,
    FinishJob,
    HeldTooMuch,
    HistoryFound,
    InputExhausted,
    LineageCompacted,
    Policy,
    RootInput,
    SavepointRequested,
    StageReported,
    StopJob,
    StopRequested,
    Tick,
    Topology,
    Triggered,
    TriggerWritten,
    Unexpected,
    WriteAbort,
    WriteCompletion,
    WriteEnd,
    WriteOvertake,
)
from absflow.protocol.coordinator.pending import (
    Coordinator,
    Pending,
    Phase,
)
from absflow.protocol.coordinator.triggers import (
    all_exhausted,
    trigger_due,
    trigger_savepoint,
)
from absflow.protocol.lineage import shortened

__all__ = ["recover", "step"]

_Stepped = tuple[Coordinator, tuple[Action, ...]]


def step(state: Coordinator, event: Event) -> _Stepped:
    """Apply one event.

    Raises:
        ProtocolViolation: for a report of a stage, or the end of an input, that the graph does not
            have, for a completion that was not asked for, and for a request without a name.
    """
    state, actions = _apply(state, event)
    state, finalised = _finalise(state)
    state, judged = _judge(state)
    return state, (*actions, *finalised, *judged)


def _apply(state: Coordinator, event: Event) -> _Stepped:
    match event:
        case Tick(now_ms, at_ms):
            return _tick(state, now_ms, at_ms)
        case TriggerWritten(checkpoint_id):
            return _triggered(state, checkpoint_id)
        case StageReported(report):
            return _reported(state, report)
        case HistoryFound():
            return _found(state, event)
        case CheckpointFailed():
            return _failed(state, event)
        case HeldTooMuch():
            return _held(state, event)
        case CompletionWritten():
            return _completed(state, event)
        case InputExhausted(root):
            return _exhausted(state, root), ()
        case SavepointRequested():
            return trigger_savepoint(state, event)
        case LineageCompacted(fact):
            completed = state.completed and shortened(state.completed, [fact])
            return replace(state, completed=completed), ()
        case StopRequested():
            return _stop(state)


def recover(
    topology: Topology,
    policy: Policy,
    now_ms: int,
    triggers: tuple[Triggered, ...],
    facts: tuple[Fact, ...],
    completed: Manifest | None,
    ended: frozenset[RootInput] = frozenset(),
    floor: int = 0,
) -> _Stepped:
    """The coordinator of a driver that starts, and what it must write before anything else.

    Args:
        topology: the graph.
        policy: the settings.
        now_ms: the steady clock.
        triggers: every trigger in the ``barriers`` table, of all attempts.
        facts: every terminal fact in the ``checkpoints`` table.
        completed: the manifest that the next increment goes on from: of the newest checkpoint that
            completed in this attempt, else of the one that the attempt was restored from; None if
            there is neither, or if the snapshots must be full until one has completed.
        ended: root inputs with an END row in this attempt.
        floor: the checkpoint that the attempt was restored from, 0 if none; ids rise above it.

    A trigger without a terminal fact was pending when the last driver died. It is aborted, though
    its stages may have finished: a report that died with that driver cannot come again. That of
    another attempt is aborted as well, so that it comes to its end, but nobody waits for it.
    """
    terminal = {fact.checkpoint_id for fact in facts}
    lost = {t.barrier.checkpoint_id: t for t in triggers if t.barrier.checkpoint_id not in terminal}
    known = {*terminal, *lost, floor, completed.checkpoint_id if completed else 0}
    state = Coordinator(
        topology=topology,
        policy=policy,
        next_id=max(known) + 1,
        completed=completed,
        triggered_ms=now_ms,
        ended=ended,
        exhausted=dict.fromkeys(ended, 0),
    )
    reason = FailureReason.DRIVER_RESTART
    return state, tuple(
        WriteAbort(t.barrier, reason, "", t.kind, t.request, release=t.ours)
        for _, t in sorted(lost.items())
    )


def _tick(state: Coordinator, now_ms: int, at_ms: int) -> _Stepped:
    actions: list[Action] = []
    for checkpoint_id, pending in sorted(state.pending.items()):
        savepoint = pending.kind is Kind.SAVEPOINT
        timeout_ms = state.policy.savepoint_timeout_ms if savepoint else state.policy.timeout_ms
        expired = now_ms >= pending.since_ms + timeout_ms
        if expired and pending.phase is not Phase.FINALIZING:
            state, said = _abort(
                state, checkpoint_id, FailureReason.EXPIRED, missing_stages(pending)
            )
            actions.extend(said)
    state, overtaken = _overtake_late(state, now_ms)
    state, said = trigger_due(state, now_ms, at_ms)
    return state, (*actions, *overtaken, *said)


def _triggered(state: Coordinator, checkpoint_id: int) -> _Stepped:
    pending = state.pending.get(checkpoint_id)
    if pending is None or pending.phase is not Phase.TRIGGERING:
        return state, ()  # aborted while the row was being written
    state = _collect(state, replace(pending, phase=Phase.COLLECTING))
    return _overtake_late(state, pending.since_ms)


def _overtake_late(state: Coordinator, now_ms: int) -> _Stepped:
    """Have every checkpoint overtake that has been aligning for long enough, oldest first."""
    actions: list[Action] = []
    for checkpoint_id, pending in sorted(state.pending.items()):
        patience_ms = state.policy.aligned_timeout_ms
        if patience_ms is None or now_ms < pending.since_ms + patience_ms:
            continue
        if pending.phase is Phase.COLLECTING and _may_overtake(state, pending):
            state, said = _overtake(state, checkpoint_id)
            actions.extend(said)
    return state, tuple(actions)


def _may_overtake(state: Coordinator, pending: Pending) -> bool:
    """Not a savepoint, nor what would overtake one; nor if every stage has snapshotted."""
    checkpoint_id = pending.barrier.checkpoint_id
    return (
        state.policy.aligned_timeout_ms is not None
        and not pending.overtaken
        and not pending.awaited <= pending.reports.keys()
        and not any(
            p.kind is Kind.SAVEPOINT for n, p in state.pending.items() if n <= checkpoint_id
        )
    )


def _overtake(state: Coordinator, checkpoint_id: int) -> _Stepped:
    pending = replace(state.pending[checkpoint_id], overtaken=True)
    state = replace(state, pending={**state.pending, checkpoint_id: pending})
    return state, (WriteOvertake(pending.barrier),)


def _held(state: Coordinator, event: HeldTooMuch) -> _Stepped:
    """Let the checkpoint overtake; one that may not is given up, for nothing else helps."""
    pending = state.pending.get(event.checkpoint_id)
    if pending is None or pending.overtaken:
        return state, ()
    if _may_overtake(state, pending):
        return _overtake(state, event.checkpoint_id)
    reason = FailureReason.HELD_TOO_MUCH
    return _failed(state, CheckpointFailed(event.checkpoint_id, reason, event.cause))


def _failed(state: Coordinator, event: CheckpointFailed) -> _Stepped:
    pending = state.pending.get(event.checkpoint_id)
    if pending is None:
        return state, ()
    committing = pending.phase is Phase.FINALIZING
    if pending.phase is Phase.READY or (
        committing and event.reason is not FailureReason.FINALIZE_FAILED
    ):
        return state, ()  # every stage is durable: what failed late is not needed
    return _abort(state, event.checkpoint_id, event.reason, event.cause)


def _reported(state: Coordinator, report: StageReport) -> _Stepped:
    pending, unexpected = expected(state, report.checkpoint_id, report.stage)
    if unexpected or pending is None:
        return state, unexpected
    if report.stage in pending.reports:
        return state, (DiscardReport(report.checkpoint_id, report.stage, Unexpected.DUPLICATE),)
    reports = {**pending.reports, report.stage: report}
    return _collect(state, replace(pending, reports=reports)), ()


def _found(state: Coordinator, event: HistoryFound) -> _Stepped:
    pending, unexpected = expected(state, event.checkpoint_id, event.stage)
    if unexpected or pending is None:
        return state, unexpected
    if event.stage not in pending.reports:
        raise ProtocolViolation(
            f"history of stage {event.stage!r} was found for checkpoint {event.checkpoint_id} "
            "before the stage reported it; a report comes first"
        )
    if event.stage in pending.found:
        return state, (DiscardReport(event.checkpoint_id, event.stage, Unexpected.DUPLICATE),)
    report = replace(pending.reports[event.stage], async_ms=event.async_ms)
    digests = {**pending.digests, event.stage: event.digest} if event.digest else pending.digests
    pending = replace(
        pending,
        reports={**pending.reports, event.stage: report},
        found=pending.found | {event.stage},
        digests=digests,
    )
    return _collect(state, pending), ()


def _collect(state: Coordinator, pending: Pending) -> Coordinator:
    if pending.phase is Phase.COLLECTING and pending.complete:
        pending = replace(pending, phase=Phase.READY)
    return replace(state, pending={**state.pending, pending.barrier.checkpoint_id: pending})


def _finalise(state: Coordinator) -> _Stepped:
    """Finalise the lowest ready checkpoint, unless one is under way."""
    ready = sorted(n for n, p in state.pending.items() if p.phase is Phase.READY)
    if not ready or any(p.phase is Phase.FINALIZING for p in state.pending.values()):
        return state, ()
    pending = replace(state.pending[ready[0]], phase=Phase.FINALIZING)
    state = replace(state, pending={**state.pending, ready[0]: pending})
    return state, (WriteCompletion(compose_manifest(state, pending)),)


def _judge(state: Coordinator) -> _Stepped:
    """Give up after too many failures; say when a stopping job has nothing pending any more."""
    actions: tuple[Action, ...] = ()
    if state.failures > state.policy.tolerable_failed and not state.stopping:
        state, stopped = _stop(state)
        actions = (FailJob(state.failures, state.last_failure), *stopped)
    if state.stopping and not state.pending and not state.stopped:
        state = replace(state, stopped=True)
        actions = (*actions, StopJob())
    return state, actions


def _completed(state: Coordinator, event: CompletionWritten) -> _Stepped:
    checkpoint_id = event.checkpoint_id
    pending = state.pending.get(checkpoint_id)
    if pending is None or pending.phase is not Phase.FINALIZING:
        raise ProtocolViolation(
            f"checkpoint {checkpoint_id} was committed, but it was not being finalised; "
            f"pending are {sorted(state.pending)}"
        )
    manifest = compose_manifest(state, pending)
    rest = {n: p for n, p in state.pending.items() if n != checkpoint_id}
    state = advance(replace(state, pending=rest), manifest, event.now_ms)
    actions: list[Action] = []
    for older in subsumed(state, checkpoint_id):
        state, said = _abort(state, older, FailureReason.SUBSUMED, f"by {checkpoint_id}")
        actions.extend(said)
    behind = frozenset() if event.in_flight else state.exhausted_before(checkpoint_id)
    if behind >= state.topology.roots:
        state, said = _stop(state)
        return state, (*actions, FinishJob(checkpoint_id), *said)
    if not all_exhausted(state) and not state.topology.bounded:
        actions.extend(WriteEnd(root) for root in sorted(behind - state.ended))
        state = replace(state, ended=state.ended | behind)
    if pending.stop:
        state, said = _stop(state)
        actions.extend(said)
    return state, tuple(actions)


def _abort(
    state: Coordinator, checkpoint_id: int, reason: FailureReason, cause: str = ""
) -> _Stepped:
    pending = state.pending[checkpoint_id]
    rest = {n: p for n, p in state.pending.items() if n != checkpoint_id}
    state = replace(state, pending=rest)
    # Flink: the failure of an id older than the last success says nothing about the present, and
    # that of a savepoint nothing about the checkpoints that the job relies on.
    periodic = pending.kind is Kind.CHECKPOINT
    if periodic and reason.counted and checkpoint_id > state.completed_id:
        text = f"checkpoint {checkpoint_id}: {reason.sentence}" + (f" ({cause})" if cause else "")
        state = replace(state, failures=state.failures + 1, last_failure=text)
    return state, (WriteAbort(pending.barrier, reason, cause, pending.kind, pending.request),)


def _exhausted(state: Coordinator, root: RootInput) -> Coordinator:
    if root not in state.topology.roots:
        raise ProtocolViolation(
            f"{root} is exhausted, but the job's root inputs are {sorted(state.topology.roots)}"
        )
    return replace(state, exhausted={root: state.next_id - 1, **state.exhausted})


def _stop(state: Coordinator) -> _Stepped:
    """Trigger nothing more and give up what is pending, but for what is being finalised."""
    if state.stopping:
        return state, ()
    state = replace(state, stopping=True)
    actions: list[Action] = []
    for checkpoint_id, pending in sorted(state.pending.items()):
        if pending.phase is not Phase.FINALIZING:
            state, said = _abort(state, checkpoint_id, FailureReason.JOB_STOPPED)
            actions.extend(said)
    return state, tuple(actions)
