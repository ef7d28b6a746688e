"""Facts read with a summary of old ones give what all facts give, whenever it was made."""

import copy
import json
import random

import pytest
from fact_tables import LAYOUT, FactWorld
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from retention_model import STAGES, World, settle
from test_retention_machine import RetentionMachine

from absflow.facts.reading import FactReader
from absflow.protocol.alignment_state import Barrier
from absflow.protocol.known import Known, Trigger, summarise
from absflow.protocol.retention.deletion import Deletion, judge
from absflow.protocol.retention.inventory import RetentionPolicy
from absflow.protocol.retention.plan import explain, needed, plan
from absflow.protocol.tiers import TierPolicy


def assert_same(world, summary):
    """Whatever is asked of the facts, the answer is that of a world that has forgotten nothing."""
    whole = World.inventory(world)
    for text in (None, summary):
        seen = world.seen(text)
        assert seen.pending == whole.pending
        assert needed(seen) == needed(whole)
        assert plan(seen, world.policy) == plan(whole, world.policy)
        assert explain(seen, world.policy) == explain(whole, world.policy)
        assert seen.ended_id == whole.ended_id
        for n in random.Random(world.next_id).choices(range(1, world.next_id + 1), k=3):
            asked = Deletion("", (n,))
            assert judge(world.seen(text, [n]), asked) == judge(whole, asked)
    (all_known, _), (known, _) = world.known(), world.known(summary)
    assert known.completions == all_known.completions
    assert known.deleted == all_known.deleted
    assert (known.done_count, known.aborted_count) == (
        all_known.done_count,
        all_known.aborted_count,
    )
    assert known.pending == all_known.pending
    assert max(known.triggered, known.ended_id) == max(all_known.triggered, all_known.ended_id)


class SummaryMachine(RetentionMachine):
    """The machine of retention, in which somebody sums up at any time, and puts back old ones."""

    def begin_world(self, *given):
        self.summaries = [None]
        return FactWorld(*given)

    @precondition(lambda self: self.world.next_id > 1)
    @rule(made_with=st.integers(0, 3))
    def sum_up(self, made_with):
        self.summaries.append(
            self.world.sum_up(self.summaries[-1 - made_with % len(self.summaries)])
        )

    @precondition(lambda self: len(self.summaries) > 1)
    @rule(back=st.integers(1, 3))
    def put_back(self, back):
        self.summaries.append(self.summaries[-1 - back % len(self.summaries)])

    @invariant()
    def nothing_is_missed(self):
        if hasattr(self, "world"):
            assert_same(self.world, self.summaries[-1])


TestSummaryMachine = SummaryMachine.TestCase
TestSummaryMachine.settings = settings(
    max_examples=20, stateful_step_count=30, derandomize=True, database=None
)
TestSummaryMachine.__doc__ = "Any history of a job, summed up at any time: plans are the same."


def move(world, chance):
    """A trigger, mostly, and what may come of it and of what was before."""
    for stage in STAGES:
        world.work(stage, chance.randrange(9), chance.choice([None, world.next_id]))
    if len(world.pending) < 3:
        world.trigger(savepoint=chance.random() < 0.1, unaligned=chance.random() < 0.3)
    while world.pending and chance.random() < 0.6:
        n = chance.choice(sorted(world.pending))
        (world.complete if chance.random() < 0.8 else world.abort)(n)
    if chance.random() < 0.04 and world.readable():
        world.restore(chance.choice(world.readable()))
        world.ready = True
    if chance.random() < 0.1 and world.readable():
        world.deleted.add(chance.choice(world.readable()))
    for savepoint in sorted(world.savepoints - world.deleted)[:-2]:
        world.deleted.add(savepoint)
    world.consume()
    world.publish()


@pytest.mark.parametrize("seed", range(4))
def test_100_checkpoints_with_mishaps(seed):
    """A summary is small, and so is what is read beside it, however old the job is."""
    chance = random.Random(seed)
    policy = RetentionPolicy(retained=2, tiers=TierPolicy(4))
    world = FactWorld(policy, savepoints_are_bases=seed % 2 == 1, knows_compactions=seed < 2)
    summary = None
    while len(world.completed) < 100:
        move(world, chance)
        world.clean(chance.choice([None, chance.randrange(8)]))
        if chance.random() < 0.15:
            summary = world.sum_up(summary)
            assert_same(world, summary)
        elif chance.random() < 0.1:
            assert_same(world, summary)
    assert len(summary) < 4000
    settled = copy.deepcopy(world)
    settle(settled)
    summary = settled.sum_up(summary)
    reader = settled.tables(summary)
    FactReader(reader, LAYOUT).known(attempt=settled.attempt)
    assert reader.given < 60


@pytest.mark.parametrize(
    "broken",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"format":1', '"format":2'),
        lambda text: text.replace('"upto"', '"upt"'),
        lambda text: text.replace('"version":0', '"version":1'),
    ],
)
def test_a_summary_that_cannot_be_believed_is_not_read(broken):
    """A torn file, one of another form, one that is newer than the table: all facts are read."""
    world, chance = FactWorld(RetentionPolicy()), random.Random(0)
    for _ in range(20):
        move(world, chance)
        world.clean()
    text = world.sum_up()
    assert json.loads(text)["upto"] > 0
    assert world.known(text)[0].upto > 0
    assert world.known(broken(text)) == world.known()


def test_what_ends_behind_the_newest_trigger_that_was_read_is_not_summed_up():
    """Something below it may be pending that was triggered in between."""
    known = Known(triggered=5, done=frozenset({4, 5}), aborted=frozenset({7}))
    assert summarise(known, {}, (), 1).upto == 5
    waits = Trigger(Barrier(5), attempt=1)
    known = Known(triggered=6, done=frozenset({4, 6}), pending=(waits,))
    assert summarise(known, {}, (), 1).upto == 4
    assert summarise(Known(triggered=5, pending=(waits,)), {}, (), 1).upto == 0
