"""Alignment of barriers at one stage: the machine that finds the consistent cut.

Rules of this file: no Spark, no clock, no I/O; a state is a small frozen value; ``step`` is the
only door; an illegal event raises :class:`~absflow.errors.ProtocolViolation` and changes nothing.

Theory of operation (Carbone et al. 2015, section 4.2; Flink's ``SingleCheckpointBarrierHandler``).
A barrier n splits an input into rows before checkpoint n and rows after it. A stage that has
several inputs must not let a row from after n change its state before it has snapshotted n, so an
input whose barrier has arrived is *blocked* until every other live input has brought the same
barrier. Here, unlike in Flink, several checkpoints may be in flight: the barriers that arrive on a
blocked input wait in its queue, in order, and only the first of them blocks.

The machine sees control rows only. Rows of data need no events, because each carries an *epoch*
(a row with epoch e comes before every barrier with id >= e): a row may be processed if its epoch
is not above the :func:`gate` of its input, else it is held. All key groups of a stage see the same
control rows in the same micro-batch, so one alignment state speaks for all of them.

A checkpoint can also *overtake* what is in flight (Chandy and Lamport 1985: a process may record
its state before it has read any marker; Flink's unaligned checkpoints). The stage then snapshots n
without waiting for the inputs that have not brought barrier n, and forwards it at once. What those
inputs bring before their barrier n comes behind the snapshot and is processed as it comes, though
its epoch is not above n: these rows are the *channel state* of n. Their barrier n, when it comes,
finds its checkpoint behind it and blocks nothing. Nothing with an epoch above n was processed
before: no gate lets a row pass that is behind a barrier whose fate is not known.

An id dies at a stage when it can no longer be aligned: it was aborted, or an input went on to a
later barrier without having brought it (*skipped*). Dead ids are remembered until no live input can
bring them any more, and their barriers then pass without a snapshot and without being forwarded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from absflow.errors import ProtocolViolation
from absflow.protocol.alignment_state import Alignment, Barrier, InputState, InputStatus, input_of

__all__ = [
    "INPUT_TRANSITIONS",
    "AbortArrived",
    "Action",
    "BarrierArrived",
    "Discard",
    "EndStage",
    "Event",
    "Ignore",
    "InputEnded",
    "OvertakeArrived",
    "Reason",
    "TakeSnapshot",
    "in_order",
    "run",
    "start",
    "step",
]


class Reason(Enum):
    """Why a barrier or an abort came to nothing."""

    ABORTED = "aborted"
    SKIPPED = "skipped"
    DUPLICATE = "duplicate"
    LATE = "late"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class BarrierArrived:
    """The next control row of ``input`` is a barrier."""

    input: str
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class InputEnded:
    """The last row of ``input`` has been read; nothing follows it."""

    input: str


@dataclass(frozen=True, slots=True)
class AbortArrived:
    """The coordinator has given up ``checkpoint_id``; comes before, between or after barriers."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class OvertakeArrived:
    """Checkpoint n is not to wait any longer; comes before, between or after barriers."""

    barrier: Barrier


Event = BarrierArrived | InputEnded | AbortArrived | OvertakeArrived


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Process every row with epoch <= the id, then snapshot and forward the barrier."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class Discard:
    """The checkpoint is dead at this stage; said once per id."""

    checkpoint_id: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Ignore:
    """The event changed nothing; said so that it can be counted."""

    event: Event
    reason: Reason


@dataclass(frozen=True, slots=True)
class EndStage:
    """Every input has ended: process what is held and forward END."""


