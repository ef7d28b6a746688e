"""Deletions that people ask for: what is refused, in every small world; a kill between any two."""

from dataclasses import replace
from itertools import chain, combinations, product

import pytest

from absflow.errors import ProtocolViolation
from absflow.protocol.lineage import Compacted, lineage_of
from absflow.protocol.retention.deletion import Deletion, Verdict, freed, judge, obey
from absflow.protocol.retention.inventory import (
    Channel,
    Compact,
    Completed,
    DeleteEpochs,
    DeleteManifest,
    DeleteSets,
    DropChannels,
    DropPositions,
    InFlight,
    Inventory,
    Pending,
    RetentionPolicy,
)
from absflow.protocol.retention.plan import needed, plan
from absflow.protocol.tiers import TierPolicy


def completed(n, *lineage, attempt=1, in_flight=()):
    """Checkpoint n, whose stage `a` is made of this lineage."""
    return Completed(n, attempt, {"a": lineage or (n,)}, in_flight)


def job(*checkpoints, **more):
    """What there is of a job with one stage `a`; all sets that a lineage names are there."""
    sets = frozenset(chain.from_iterable(c.lineages["a"] for c in checkpoints))
    newest = max((c.checkpoint_id for c in checkpoints), default=0)
    there = {"attempts": {1: 0}, "sets": {"a": sets}, "ended_id": newest} | more
    return Inventory(completed=checkpoints, **there)


def asked(there, *ids):
    return judge(there, Deletion("request-1", ids))


def subsets(items):
    items = list(items)
    return chain.from_iterable(combinations(items, n) for n in range(len(items) + 1))


# -- the rule ---------------------------------------------------------------------------------


def test_savepoints_and_older_checkpoints_may_go():
    """Whatever the policy would keep of them."""
    there = job(*(completed(n) for n in (1, 2, 3, 5)), savepoints=frozenset({2}))
    assert asked(there, 3, 2, 1, 2) == Verdict("request-1", (1, 2, 3))


@pytest.mark.parametrize(
    ("there", "ids", "why"),
    [
        (job(completed(1)), (2,), "checkpoint 2 is not completed"),
        (job(completed(1), completed(3), deleted={1}), (1,), "deleted already: 1"),
        (
            job(completed(1), completed(3)),
            (3, 1),
            "checkpoint 3 is needed: attempt 1 goes on from it; ask again when a newer one has "
            "completed",
        ),
        (
            job(completed(1), attempts={1: 0, 2: 1}, ready=False),
            (1,),
            "checkpoint 1 is needed: attempt 2 goes on from it; ask again when a newer one has "
            "completed",
        ),
        (
            job(completed(1), completed(2, 1, 2), completed(4), pending=(Pending(3, 1),)),
            (1, 5),
            "checkpoint 1 is needed: base of pending checkpoint 3; ask again when a newer one has "
            "completed; checkpoint 5 is not completed",
        ),
    ],
)
def test_what_is_refused(there, ids, why):
    """The request as a whole, with every reason."""
    assert asked(there, *ids) == Verdict("request-1", refused=why)


def test_what_is_deleted_already_is_in_nobodys_way():
    """A request that overlaps with an earlier one brings the rest about."""
    there = job(completed(1), completed(2), completed(3), deleted=frozenset({1}))
    assert asked(there, 1, 2) == Verdict("request-1", (2,))


def test_what_an_attempt_was_restored_from_may_go_once_it_has_its_own():
    """A savepoint of its own is not enough: increments may still be laid on what is below."""
    there = job(completed(1), completed(2), attempts={1: 0, 2: 1})
    assert asked(there, 1).refused
    assert asked(there, 2) == Verdict("request-1", (2,))  # a restore has left it behind
    own = replace(there, completed=(*there.completed, completed(4, attempt=2)))
    assert asked(own, 1) == Verdict("request-1", (1,))
    assert asked(replace(own, savepoints=frozenset({4})), 1).refused


