"""The alignment's table, walked; its JSON form; and the moves that are refused."""

import copy
import json

import pytest
from aligning import abort, barrier, end, play

from absflow.errors import ProtocolViolation
from absflow.protocol.alignment import INPUT_TRANSITIONS, BarrierArrived, InputEnded, start, step
from absflow.protocol.alignment_state import (
    Alignment,
    Barrier,
    from_json,
    gate,
    status,
    to_json,
    validate,
)


def reachable(inputs, events):
    """Every move (state, event, new state) that can happen from a fresh stage."""
    seen, todo = {}, [start(inputs)]
    while todo:
        state = todo.pop()
        if to_json(state) in seen:
            continue
        seen[to_json(state)] = state
        for event in events:
            after, _ = step(state, event)
            validate(after)
            yield state, event, after
            todo.append(after)


def input_moves(state, event, after):
    """What one step did to each input, in the words of the table."""
    for name in state.inputs:
        before, now = status(state, name), status(after, name)
        popped = after.inputs[name].last > state.inputs[name].last
        if getattr(event, "input", None) == name:
            if isinstance(event, InputEnded):
                yield (before, "end"), now
            else:
                new = event.barrier.checkpoint_id > state.inputs[name].newest
                yield (before, "new barrier" if new else "old barrier"), now
        elif popped:
            yield (before, "settled"), now
        else:
            assert before is now


EVENTS = [
    *(barrier(name, n) for name in "ab" for n in (1, 2, 3)),
    *(end(name) for name in "ab"),
    *(abort(n) for n in (1, 2, 3)),
]


def test_the_table_is_what_the_machine_does():
    """Over every reachable state of 2 inputs and 3 ids: each entry of the table, and no other."""
    found = {}
    for state, event, after in reachable("ab", EVENTS):
        for key, now in input_moves(state, event, after):
            found.setdefault(key, set()).add(now)
    assert found == {key: set(nexts) for key, nexts in INPUT_TRANSITIONS.items()}


def test_states_survive_json():
    """Every reachable state is the same after a round trip, and equal states give equal text."""
    for state, _, _ in reachable("ab", EVENTS):
        text = to_json(state)
        assert from_json(text) == state
        mirrored = Alignment(
            dict(reversed(state.inputs.items())), state.snapshot, state.dead, state.ended
        )
        assert to_json(mirrored) == text


def test_json_keeps_the_whole_barrier():
    """A queued barrier comes back with its base, completed id and trigger time, on one line."""
    state, _ = step(start("ab", last=3), BarrierArrived("a", Barrier(5, 3, 2, 1_700_000_000_000)))
    text = to_json(state)
    assert from_json(text).inputs["a"].waiting == (Barrier(5, 3, 2, 1_700_000_000_000),)
    assert "\n" not in text
    assert json.loads(text)["snapshot"] == 3


# -- illegal moves ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event", [barrier("x", 1), end("x"), barrier("a", 0), barrier("a", -1), abort(0)]
)
def test_an_illegal_move_raises_and_changes_nothing(event):
    """An unknown input or an id below 1 is a violation; the state stays as it was."""
    state, _ = play("ab", barrier("a", 1), barrier("a", 2), abort(2))
    before = copy.deepcopy(state)
    with pytest.raises(ProtocolViolation):
        step(state, event)
    assert state == before


@pytest.mark.parametrize("ask", [gate, status])
def test_an_unknown_input_has_no_gate(ask):
    """Questions about an input that the stage does not have are refused too."""
    with pytest.raises(ProtocolViolation, match="'x'"):
        ask(start("ab"), "x")
