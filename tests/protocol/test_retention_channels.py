"""Which epochs, channels and directories go, and in which order."""

from dataclasses import replace
from itertools import permutations

import pytest
from retention_cases import completed, job, planned, swept

from absflow.errors import ProtocolViolation
from absflow.protocol.lineage import Compacted
from absflow.protocol.retention.inventory import (
    Channel,
    Compact,
    DeleteEpochs,
    DeleteManifest,
    DeleteSets,
    DropChannels,
    DropPositions,
    DropWorkingDirectory,
    InFlight,
    Inventory,
    Pending,
    RetentionPolicy,
    Sink,
)
from absflow.protocol.retention.plan import explain, plan
from absflow.protocol.tiers import TierPolicy


def epochs(*which):
    return frozenset(which)


def test_epochs_go_when_every_stage_has_committed_them():
    """What is not committed stays, and an epoch without rows is not deleted."""
    there = job(completed(4), channels=(Channel("a", 1, epochs(2, 3, 5, 6), committed=4),))
    assert planned(there) == (DeleteEpochs("a", 1, 3),)
    assert planned(job(channels=(Channel("a", 1, epochs(5, 6), committed=4),))) == ()


def test_rows_in_flight_stay():
    """A kept or pending checkpoint's reference keeps its epochs, in any attempt."""
    ref = InFlight("a", 1, epoch=3)
    channels = (Channel("a", 1, epochs(2, 3, 4), 9), Channel("b", 1, epochs(2, 3, 4), 9))
    for there in (
        job(completed(4, in_flight=(ref,)), channels=channels),
        job(completed(4), channels=channels, pending=(Pending(5, 0, (ref,)),)),
        job(completed(4, in_flight=(ref,)), channels=channels, attempts={1: 0, 2: 4}),
    ):
        assert planned(there) == (DeleteEpochs("a", 1, 2), DeleteEpochs("b", 1, 4))


def test_the_slowest_of_two_consumers_decides():
    """A checkpoint may hold rows of one channel for several stages, each from its own epoch on."""
    refs = (InFlight("a", 1, epoch=2), InFlight("a", 1, epoch=4))
    for some in permutations(refs):
        there = job(completed(4, in_flight=some), channels=(Channel("a", 1, epochs(1, 2, 3), 9),))
        assert planned(there) == (DeleteEpochs("a", 1, 1),)
        (line,) = (x for x in explain(there, RetentionPolicy()) if x.startswith("epochs"))
        assert line.count("in flight in checkpoint 4") == 1


def test_unpublished_rows_stay():
    """A sink that publishes on completion keeps what it lacks; of other stages it keeps nothing."""
    channels = tuple(Channel(stage, 1, epochs(1, 2, 3, 4), 4) for stage in "ab")
    there = job(completed(4), channels=channels, sinks=(Sink("out", "a", {1: 2}),))
    assert planned(there) == (DeleteEpochs("a", 1, 2), DeleteEpochs("b", 1, 4))


@pytest.mark.parametrize(
    ("published", "gone"),
    [
        ({}, ()),
        ({1: 3}, (DeleteEpochs("a", 1, 3),)),
        ({1: 4}, (DropChannels(1),)),
        ({1: 5}, (DropChannels(1),)),
        ({2: 6}, (DeleteEpochs("a", 2, 6), DropChannels(1))),
        ({2: 6, 1: 3}, (DeleteEpochs("a", 2, 6), DropChannels(1))),
    ],
)
def test_a_dead_attempt_keeps_its_rows_until_they_are_published(published, gone):
    """Rows up to the restored checkpoint are owed; what published later rows has published them."""
    channels = (Channel("a", 1, epochs(3, 4, 5), 9), Channel("a", 2, epochs(5, 6, 7), 9))
    there = job(
        completed(4),
        completed(6, attempt=2),
        channels=channels,
        attempts={1: 0, 2: 4},
        sinks=(Sink("out", "a", published),),
        savepoints=frozenset({4}),
    )
    assert planned(there) == gone


def test_a_kept_checkpoint_of_another_branch_keeps_its_unpublished_rows():
    """A restore to it would have to publish them; once it is deleted they go."""
    there = job(
        completed(4),
        completed(6, attempt=2),
        completed(8, attempt=3),
        attempts={1: 0, 2: 4, 3: 4},
        channels=(Channel("a", 2, epochs(5, 6), 0), Channel("a", 3)),
        sinks=(Sink("out", "a", {1: 4, 3: 8}),),
        savepoints=frozenset({6}),
        deleted=frozenset({4}),
    )
    assert planned(there) == ()
    assert planned(replace(there, deleted=frozenset({4, 6}))) == (DropChannels(2),)


def test_a_dead_attempt_goes():
    """Its channels and working directory go, the current attempt's never do."""
    channels = (Channel("a", 1, epochs(1)), Channel("b", 1), Channel("a", 2, epochs(5)))
    there = job(completed(4), attempts={1: 0, 2: 4}, channels=channels, working=frozenset({1, 2}))
    assert planned(there) == (DropChannels(1), DropWorkingDirectory(1))


