"""Retention in all short histories of a job, and in long ones."""

import copy
import random

import pytest
from retention_model import STAGES, World, assert_bounded, assert_same_end, settle

from absflow.protocol.retention.inventory import DeleteManifest, RetentionPolicy
from absflow.protocol.retention.plan import compact, plan
from absflow.protocol.tiers import TierPolicy


def checkpoint(world, savepoint=False):
    for stage in STAGES:
        world.work(stage, "key", world.next_id)
    world.trigger(savepoint)
    world.complete(world.next_id - 1)


def begin(world):
    world.work("left", f"key {world.next_id}", 1)
    world.trigger(unaligned=True)


def complete(world):
    world.complete(min(world.pending))


def abort(world):
    """Given up, and its sets are appended all the same."""
    n = min(world.pending)
    world.abort(n)
    world.land(n)


def restore(world):
    world.restore(min(world.readable()))


def delete_newest(world):
    world.deleted.add(max(world.readable()))


# What may happen, and when it can.
MOVES = [
    (checkpoint, lambda world: not world.pending),
    (lambda world: checkpoint(world, savepoint=True), lambda world: not world.pending),
    (begin, lambda world: len(world.pending) < 2),
    (complete, lambda world: world.pending),
    (abort, lambda world: world.pending),
    (restore, lambda world: world.readable()),
    (delete_newest, lambda world: world.readable()),
    (World.publish, lambda world: world.path_checkpoints()),
    (World.clean, lambda world: world.completed),
]


def walk(world, moves):
    """Every history of so many more moves; how many there were."""
    if not moves:
        return 1
    seen = 0
    for move, possible in MOVES:
        if possible(world):
            after = copy.deepcopy(world)
            move(after)
            after.ready = True
            after.check()
            seen += walk(after, moves - 1)
    settled = copy.deepcopy(world)
    settle(settled)
    assert_bounded(settled)
    return seen


@pytest.mark.parametrize("savepoints_are_bases", [False, True])
def test_every_short_history(savepoints_are_bases):
    """After a checkpoint and any five moves what is retained is what it was; the rest can go."""
    world = World(RetentionPolicy(retained=1, tiers=TierPolicy(1)), savepoints_are_bases)
    checkpoint(world)
    assert walk(world, 5) > 5000


def test_a_kill_between_any_two_writes():
    """Wherever a clean-up dies, the next one ends where it would have ended."""
    world = World(RetentionPolicy(retained=2, tiers=TierPolicy(2)))
    for n in range(6):
        checkpoint(world, savepoint=n == 3)
    world.restore(4)
    world.ready = True
    for _ in range(3):
        checkpoint(world)
        world.publish()
    world.consume()
    whole, writes = copy.deepcopy(world), 0
    whole.clean()
    while (dead := copy.deepcopy(world)).clean(writes):
        dead.clean()
        assert_same_end(dead, whole)
        writes += 1
    assert writes > 10


def clean_with_failures(world, chance):
    """Carry a plan out while some of its actions fail; a lost answer is a failure, too."""
    there = world.inventory()
    for action in plan(there, world.policy):
        if isinstance(action, DeleteManifest):
            world.retire(action.checkpoint_id)

    def tried(action):
        writes = list(world.writes(action))
        before_failure = chance.choice([len(writes), chance.randint(0, len(writes))])
        for write in writes[:before_failure]:
            write()
            world.check()
        return before_failure == len(writes) and chance.random() < 0.9

    for action in compact(there, world.policy, tried):
        tried(action)


@pytest.mark.parametrize("seed", range(20))
def test_actions_that_fail_stop_no_others_and_take_nothing_away(seed):
    """A clean-up of which parts fail, again and again; one that does not then ends as always."""
    chance = random.Random(seed)
    world = World(RetentionPolicy(retained=2, tiers=TierPolicy(2)))
    for n in range(12):
        checkpoint(world, savepoint=n % 5 == 3)
        if n == 6:
            world.restore(max(world.readable()))
            world.ready = True
        world.publish()
        clean_with_failures(world, chance)
        world.check()
    settle(world)
    assert_bounded(world)


def test_a_set_waits_for_its_checkpoint_while_a_later_one_is_aborted():
    """A clean-up between the append and the completion of 2, with 3 aborted, loses nothing."""
    world = World(RetentionPolicy())
    checkpoint(world)
    begin(world)
    begin(world)
    world.land(2)
    world.abort(3)
    world.clean()
    world.complete(2)
    world.check()


def test_500_checkpoints_without_a_mishap():
    """A job that runs for ever stores no more after 500 checkpoints than after a few."""
    policy = RetentionPolicy(retained=3, tiers=TierPolicy(5))
    world, chance = World(policy), random.Random(1)
    for _ in range(500):
        for stage in STAGES:
            world.work(stage, chance.randrange(20), world.next_id)
        world.trigger(unaligned=chance.random() < 0.5)
        world.complete(world.next_id - 1)
        world.consume()
        world.publish()
        world.clean()
        world.check()
        assert len(world.readable()) <= 3
        for stage in STAGES:
            # The oldest reads at most 5, each of the other two adds its own and a compaction.
            assert len(world.sets[stage]) <= 5 + 2 * 2
            assert len(world.channels[stage, 1]) <= 3
    # Most compactions take most of the five.
    assert len(world.compacted) < 2 * 500 / 3


@pytest.mark.parametrize("seed", range(4))
def test_500_checkpoints_with_mishaps(seed):
    """Aborts, late appends, savepoints, restores and kills leave nothing behind for good."""
    chance = random.Random(seed)
    world = World(
        RetentionPolicy(retained=2, tiers=TierPolicy(4)), savepoints_are_bases=seed % 2 == 0
    )
    while len(world.completed) < 500:
        for stage in STAGES:
            world.work(stage, chance.randrange(20), chance.choice([None, world.next_id]))
        world.trigger(savepoint=chance.random() < 0.05, unaligned=chance.random() < 0.3)
        n = min(world.pending)
        if chance.random() < 0.8:
            world.complete(n)
        else:
            world.abort(n)
            world.land(n)
        if chance.random() < 0.03 and world.readable():
            world.restore(chance.choice(world.readable()))
            world.ready = True
        for savepoint in sorted(world.savepoints - world.deleted)[:-2]:
            world.deleted.add(savepoint)
        world.consume()
        world.publish()
        world.clean(chance.choice([None, chance.randrange(8)]))
        world.check()
        if len(world.completed) % 50 == 0:
            settled = copy.deepcopy(world)
            settle(settled)
            assert_bounded(settled)
