"""Alignment against a model that decides each id from the whole history, not step by step."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from absflow.protocol.alignment import (
    AbortArrived,
    BarrierArrived,
    Discard,
    EndStage,
    InputEnded,
    OvertakeArrived,
    Reason,
    TakeSnapshot,
    start,
    step,
)
from absflow.protocol.alignment_state import Barrier, from_json, gate, in_flight, to_json, validate

INPUTS = "abc"


class Model:
    """What every input has brought so far, and what became of each id.

    An id is skipped if an input has gone past it without bringing it; it is taken if every input
    has brought it, or has ended before it. Ids are decided in order: one that waits makes the
    later ones wait. An overtake decides all that were brought before it, and at last its own; what
    comes of lower ids later means nothing.
    """

    def __init__(self):
        self.brought = {name: [] for name in INPUTS}
        self.ended = set()
        self.fate = {}

    def newest(self, name):
        return max(self.brought[name], default=0)

    def bring(self, name, checkpoint_id):
        if name not in self.ended and checkpoint_id > self.newest(name):
            self.brought[name].append(checkpoint_id)

    def abort(self, checkpoint_id):
        self.fate.setdefault(checkpoint_id, "aborted")

    @property
    def snapshot(self):
        return max((n for n, fate in self.fate.items() if fate == "taken"), default=0)

    def undecided(self):
        """The ids that were brought and have no fate, in order."""
        known = set().union(*self.brought.values()) - self.fate.keys()
        return sorted(n for n in known if n > self.snapshot)

    def settled(self, name):
        """The newest id of an input that does not wait for anything."""
        waiting = {n for n in self.undecided() if n in self.brought[name]}
        first = min(waiting, default=self.newest(name) + 1)
        return max((n for n in self.brought[name] if n < first), default=0)

    def overtake(self, number):
        """The ids that are taken and skipped when ``number`` is not to wait any longer."""
        live = [n for n in INPUTS if n not in self.ended or self.settled(n) < self.newest(n)]
        passed = all(self.settled(name) >= number for name in live)
        if number in self.fate or number <= self.snapshot or passed:
            return [], []
        due = {n for n in self.undecided() if n < number} | {number}
        for n in sorted(due):
            gone = any(self.newest(i) >= n and n not in self.brought[i] for i in INPUTS)
            self.fate[n] = "skipped" if gone else "taken"
        return (sorted(n for n in due if self.fate[n] == fate) for fate in ("taken", "skipped"))

    def decide(self):
        """The ids that are taken and skipped now, in order."""
        taken, skipped = [], []
        for n in self.undecided():
            without = [name for name in INPUTS if n not in self.brought[name]]
            if any(self.newest(name) > n for name in without):
                self.fate[n] = "skipped"
                skipped.append(n)
            elif self.ended.issuperset(without):
                self.fate[n] = "taken"
                taken.append(n)
            else:
                break
        return taken, skipped

    def gate(self, name):
        waiting = [n for n in self.undecided() if n in self.brought[name]]
        if not waiting and name not in self.ended:
            return max(self.newest(name), self.snapshot) + 1
        return min(waiting, default=None)


class AlignmentMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.state = start(INPUTS)
        self.model = Model()
        self.given_up = []

    def post(self, event, overtaken=((), ())):
        """Step the machine; what it says must be what the model decides."""
        stored = from_json(to_json(self.state))
        self.state, said = step(stored, event)
        taken, skipped = ([*o, *d] for o, d in zip(overtaken, self.model.decide(), strict=True))
        discards = [(a.checkpoint_id, a.reason) for a in said if isinstance(a, Discard)]
        assert [a.barrier.checkpoint_id for a in said if isinstance(a, TakeSnapshot)] == taken
        assert [n for n, why in discards if why is Reason.SKIPPED] == skipped
        assert (EndStage() in said) is (self.model.ended == set(INPUTS) and not stored.ended)
        self.given_up.extend(n for n, _ in discards)

    @rule(name=st.sampled_from(INPUTS), jump=st.sampled_from([1, 1, 1, 2, 3]))
    def bring(self, name, jump):
        checkpoint_id = self.model.newest(name) + jump
        self.model.bring(name, checkpoint_id)
        self.post(BarrierArrived(name, Barrier(checkpoint_id)))

    @rule(name=st.sampled_from(INPUTS), back=st.integers(0, 4))
    def repeat(self, name, back):
        checkpoint_id = max(self.model.newest(name) - back, 1)
        self.model.bring(name, checkpoint_id)
        self.post(BarrierArrived(name, Barrier(checkpoint_id)))

    @rule(name=st.sampled_from(INPUTS), ahead=st.integers(-3, 3))
    def abort(self, name, ahead):
        checkpoint_id = max(self.model.newest(name) + ahead, 1)
        self.model.abort(checkpoint_id)
        self.post(AbortArrived(checkpoint_id))

    @rule(name=st.sampled_from(INPUTS), ahead=st.integers(-2, 3))
    def overtake(self, name, ahead):
        checkpoint_id = max(self.model.newest(name) + ahead, 1)
        overtaken = tuple(self.model.overtake(checkpoint_id))
        self.post(OvertakeArrived(Barrier(checkpoint_id)), overtaken)

    @precondition(lambda self: max(map(self.model.newest, INPUTS)) > 3)
    @rule(name=st.sampled_from(INPUTS))
    def end(self, name):
        self.model.ended.add(name)
        self.post(InputEnded(name))

    @invariant()
    def holds(self):
        validate(self.state)

    @invariant()
    def gates_are_the_first_undecided_barriers_or_the_next(self):
        assert [gate(self.state, n) for n in INPUTS] == [self.model.gate(n) for n in INPUTS]

    @invariant()
    def the_epoch_follows_the_newest_snapshot(self):
        assert self.state.epoch == self.model.snapshot + 1

    @invariant()
    def in_flight_is_what_no_barrier_or_end_has_closed(self):
        for name in INPUTS:
            open_ = name not in self.model.ended
            for n in (1, self.model.snapshot, self.model.snapshot + 1):
                due = open_ and self.model.newest(name) < n
                assert in_flight(self.state, name, n) is due

    @invariant()
    def an_id_is_given_up_once(self):
        assert len(self.given_up) == len(set(self.given_up))

    @invariant()
    def little_is_remembered(self):
        """Dead ids are kept only while an input may still bring them."""
        slowest = min(
            (self.model.newest(n) for n in INPUTS if n not in self.model.ended), default=None
        )
        waiting = [i.last for i in self.state.inputs.values() if i.waiting]
        floor = min([*waiting, *([] if slowest is None else [slowest])], default=0)
        assert all(n > floor for n in self.state.dead)


TestAlignmentMachine = AlignmentMachine.TestCase
TestAlignmentMachine.settings = settings(
    max_examples=150, stateful_step_count=40, derandomize=True, database=None
)
TestAlignmentMachine.__doc__ = "Any history of barriers, aborts and ends: as the model decides."