def test_while_a_restore_is_under_way_its_source_stays():
    """Attempts 2 and 3 died while they restored checkpoint 4 of attempt 1; 4 is at it now."""
    there = job(
        completed(4),
        attempts={1: 0, 2: 4, 3: 4, 4: 4},
        working=frozenset({1, 2, 3, 4}),
        ready=False,
    )
    assert planned(there) == (DropWorkingDirectory(2), DropWorkingDirectory(3))


def test_positions_stay_with_the_checkpoints_of_their_attempt():
    """A restore needs what lies with the attempt that took the checkpoint, long after its end."""
    there = job(
        completed(3),
        completed(4, attempt=2),
        completed(9, attempt=4),
        attempts={1: 0, 2: 3, 3: 4, 4: 4},
        savepoints=frozenset({3}),
        positions=frozenset({1, 2, 3, 4}),
    )
    assert planned(there, retained=2) == (DropPositions(3),)
    assert explain(there, RetentionPolicy(retained=2))[-3:] == (
        "positions of attempt 1: named by checkpoint 3",
        "positions of attempt 2: named by checkpoint 4",
        "positions of attempt 4: the current attempt",
    )


def test_the_order_of_a_plan():
    """Facts before what they free; a checkpoint is deleted before anything of it goes."""
    there = job(
        completed(1),
        completed(3, 1, 3),
        completed(4, 1, 3, 4, attempt=2),
        sets=[1, 2, 3, 4],
        attempts={1: 0, 2: 3},
        channels=(Channel("a", 1, epochs(1)), Channel("a", 2, epochs(4), 4)),
        working=frozenset({1, 2}),
        positions=frozenset({1, 2}),
    )
    assert planned(there, longest=2) == (
        DeleteManifest(1),
        DeleteManifest(3),
        Compact(Compacted(4, "a", -4, (1, 3, 4))),
        DeleteSets("a", (1, 2, 3, 4)),
        DeleteEpochs("a", 2, 4),
        DropChannels(1),
        DropWorkingDirectory(1),
        DropPositions(1),
    )


@pytest.mark.parametrize(
    "there",
    [
        Inventory(attempts={1: 0, 2: 7}),
        Inventory(attempts={1: 0}, pending=(Pending(9, base_id=7),)),
    ],
)
def test_facts_that_are_missing_are_not_taken_for_permission(there):
    """An inventory that refers to a checkpoint it does not have is refused, naming it."""
    with pytest.raises(ProtocolViolation, match=r"\[7\]"):
        planned(there)


@pytest.mark.parametrize(
    "policy", [RetentionPolicy(retained=0), RetentionPolicy(tiers=TierPolicy(0))]
)
def test_a_policy_that_keeps_nothing_is_refused(policy):
    """The newest checkpoint is always retained, and a state is at least one set."""
    with pytest.raises(ProtocolViolation, match="start at 1"):
        plan(Inventory(attempts={1: 0}), policy)


def test_each_thing_that_stays_is_explained():
    """One line for each, in the order in which one follows from the other."""
    checkpoints = [completed(n, *range(40, n + 1)) for n in range(40, 47)]
    ref = InFlight("a", 1, epoch=46)
    there = job(
        *checkpoints,
        completed(48, *range(40, 47), 48, attempt=2, in_flight=(ref,)),
        attempts={1: 0, 2: 46},
        ready=False,
        savepoints=frozenset({43}),
        sets=[*range(40, 51)],
        ended=49,
        pending=(Pending(47, base_id=46),),
        channels=(Channel("a", 1, epochs(45, 46, 47)), Channel("a", 2, epochs(48, 49), 48)),
        sinks=(Sink("out", "a", {2: 47}),),
        working=frozenset({1, 2}),
    )
    assert explain(there, RetentionPolicy(retained=3, tiers=TierPolicy(8))) == (
        "checkpoint 43: a savepoint",
        "checkpoint 45: one of the newest 3",
        "checkpoint 46: one of the newest 3, base of pending checkpoint 47",
        "checkpoint 48: one of the newest 3, attempt 2 goes on from it",
        *(f"set {n} of stage a: named by checkpoints 43, 45 and 2 more" for n in range(40, 44)),
        *(f"set {n} of stage a: named by checkpoints 45, 46, 48" for n in (44, 45)),
        "set 46 of stage a: named by checkpoints 46, 48",
        "set 47 of stage a: checkpoint 47 is pending",
        "set 48 of stage a: named by checkpoint 48",
        "set 50 of stage a: no checkpoint as new as this has ended",
        "epochs 46 to 47 of channel a, attempt 1: in flight in checkpoint 48",
        "epochs 48 to 49 of channel a, attempt 2: stages have committed up to epoch 48, "
        "sink out has published up to epoch 47",
        "working directory of attempt 1: attempt 2 is being restored from checkpoint 46",
        "working directory of attempt 2: the current attempt",
    )


def test_explained_and_planned_are_all_there_is():
    """Every set either goes or is explained, never both."""
    there = job(completed(1), completed(3, 1, 3), sets=[-1, 1, 2, 3, 4])
    policy = RetentionPolicy(retained=1)
    words = [line.split()[1] for line in explain(there, policy) if line.startswith("set")]
    assert sorted([*map(int, words), *swept(plan(there, policy))]) == [-1, 1, 2, 3, 4]
