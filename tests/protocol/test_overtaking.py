"""Overtaking: a stage snapshots before all barriers have come; the rest is its channel state.

The worlds below are explored, not sampled: from each state every next arrival is tried, and states
that are alike are looked at once. So every interleaving is met, though there are millions of them.
"""

from collections import Counter
from itertools import product

import pytest
from aligning import abort, barrier, discarded, end, ignored, overtake, play, taken

from absflow.protocol import alignment_state
from absflow.protocol.alignment import AbortArrived, OvertakeArrived, Reason
from absflow.protocol.alignment_state import Barrier, brought, from_json, gate, in_flight, to_json
from absflow.simulation.batch import Batch
from absflow.simulation.items import End, Sent
from absflow.simulation.job import Row, StageSpec
from absflow.simulation.stage import fresh, run_batch

# -- one stage, event by event --------------------------------------------------------------------


def test_an_overtake_before_any_barrier():
    """The stage snapshots at once; the barriers find their checkpoint behind them."""
    state, said = play("ab", overtake(1))
    assert taken(said) == [1]
    assert [in_flight(state, name, 1) for name in "ab"] == [True, True]
    assert [gate(state, name) for name in "ab"] == [2, 2]
    state, said = play("ab", overtake(1), barrier("a", 1))
    assert taken(said) == [1]
    assert [in_flight(state, name, 1) for name in "ab"] == [False, True]
    assert not state.blocking


def test_an_overtake_during_the_alignment_frees_the_blocked_input():
    state, said = play("ab", barrier("a", 1), overtake(1))
    assert taken(said) == [1]
    assert not state.blocking
    assert [in_flight(state, name, 1) for name in "ab"] == [False, True]


def test_an_overtake_behind_the_alignment_is_late():
    _, said = play("ab", barrier("a", 1), barrier("b", 1), overtake(1))
    assert taken(said) == [1]
    assert ignored(said) == [Reason.LATE]


def test_an_overtake_that_is_repeated_is_late():
    _, said = play("ab", overtake(1), overtake(1), barrier("a", 1), overtake(1))
    assert taken(said) == [1]
    assert ignored(said) == [Reason.LATE, Reason.LATE]


def test_every_unfinished_checkpoint_is_overtaken_before_in_order():
    """No row before 3 may be held behind snapshot 3, so 1 and 2 come first."""
    state, said = play("ab", barrier("a", 1), barrier("a", 2), barrier("b", 1), overtake(3))
    assert taken(said) == [1, 2, 3]
    assert state.snapshot == 3
    assert not state.blocking


def test_an_id_that_was_never_heard_of_is_jumped():
    """Its barriers, when they come, neither block nor snapshot."""
    state, said = play("ab", overtake(2), barrier("a", 1), barrier("b", 1), barrier("a", 2))
    assert taken(said) == [2]
    assert not state.blocking
    assert brought(state, "b") == 2


def test_a_later_checkpoint_aligns_behind_an_overtaken_one():
    """Input b still brings what was in flight; then both bring 2."""
    state, said = play("ab", overtake(1), barrier("a", 1), barrier("a", 2), barrier("b", 1))
    assert taken(said) == [1]
    assert state.blocking == {2}
    assert gate(state, "b") == 2
    _, said = play("ab", overtake(1), *(barrier(n, i) for n, i in product("ab", (1, 2))))
    assert taken(said) == [1, 2]


def test_a_dead_id_is_not_overtaken():
    _, said = play("ab", abort(1), overtake(1))
    assert taken(said) == []
    assert ignored(said) == [Reason.ABORTED]
    _, said = play("ab", barrier("a", 1), barrier("b", 2), overtake(1))
    assert taken(said) == []


def test_an_abort_behind_an_overtake_is_late():
    _, said = play("ab", overtake(1), abort(1))
    assert taken(said) == [1]
    assert ignored(said) == [Reason.LATE]