def test_a_written_savepoint_takes_nobodys_place():
    """The job goes on from 5, which it stopped with, not from 6, which was written from it."""
    there = job(completed(3), completed(5), completed(6), savepoints=frozenset({5, 6}))
    there = replace(there, written=frozenset({6}))
    assert asked(there, 5).refused
    assert asked(there, 6) == Verdict("request-1", (6,))
    restored = replace(there, attempts={1: 0, 2: 6})
    assert asked(restored, 6).refused
    assert asked(restored, 5) == Verdict("request-1", (5,))


def test_a_written_savepoint_outlives_its_base():
    """It names the sets of the base, so they stay without it."""
    there = job(completed(3), completed(4, 3, 4), completed(5, 3, 4), completed(7))
    there = replace(there, savepoints=frozenset({5}), written=frozenset({5}))
    gone = replace(there, deleted=frozenset({3, 4}))
    assert freed(there, (3, 4)) == ()
    assert swept(plan(gone, RetentionPolicy())) == []


def test_facts_that_are_missing_are_no_leave_to_delete():
    """As for any plan."""
    with pytest.raises(ProtocolViolation, match="COMPLETED facts are not given"):
        asked(job(completed(3), attempts={1: 0, 2: 1}), 3)


# -- what goes --------------------------------------------------------------------------------


def swept(actions):
    return [n for a in actions if isinstance(a, DeleteSets) for n in a.set_ids]


def test_shared_sets_stay():
    """Of a chain of increments, only what no later one is laid on goes."""
    there = job(completed(1), completed(2, 1, 2), completed(3, 1, 2, 3), completed(4), completed(5))
    assert freed(there, (1, 2)) == ()
    assert freed(there, (3,)) == (DeleteSets("a", (3,)),)
    assert freed(there, (2, 3)) == (DeleteSets("a", (2, 3)),)
    assert freed(there, (1, 2, 3)) == (DeleteSets("a", (1, 2, 3)),)


def test_orphans_are_not_freed_by_it():
    """What goes anyhow is not listed; nor is a compaction."""
    there = job(completed(1), completed(3), sets={"a": frozenset({1, 2, 3})})
    assert freed(there, (1,)) == (DeleteSets("a", (1,)),)


def test_a_compacted_set_goes_with_its_last_reader():
    """It is shared like any other."""
    facts = (Compacted(2, "a", -2, (1, 2)),)
    there = job(completed(2, 1, 2), completed(3, 1, 2, 3), completed(5), compacted=facts)
    there = replace(there, sets={"a": frozenset({-2, 3, 5})})
    assert freed(there, (2,)) == ()
    assert freed(there, (2, 3)) == (DeleteSets("a", (-2, 3)),)


def test_rows_in_flight_and_positions_go_with_it():
    """Of an attempt that nobody can be restored to."""
    old = completed(2, in_flight=(InFlight("a", 1, epoch=2),))
    there = job(
        old,
        completed(4, attempt=2),
        attempts={1: 0, 2: 2},
        channels=(Channel("a", 1, frozenset({2, 3})), Channel("a", 2, frozenset({5}), 4)),
        positions=frozenset({1, 2}),
    )
    assert freed(there, (2,)) == (DeleteSets("a", (2,)), DropChannels(1), DropPositions(1))


def test_epochs_go_with_it():
    """Those that the deleted one alone held of a channel that is still written."""
    old = completed(2, in_flight=(InFlight("a", 1, epoch=2),))
    there = job(old, completed(4), channels=(Channel("a", 1, frozenset({2, 3, 6}), 4),))
    assert freed(there, (2,)) == (DeleteSets("a", (2,)), DeleteEpochs("a", 1, 3))


# -- every small world ------------------------------------------------------------------------