Action = TakeSnapshot | Discard | Ignore | EndStage
# What one input can go through. `settled` is not an event of its own: it is what TakeSnapshot and
# Discard do to the barrier at the head of the input's queue. The diagram in the docs is drawn from
# this table and the tests walk it.
INPUT_TRANSITIONS: Mapping[tuple[InputStatus, str], tuple[InputStatus, ...]] = {
    (InputStatus.OPEN, "new barrier"): (InputStatus.BLOCKED, InputStatus.OPEN),
    (InputStatus.OPEN, "old barrier"): (InputStatus.OPEN,),
    (InputStatus.OPEN, "end"): (InputStatus.ENDED,),
    (InputStatus.BLOCKED, "new barrier"): (InputStatus.BLOCKED,),
    (InputStatus.BLOCKED, "old barrier"): (InputStatus.BLOCKED,),
    (InputStatus.BLOCKED, "settled"): tuple(InputStatus),
    (InputStatus.BLOCKED, "end"): (InputStatus.BLOCKED,),
    (InputStatus.ENDED, "old barrier"): (InputStatus.ENDED,),
    (InputStatus.ENDED, "new barrier"): (InputStatus.ENDED,),
    (InputStatus.ENDED, "end"): (InputStatus.ENDED,),
}
_Changed = tuple[Alignment, tuple[Action, ...]]


def start(inputs: Iterable[str], last: int = 0) -> Alignment:
    """The state of a stage that has read nothing since checkpoint ``last`` (0: from the start)."""
    return Alignment({name: InputState(last=last) for name in inputs}, snapshot=last)


def step(state: Alignment, event: Event) -> tuple[Alignment, tuple[Action, ...]]:
    """Apply one control event.

    Raises:
        ProtocolViolation: for an input the stage does not have, or an id below 1.
    """
    match event:
        case BarrierArrived():
            changed = _barrier(state, event)
        case InputEnded():
            changed = _end(state, event)
        case AbortArrived():
            changed = _abort(state, event)
        case OvertakeArrived():
            changed = _overtake(state, event)
    if isinstance(changed, Ignore):
        return state, (changed,)
    state, actions = changed
    state, settled = _settle(state)
    return state, (*actions, *settled)


def in_order(events: Iterable[Event], inputs: Sequence[str]) -> list[Event]:
    """The control rows of one micro-batch as every key group takes them, whatever brought them.

    By id, an abort before the barriers of its id, those as their inputs were declared; ids rise on
    every input, so this keeps each input's own order. Behind them the ends, and at last the
    overtakes: what the batch itself can align need not be overtaken.
    """
    places = {name: place for place, name in enumerate(inputs)}

    def key(event: Event) -> tuple[int, int, int]:
        match event:
            case AbortArrived(checkpoint_id):
                return 0, checkpoint_id, -1
            case BarrierArrived(name, barrier):
                return 0, barrier.checkpoint_id, places.get(name, -1)
            case InputEnded(name):
                return 1, 0, places.get(name, -1)
            case OvertakeArrived(barrier):
                return 2, barrier.checkpoint_id, -1

    return sorted(events, key=key)


def run(state: Alignment, events: Iterable[Event]) -> tuple[Alignment, tuple[Action, ...]]:
    """Apply several events in order, as one micro-batch brings them."""
    actions: list[Action] = []
    for event in events:
        state, said = step(state, event)
        actions.extend(said)
    return state, tuple(actions)


def _barrier(state: Alignment, event: BarrierArrived) -> _Changed | Ignore:
    given = input_of(state, event.input)
    checkpoint_id = _known_id(event.barrier.checkpoint_id, event)
    if given.ended:
        return Ignore(event, Reason.ENDED)
    if checkpoint_id <= given.newest:
        known = any(b.checkpoint_id == checkpoint_id for b in given.waiting)
        return Ignore(event, Reason.DUPLICATE if known else Reason.LATE)
    if checkpoint_id <= state.snapshot:  # it was overtaken; what was in flight has come
        return _withinput_of(state, event.input, replace(given, last=checkpoint_id)), ()
    waiting = (*given.waiting, event.barrier)
    return _withinput_of(state, event.input, replace(given, waiting=waiting)), ()


def _end(state: Alignment, event: InputEnded) -> _Changed | Ignore:
    given = input_of(state, event.input)
    if given.ended:
        return Ignore(event, Reason.DUPLICATE)
    return _withinput_of(state, event.input, replace(given, ended=True)), ()