def test_an_id_whose_barrier_an_input_went_past_is_given_up():
    """Its sender never took it, and what stands behind its next barrier has been processed."""
    _, said = play("ab", abort(2), barrier("a", 2), overtake(1))
    assert taken(said) == []
    assert discarded(said) == [(2, Reason.ABORTED), (1, Reason.SKIPPED)]
    _, said = play("abc", barrier("a", 1), barrier("a", 3), barrier("b", 1), overtake(2))
    assert taken(said) == [1]
    assert discarded(said) == [(2, Reason.SKIPPED)]


def test_a_checkpoint_below_that_one_input_never_brings_is_given_up_on_the_way():
    events = [barrier("a", 1), barrier("a", 2), barrier("b", 1), barrier("b", 3), overtake(4)]
    _, said = play("abc", *events)
    assert taken(said) == [1, 3, 4]
    assert discarded(said) == [(2, Reason.SKIPPED)]


def test_nothing_is_in_flight_on_an_input_that_has_ended():
    state, said = play("ab", end("a"), overtake(1))
    assert taken(said) == [1]
    assert [in_flight(state, name, 1) for name in "ab"] == [False, True]


def test_a_stage_that_has_ended_is_overtaken_by_nothing():
    _, said = play("ab", end("a"), end("b"), overtake(1))
    assert taken(said) == []
    assert ignored(said) == [Reason.ENDED]


def test_an_input_may_end_without_the_barrier_that_was_overtaken():
    state, said = play("ab", overtake(1), end("a"), end("b"))
    assert state.ended
    assert taken(said) == [1]


def test_the_state_of_an_overtaken_alignment_is_stored():
    state, _ = play("ab", barrier("a", 1), overtake(1), barrier("a", 2))
    assert from_json(to_json(state)) == state


# -- every world ----------------------------------------------------------------------------------


def row(name, number, epoch):
    return Sent(epoch, Row((name,), number, key=10 * ord(name) + number, amount=1, sign=1))


def stream(name, *ids):
    """A row, then each of the barriers with a row behind it, then the end."""
    items = [row(name, 0, 1)]
    for number, checkpoint_id in enumerate(ids, 1):
        items += [Barrier(checkpoint_id), row(name, number, checkpoint_id + 1)]
    return (*items, End())


def upto(items, checkpoint_id):
    return [i for i in items if isinstance(i, Sent) and i.epoch <= checkpoint_id]


def keys(rows):
    return {f"key {sent.row.key}" for sent in rows}


class World:
    """One stage, the streams of its inputs, and the orders that it reads beside them."""

    def __init__(self, streams, orders, most=1):
        self.stage = StageSpec("s", upstream=tuple(streams))
        self.streams, self.orders, self.most = streams, orders, most
        self.reached = Counter()

    def explore(self):
        """Every state that can be reached; each batch takes at most so many items of an input."""
        start = (dict.fromkeys(self.streams, 0), 0, fresh(self.stage))
        todo, known = [start], set()
        while todo:
            read, obeyed, memory = todo.pop()
            ends = True
            for spans in self.next_batches(read, obeyed):
                ends = False
                after = self.batch(read, obeyed, memory, *spans)
                key = self.alike(*after)
                if key not in known:
                    known.add(key)
                    todo.append(after)
            if ends:
                self.judge_end(memory)
        return self

    def alike(self, read, obeyed, memory):
        """What the rest of the story depends on: not on when a key was last changed."""
        values = tuple((key, entry.value) for key, entry in sorted(memory.values.items()))
        held = tuple((h.input, h.row.number) for h in memory.held)
        return (*read.values(), obeyed, alignment_state.to_json(memory.alignment), held, values)

    def next_batches(self, read, obeyed):
        steps = range(self.most + 1)
        choices = [*(steps for _ in read), steps]
        for step in product(*choices):
            if not 0 < sum(step) <= self.most:
                continue
            ahead = dict(zip(read, step, strict=False))
            fits = all(read[n] + k <= len(self.streams[n]) for n, k in ahead.items())
            if fits and obeyed + step[-1] <= len(self.orders):
                yield ahead, step[-1]

    def batch(self, read, obeyed, memory, ahead, orders):
        end = {name: read[name] + ahead[name] for name in read}
        items = {name: self.streams[name][read[name] : end[name]] for name in read}
        batch = Batch(items, end, self.orders[obeyed : obeyed + orders])
        outcome = run_batch(self.stage, memory, batch, lambda _, given: (given,))
        alignment_state.validate(outcome.memory.alignment)
        for snapshot in outcome.snapshots:
            self.judge(snapshot)
        return end, obeyed + orders, outcome.memory

    def judge(self, snapshot):
        """Rows before the cut are in the state or in flight, each once; no other row is there."""
        number = snapshot.barrier.checkpoint_id
        due = keys(sent for items in self.streams.values() for sent in upto(items, number))
        flying = set()
        for name, position in snapshot.in_flight.items():
            flying |= keys(upto(self.streams[name][position:], number))
        state = {key for key in snapshot.changes if key.startswith("key")}
        assert state | flying == due, f"snapshot {number}"
        assert not state & flying, f"snapshot {number}"
        assert all(snapshot.changes[key] == (1, 1) for key in state)
        self.reached["rows in flight"] += bool(flying)
        self.reached["aligned"] += not snapshot.in_flight
        self.reached["some inputs in flight"] += 0 < len(snapshot.in_flight) < len(self.streams)
        self.reached["all inputs in flight"] += len(snapshot.in_flight) == len(self.streams)

    def judge_end(self, memory):
        """Nothing is held or lost, and the stage has ended."""
        rows = [i for items in self.streams.values() for i in items if isinstance(i, Sent)]
        assert memory.alignment.ended
        assert memory.held == ()
        state = {k: e.value for k, e in memory.values.items() if k.startswith("key")}
        assert state == dict.fromkeys(keys(rows), (1, 1))
        self.reached[f"ended behind snapshot {memory.alignment.snapshot}"] += 1