def worlds():
    """Every job of up to four checkpoints, each in one of two attempts and full or laid on one."""
    for kinds in product(["full", "laid on", "savepoint", "deleted"], repeat=4):
        for (begun, restored), pending in product(((3, 1), (3, 2), (5, 0)), (None, 0, 1)):
            lineage, all_ = (), []
            for n, kind in enumerate(kinds, 1):
                attempt = 2 if n >= begun else 1
                if n == begun:
                    lineage = all_[restored - 1].lineages["a"] if restored else ()
                lineage = (*lineage, n) if kind == "laid on" else (n,)
                all_.append(completed(n, *lineage, attempt=attempt))
            two = begun <= 4
            newest = max((c.checkpoint_id for c in all_ if not two or c.attempt == 2), default=0)
            base = {None: None, 0: 0, 1: newest}[pending]
            yield job(
                *all_,
                attempts={1: 0, 2: restored} if two else {1: 0},
                savepoints=frozenset(n for n, k in enumerate(kinds, 1) if k == "savepoint"),
                deleted=frozenset(n for n, k in enumerate(kinds, 1) if k == "deleted"),
                pending=() if base is None else (Pending(5, base),),
            )


def test_in_every_small_world_what_is_left_can_be_read():
    """Whatever is obeyed: all that is left keeps its sets, and so does what the job goes on from.

    And what is refused or gone already is refused whatever else is asked for with it.
    """
    obeyed = refused = 0
    for there in worlds():
        before = set(swept(plan(there, RetentionPolicy(9, TierPolicy(9)))))
        for ids in filter(None, subsets((1, 2, 3, 4))):
            verdict = asked(there, *ids)
            going = set(ids) - there.deleted
            assert bool(verdict.refused) is (not going or bool(going & needed(there).keys()))
            assert set(verdict.delete) == (set() if verdict.refused else going)
            if verdict.refused:
                refused += 1
                continue
            obeyed += 1
            check_what_is_left(there, verdict, before)
    assert obeyed > 1000
    assert refused > 1000


def check_what_is_left(there, verdict, before):
    after = replace(there, deleted=there.deleted.union(verdict.delete))
    actions = plan(after, RetentionPolicy(retained=9, tiers=TierPolicy(9)))
    assert not [a for a in actions if isinstance(a, DeleteManifest | Compact)]
    for c in after.completed:
        if c.checkpoint_id not in after.deleted or c.checkpoint_id in needed(there):
            read = set(lineage_of("a", c.lineages["a"], ()))
            assert not read & set(swept(actions)), (there, verdict)
    assert set(swept(freed(there, verdict.delete))) == set(swept(actions)) - before


# -- requests ---------------------------------------------------------------------------------

DELETIONS = (Deletion("a", (1,)), Deletion("b", (4, 2)), Deletion("c", (1, 2)), Deletion("d", (1,)))


def test_requests_are_answered_in_their_order():
    """Each by what the ones before it have left."""
    there = job(*(completed(n) for n in (1, 2, 4)))
    verdicts = obey(there, DELETIONS)
    assert [(v.request, v.delete) for v in verdicts] == [
        ("a", (1,)),
        ("b", ()),
        ("c", (2,)),
        ("d", ()),
    ]
    assert verdicts[3].refused == "deleted already: 1"


def test_a_kill_between_any_two_answers_changes_nothing():
    """A driver that comes next, and is given all requests again, writes what is owed, once."""
    there = job(*(completed(n) for n in (1, 2, 4)))
    whole = obey(there, DELETIONS)
    for kills in subsets(range(len(whole) + 1)):
        written = []
        for answers in [*kills, len(whole)]:  # how many are written when it is killed
            deleted = frozenset(n for v in written for n in v.delete)
            answered = {v.request for v in written}
            left = [asked for asked in DELETIONS if asked.request not in answered]
            owed = obey(replace(there, deleted=deleted), left)
            written += owed[: max(0, answers - len(written))]
        assert tuple(written) == whole