def _abort(state: Alignment, event: AbortArrived) -> _Changed | Ignore:
    checkpoint_id = _known_id(event.checkpoint_id, event)
    if checkpoint_id in state.dead:
        return Ignore(event, Reason.DUPLICATE)
    if _passed(state, checkpoint_id):
        return Ignore(event, Reason.LATE)
    return _kill(state, checkpoint_id, Reason.ABORTED)


def _overtake(state: Alignment, event: OvertakeArrived) -> _Changed | Ignore:
    """Snapshot n now, and before it every unfinished m < n: no row before n is held behind it."""
    checkpoint_id = _known_id(event.barrier.checkpoint_id, event)
    if state.ended:
        return Ignore(event, Reason.ENDED)
    if checkpoint_id in state.dead:
        return Ignore(event, Reason.ABORTED)
    if _passed(state, checkpoint_id):
        return Ignore(event, Reason.LATE)
    waiting = {b.checkpoint_id: b for i in state.inputs.values() for b in i.waiting}
    due = [b for n, b in sorted(waiting.items()) if n < checkpoint_id] + [event.barrier]
    actions: list[Action] = []
    for barrier in due:
        n = barrier.checkpoint_id
        if n not in state.dead and any(_gone_past(i, n) for i in state.inputs.values()):
            # Its sender never took it; and what stands behind its later barrier is processed.
            state, said = _kill(state, n, Reason.SKIPPED)
            actions.extend(said)
        if n not in state.dead:
            state = replace(state, snapshot=n)
            actions.append(TakeSnapshot(barrier))
        state = replace(state, inputs={name: _pop(i, n) for name, i in state.inputs.items()})
    return state, tuple(actions)


def _gone_past(given: InputState, checkpoint_id: int) -> bool:
    """Whether an input brings a later barrier though it has not brought this one."""
    waits = any(b.checkpoint_id == checkpoint_id for b in given.waiting)
    return given.newest >= checkpoint_id and not waits


def _passed(state: Alignment, checkpoint_id: int) -> bool:
    """Whether an id was settled at this stage long ago."""
    passed = all(i.last >= checkpoint_id for i in state.inputs.values() if i.live)
    return checkpoint_id <= state.snapshot or passed


def _kill(state: Alignment, checkpoint_id: int, reason: Reason) -> _Changed:
    state = replace(state, dead=state.dead | {checkpoint_id})
    return state, (Discard(checkpoint_id, reason),)


def _settle(state: Alignment) -> _Changed:
    """Settle barriers at the heads of the queues for as long as one can be decided."""
    actions: list[Action] = []
    while heads := state.blocking:
        lowest = min(heads)
        if lowest in state.dead:
            pass
        elif len(heads) > 1 or any(i.last > lowest for i in state.inputs.values()):
            # Ids only rise on an input, so one that is past `lowest` never brings it.
            state, said = _kill(state, lowest, Reason.SKIPPED)
            actions.extend(said)
        elif all(i.waiting for i in state.inputs.values() if i.live):
            barrier = next(i.waiting[0] for i in state.inputs.values() if i.waiting)
            state = replace(state, snapshot=lowest)
            actions.append(TakeSnapshot(barrier))
        else:
            break
        state = replace(state, inputs={n: _pop(i, lowest) for n, i in state.inputs.items()})
    live = [i for i in state.inputs.values() if i.live]
    dead = frozenset(n for n in state.dead if not _passed(state, n))
    state = replace(state, dead=dead)
    if not live and not state.ended:
        state = replace(state, ended=True)
        actions.append(EndStage())
    return state, tuple(actions)


def _pop(given: InputState, checkpoint_id: int) -> InputState:
    if given.waiting and given.waiting[0].checkpoint_id == checkpoint_id:
        return replace(given, last=checkpoint_id, waiting=given.waiting[1:])
    return given


def _known_id(checkpoint_id: int, event: Event) -> int:
    if checkpoint_id < 1:
        raise ProtocolViolation(f"{event} has id {checkpoint_id}, but checkpoint ids start at 1")
    return checkpoint_id


def _withinput_of(state: Alignment, name: str, given: InputState) -> Alignment:
    return replace(state, inputs={**state.inputs, name: given})
