"""Retention against a model of a job, under any order of events, and a kill between any two writes.

Whatever happens, every checkpoint that is not deleted reads as it did when it completed
(``World.check``), and the sink finds every row that it has to publish (``World.publish``).
"""

import copy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from retention_model import STAGES, World, assert_bounded, assert_same_end, settle

from absflow.protocol.retention.inventory import RetentionPolicy
from absflow.protocol.retention.plan import plan
from absflow.protocol.tiers import TierPolicy

KEYS = st.sampled_from("abc")
VALUES = st.one_of(st.none(), st.integers(0, 9))


class RetentionMachine(RuleBasedStateMachine):
    @initialize(
        retained=st.integers(1, 3),
        longest=st.integers(1, 5),
        savepoints_are_bases=st.booleans(),
        free_dead=st.sampled_from([0, 2, 50]),
        knows=st.tuples(st.booleans(), st.booleans()),
    )
    def begin(self, retained, longest, savepoints_are_bases, free_dead, knows):
        policy = RetentionPolicy(retained, TierPolicy(longest, free_dead=free_dead))
        self.world = self.begin_world(policy, savepoints_are_bases, *knows)

    def begin_world(self, *given):
        return World(*given)

    @rule(stage=st.sampled_from(STAGES), key=KEYS, value=VALUES)
    def work(self, stage, key, value):
        if self.world.ready:
            self.world.work(stage, key, value)

    @precondition(lambda self: self.world.ready and len(self.world.pending) < 3)
    @rule(kind=st.sampled_from(["aligned", "aligned", "unaligned", "savepoint"]))
    def trigger(self, kind):
        self.world.trigger(kind == "savepoint", kind == "unaligned")

    @precondition(lambda self: self.world.pending)
    @rule(data=st.data(), end=st.sampled_from(["complete", "complete", "land", "abort"]))
    def go_on(self, data, end):
        n = data.draw(st.sampled_from(sorted(self.world.pending)))
        getattr(self.world, end)(n)

    @precondition(lambda self: self.world.ready and not self.world.pending)
    @rule(changes=st.lists(st.tuples(st.sampled_from(STAGES), KEYS, VALUES), max_size=4))
    def checkpoint(self, changes):
        """The usual course."""
        for change in changes:
            self.world.work(*change)
        self.world.trigger()
        self.world.complete(self.world.next_id - 1)

    @precondition(lambda self: self.world.aborted)
    @rule(data=st.data())
    def append_late(self, data):
        self.world.land(data.draw(st.sampled_from(sorted(self.world.aborted))))

    @rule()
    def consume(self):
        self.world.consume()

    @precondition(lambda self: self.world.ready)
    @rule()
    def publish(self):
        self.world.publish()

    @precondition(lambda self: self.world.readable())
    @rule(data=st.data(), ready=st.booleans())
    def restore(self, data, ready):
        """Mostly without READY at first: the restore is killed, and done again."""
        again = self.world.attempts[self.world.attempt]
        if self.world.ready or again not in self.world.readable():
            again = data.draw(st.sampled_from(self.world.readable()))
        self.world.restore(again)
        self.world.ready = ready

    @rule()
    def become_ready(self):
        self.world.ready = True

    @precondition(lambda self: self.world.readable())
    @rule(data=st.data())
    def delete_on_request(self, data):
        self.world.deleted.add(data.draw(st.sampled_from(self.world.readable())))

    @rule()
    def clean(self):
        self.world.clean()

    @rule(writes=st.integers(0, 6))
    def clean_and_die(self, writes):
        """A kill between two writes changes nothing in the end, and is no end of the history."""
        whole = copy.deepcopy(self.world)
        whole.clean()
        self.world.clean(writes)
        again = copy.deepcopy(self.world)
        again.clean()
        assert_same_end(again, whole)

    @invariant()
    def nothing_retained_is_lost(self):
        self.world.check()

    @invariant()
    def a_plan_leaves_nothing_to_plan(self):
        world = copy.deepcopy(self.world)
        world.clean()
        assert plan(world.inventory(), world.policy) == ()

    def teardown(self):
        settle(self.world)
        assert_bounded(self.world)


TestRetentionMachine = RetentionMachine.TestCase
TestRetentionMachine.settings = settings(
    max_examples=300, stateful_step_count=40, derandomize=True, database=None
)
TestRetentionMachine.__doc__ = "Any history of a job: nothing retained is lost, the rest goes."
