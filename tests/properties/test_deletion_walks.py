"""Deletions that are obeyed, in all short histories of a job: what is left is what it was."""

import copy

import pytest
from retention_model import World
from test_retention_walks import abort, begin, checkpoint, complete, restore

from absflow.protocol.retention.deletion import Deletion, judge
from absflow.protocol.retention.inventory import RetentionPolicy
from absflow.protocol.tiers import TierPolicy

MOVES = [
    (checkpoint, lambda world: not world.pending),
    (lambda world: checkpoint(world, savepoint=True), lambda world: not world.pending),
    (begin, lambda world: len(world.pending) < 2),
    (complete, lambda world: world.pending),
    (abort, lambda world: world.pending),
    (restore, lambda world: world.readable()),
    (World.publish, lambda world: world.path_checkpoints()),
    (World.clean, lambda world: world.completed),
]


def delete_what_may_go(world):
    """Ask for each by itself, then for all that were granted: nothing less is granted."""
    asked = [(n, judge(world.inventory(), Deletion("request-1", (n,)))) for n in world.readable()]
    granted = [n for n, verdict in asked if verdict.delete]
    if granted:
        assert judge(world.inventory(), Deletion("request-1", tuple(granted))).delete == tuple(
            granted
        )
    world.deleted.update(granted)
    line = [n for n in world.line if n == world.attempts[world.attempt] or n not in world.aborted]
    assert not line or max(line) in world.readable(), "nothing is left to go on from"
    assert world.base() == 0 or world.base() in world.readable()
    assert all(t.base in {0, *world.readable()} for t in world.pending.values())


def walk(world, moves):
    """Every history of so many more moves, with deletions after each; how many there were."""
    if not moves:
        return 1
    seen = 0
    for move, possible in MOVES:
        for deletes in (False, True):
            if possible(world):
                after = copy.deepcopy(world)
                move(after)
                after.ready = True
                if deletes:
                    delete_what_may_go(after)
                    after.clean()
                after.check()
                seen += walk(after, moves - 1)
    return seen


@pytest.mark.parametrize("savepoints_are_bases", [False, True])
@pytest.mark.parametrize("retained", [1, 3])
def test_every_short_history(savepoints_are_bases, retained):
    """After a checkpoint and any three moves, with and without deletions behind each."""
    world = World(RetentionPolicy(retained, TierPolicy(2)), savepoints_are_bases)
    checkpoint(world)
    assert walk(world, 3) > 500
