"""Retention, rule by rule: what stays, what goes and in which order."""

from dataclasses import replace

import pytest
from retention_cases import completed, deleted, job, planned, swept

from absflow.facts.records import compacted_of, deleted_of
from absflow.protocol.checkpoints import Manifest, StageManifest, StageReport
from absflow.protocol.lineage import Compacted, shortened
from absflow.protocol.retention.inventory import (
    Compact,
    DeleteManifest,
    DeleteSets,
    Inventory,
    Pending,
    RetentionPolicy,
)
from absflow.protocol.retention.plan import explain


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
