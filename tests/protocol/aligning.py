"""Small builders for tests of the alignment: events, a fresh stage, and what was said."""

from absflow.protocol.alignment import (
    AbortArrived,
    BarrierArrived,
    Discard,
    Ignore,
    InputEnded,
    OvertakeArrived,
    TakeSnapshot,
    start,
    step,
)
from absflow.protocol.alignment_state import Barrier, validate


def barrier(name, checkpoint_id):
    return BarrierArrived(name, Barrier(checkpoint_id))


def end(name):
    return InputEnded(name)


def abort(checkpoint_id):
    return AbortArrived(checkpoint_id)


def overtake(checkpoint_id):
    return OvertakeArrived(Barrier(checkpoint_id))


def play(inputs, *events):
    """Run the events on a fresh stage; ``validate`` after each."""
    state, said = start(inputs), []
    for event in events:
        state, actions = step(state, event)
        validate(state)
        said.extend(actions)
    return state, said


def taken(said):
    return [a.barrier.checkpoint_id for a in said if isinstance(a, TakeSnapshot)]


def discarded(said):
    return [(a.checkpoint_id, a.reason) for a in said if isinstance(a, Discard)]


def ignored(said):
    return [a.reason for a in said if isinstance(a, Ignore)]
