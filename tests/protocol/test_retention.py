"""Retention, rule by rule: what stays, what goes and in which order."""

from dataclasses import replace
from itertools import permutations

import pytest

from absflow.errors import ProtocolViolation
from absflow.facts.records import compacted_of, deleted_of
from absflow.protocol.checkpoints import Manifest, StageManifest, StageReport
from absflow.protocol.lineage import Compacted, lineage_of, shortened
from absflow.protocol.retention.inventory import (
    Channel,
    Compact,
    Completed,
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


def completed(n, *lineage, attempt=1, in_flight=()):
    """Checkpoint n, whose stage `a` is made of this lineage."""
    return Completed(n, attempt, {"a": lineage or (n,)}, in_flight)


def job(*checkpoints, sets=(), ended=None, **more):
    """What there is of a job with one stage `a`; its first attempt was restored from nothing."""
    newest = max((c.checkpoint_id for c in checkpoints), default=0)
    there = {"attempts": {1: 0}, "sets": {"a": frozenset(sets)}} | more
    return Inventory(completed=checkpoints, ended_id=ended or newest, **there)


def planned(there, retained=1, longest=10):
    return plan(there, RetentionPolicy(retained, longest))


def deleted(actions):
    """Checkpoints that the plan deletes, in its order."""
    return [a.checkpoint_id for a in actions if isinstance(a, DeleteManifest)]


def swept(actions):
    return [n for a in actions if isinstance(a, DeleteSets) for n in a.set_ids]


# -- lineages ---------------------------------------------------------------------------------


def test_compactions_add_up_in_any_order():
    """A lineage ends at the same sets in whichever order the facts are read."""
    facts = [
        Compacted(3, "a", -3, (1, 2, 3)),
        Compacted(5, "a", -5, (-3, 4, 5)),
        Compacted(7, "a", -7, (-5, 6, 7)),
    ]
    for some in permutations(facts):
        assert lineage_of("a", (1, 2, 3, 4, 5, 6, 7, 8), some) == (-7, 8)
        assert lineage_of("a", (-3, 4, 5), some) == (-5,)
        assert lineage_of("a", (1, 2, 3, 9), some) == (-3, 9)


def test_a_manifest_is_read_with_its_lineages_shortened():
    """Only lineages change, and only of the stage that was compacted."""
    stages = [StageManifest(StageReport(name, 3, 0), (1, 2, 3)) for name in ("a", "b")]
    manifest = Manifest(3, 2, 0, tuple(stages))
    rows = [
        {"kind": "COMPLETED", "checkpoint_id": 3},
        {"kind": "COMPACTED", "checkpoint_id": 2, "stage": "a", "set_id": -2, "replaces": [1, 2]},
        {"kind": "DELETED", "checkpoint_id": 2},
    ]
    assert compacted_of(rows) == (Compacted(2, "a", -2, (1, 2)),)
    assert deleted_of(rows) == {2}
    short = shortened(manifest, compacted_of(rows))
    assert [stage.lineage for stage in short.stages] == [(-2, 3), (1, 2, 3)]
    assert replace(short, stages=manifest.stages) == manifest


def test_only_the_beginning_of_a_lineage_is_replaced():
    """The same sets elsewhere in a lineage, or in another stage, are another state."""
    facts = [Compacted(3, "a", -3, (2, 3))]
    assert lineage_of("a", (1, 2, 3), facts) == (1, 2, 3)
    assert lineage_of("b", (2, 3), facts) == (2, 3)
    assert lineage_of("a", (2,), facts) == (2,)
    assert lineage_of("a", (), facts) == ()


def test_the_longest_beginning_wins():
    """A younger checkpoint that was compacted from the raw sets is not spoilt by an older one."""
    facts = [Compacted(5, "a", -5, (1, 2, 3, 4, 5)), Compacted(3, "a", -3, (1, 2, 3))]
    assert lineage_of("a", (1, 2, 3, 4, 5, 6), facts) == (-5, 6)


# -- checkpoints ------------------------------------------------------------------------------


def test_a_job_that_never_ran_needs_nothing():
    """Without an attempt there is nothing to plan and nothing to explain."""
    there = Inventory(attempts={})
    assert planned(there) == ()
    assert explain(there, RetentionPolicy()) == ()


@pytest.mark.parametrize("retained", [1, 2, 3, 4, 9])
def test_the_newest_stay(retained):
    """So many completed checkpoints stay, over all attempts; the others go, oldest first."""
    there = job(completed(1), completed(2), completed(4), completed(7, attempt=2))
    there = job(*reversed(there.completed), attempts={1: 0, 2: 4})
    assert deleted(planned(there, retained)) == [1, 2, 4][: max(4 - retained, 0)]


def test_savepoints_stay_and_do_not_count():
    """A savepoint never goes by itself, and takes nobody's place."""
    checkpoints = [completed(n) for n in range(1, 7)]
    there = job(*checkpoints, savepoints=frozenset({2, 5}))
    assert deleted(planned(there, retained=2)) == [1, 3]


def test_a_deleted_one_takes_nobodys_place():
    """What a person deleted is not counted, and is not deleted again."""
    there = job(*(completed(n) for n in range(1, 6)), deleted=frozenset({4}))
    assert deleted(planned(there, retained=2)) == [1, 2]


def test_the_checkpoint_restored_from_stays_until_there_is_another():
    """An old checkpoint that the current attempt came from stays until that has its own."""
    old = [completed(1), completed(2, 1, 2), completed(3, 1, 2, 3)]
    there = job(*old, attempts={1: 0, 2: 1})
    assert deleted(planned(there)) == [2]
    own = completed(5, 1, 5, attempt=2)
    assert deleted(planned(job(*old, own, attempts={1: 0, 2: 1}))) == [1, 2, 3]


def test_a_savepoint_is_not_enough_to_let_go_of_the_base():
    """The next increment is laid on the newest checkpoint or savepoint: neither goes before."""
    own = completed(5, attempt=2)
    there = job(completed(1), completed(3), own, attempts={1: 0, 2: 1}, savepoints=frozenset({5}))
    assert deleted(planned(there)) == []
    asked = replace(there, deleted=frozenset({1, 5}), sets={"a": frozenset({1, 3, 5})})
    assert swept(planned(asked)) == []


def test_a_savepoint_restored_from_is_a_base():
    """It stays beside a newer savepoint even if a person deletes both."""
    there = job(
        completed(1),
        completed(3, attempt=2),
        attempts={1: 0, 2: 1},
        savepoints=frozenset({1, 3}),
        deleted=frozenset({1, 3}),
        sets=[1, 3],
    )
    assert planned(there) == ()


def test_what_a_pending_increment_is_laid_on_stays():
    """Its base, and all that completed since, until it has ended."""
    checkpoints = [
        completed(1),
        completed(2, 1, 2),
        completed(3, 1, 2, 3),
        completed(5, 1, 2, 3, 5),
    ]
    pending = Pending(4, base_id=2)
    assert deleted(planned(job(*checkpoints, pending=(pending,)))) == [1]
    full = Pending(4, base_id=0)
    assert deleted(planned(job(*checkpoints, pending=(full,)))) == [1, 2, 3]


# -- sets -------------------------------------------------------------------------------------


def test_orphans_go_and_unfinished_sets_stay():
    """A set of an aborted checkpoint goes; one of a pending or not yet known one does not."""
    there = job(completed(1), sets=[1, 2, 3, 4, 5], ended=4, pending=(Pending(3, base_id=1),))
    assert swept(planned(there)) == [2, 4]


def test_the_prefix_of_a_pending_increment_stays():
    """The sets of a deleted checkpoint stay while a pending one may be laid on it."""
    there = job(
        completed(1),
        completed(2, 1, 2),
        completed(4, 4),
        sets=[1, 2, 3, 4],
        deleted=frozenset({1, 2}),
        pending=(Pending(3, base_id=2),),
    )
    assert swept(planned(there)) == []
    assert swept(planned(replace(there, pending=()))) == [1, 2, 3]


def test_sets_of_a_stage_that_is_gone_go():
    """A stage that no kept checkpoint knows leaves nothing behind."""
    there = Inventory(
        attempts={1: 0},
        completed=(completed(2),),
        ended_id=2,
        sets={"a": frozenset({2}), "old": frozenset({1})},
    )
    assert planned(there) == (DeleteSets("old", (1,)),)


# -- compaction -------------------------------------------------------------------------------


def test_one_compaction_serves_all_that_begin_alike():
    """The oldest kept checkpoint with too long a lineage is compacted; the next ones go on it."""
    ids = (1, 2, 3, 4, 5)
    there = job(*(completed(n, *ids[:n]) for n in ids), sets=ids)
    assert planned(there, retained=2, longest=3) == (
        DeleteManifest(1),
        DeleteManifest(2),
        DeleteManifest(3),
        Compact(Compacted(4, "a", -4, (1, 2, 3, 4))),
        DeleteSets("a", (1, 2, 3, 4)),
    )


def test_a_lineage_may_be_as_long_as_allowed():
    """So many sets are not too many, and a compacted checkpoint is not compacted again."""
    there = job(completed(3, 1, 2, 3), sets=[1, 2, 3])
    assert planned(there, longest=3) == ()
    fact = Compacted(3, "a", -3, (1, 2, 3))
    done = job(completed(3, 1, 2, 3), sets=[-3], compacted=(fact,))
    assert planned(done, longest=1) == ()


def test_a_compacted_lineage_is_compacted_again():
    """The fact replaces what the lineage is read from now, as later manifests begin with that."""
    first = Compacted(2, "a", -2, (1, 2))
    there = job(completed(4, 1, 2, 3, 4), sets=[-2, 3, 4], compacted=(first,))
    second = Compacted(4, "a", -4, (-2, 3, 4))
    assert planned(there, longest=2) == (Compact(second), DeleteSets("a", (-2, 3, 4)))


def test_a_compaction_that_died_is_taken_up():
    """Its set is there without its fact: it is planned again, and its set is no orphan."""
    there = job(completed(3, 1, 2, 3), sets=[-3, 1, 2, 3])
    fact = Compacted(3, "a", -3, (1, 2, 3))
    assert planned(there, longest=2) == (Compact(fact), DeleteSets("a", (1, 2, 3)))
    moot = job(completed(3, 1, 2, 3), completed(4), sets=[-3, 4], deleted=frozenset({3}))
    assert planned(moot, longest=2) == (DeleteSets("a", (-3,)),)


# -- channels and directories -----------------------------------------------------------------


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


# -- the whole --------------------------------------------------------------------------------


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


@pytest.mark.parametrize("policy", [RetentionPolicy(retained=0), RetentionPolicy(max_lineage=0)])
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
    assert explain(there, RetentionPolicy(retained=3, max_lineage=8)) == (
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