def over(*ids):
    return tuple(OvertakeArrived(Barrier(n)) for n in ids)


ORDERS = {
    "overtake 1": over(1),
    "overtake 2": over(2),
    "overtake both": over(1, 2),
    "overtake the later one first": over(2, 1),
    "overtake twice": over(2, 2),
    "overtake, then abort": (*over(1), AbortArrived(1)),
    "abort, then overtake": (AbortArrived(1), *over(1)),
    "abort 1, overtake 2": (AbortArrived(1), *over(2)),
    "overtake 1, abort 2": (*over(1), AbortArrived(2)),
}


@pytest.mark.parametrize("orders", ORDERS)
def test_three_inputs_and_two_checkpoints(orders):
    """Every interleaving, with the overtake at any point: one cut, every row once, nobody stuck."""
    world = World({name: stream(name, 1, 2) for name in "abc"}, ORDERS[orders]).explore()
    hard = ["rows in flight", "aligned", "some inputs in flight", "all inputs in flight"]
    if not orders.startswith("abort, then"):
        assert all(world.reached[case] for case in hard), world.reached
    assert world.reached["ended behind snapshot 2"]


@pytest.mark.parametrize("orders", ORDERS)
def test_whatever_a_micro_batch_takes(orders):
    """The same with up to three items at once, so that a batch brings several control rows."""
    streams = {name: stream(name, 1, 2) for name in "ab"}
    World(streams, ORDERS[orders], most=3).explore()


@pytest.mark.parametrize(
    "ids", [((1, 2), (1, 2), (2,)), ((1, 2), (2,), (1,)), ((1,), (2,), ()), ((1, 2), (), (1, 2))]
)
@pytest.mark.parametrize("orders", ["overtake 1", "overtake 2", "overtake both"])
def test_inputs_that_never_bring_some_id(ids, orders):
    """What a sender has given up, or ended without: consistent all the same."""
    streams = {name: stream(name, *each) for name, each in zip("abc", ids, strict=True)}
    World(streams, ORDERS[orders]).explore()


def test_rows_that_come_before_the_barrier_they_are_behind():
    """A channel's writer commits the rows of a batch before its barriers."""
    early = (row("a", 0, 1), row("a", 1, 2), row("a", 2, 3), Barrier(1), Barrier(2), End())
    for orders in ORDERS.values():
        World({"a": early, "b": stream("b", 1, 2)}, orders, most=2).explore()
