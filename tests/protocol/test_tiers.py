"""Which sets of a lineage become one, rule by rule."""

import pytest
from retention_cases import job

from absflow.protocol.lineage import Compacted, compacted_id, lineage_of
from absflow.protocol.retention.inventory import Compact, Completed, DeleteSets, RetentionPolicy
from absflow.protocol.retention.plan import plan
from absflow.protocol.tiers import TierPolicy, run_to_merge

POLICY = RetentionPolicy(retained=9, tiers=TierPolicy(4, max_dead=0.3, free_dead=0))
ROWS = {1: 1000, **dict.fromkeys(range(2, 30), 10)}


def kept(n, *lineage):
    return Completed(n, 1, {"a": lineage}, keys={"a": 1000})


def planned(*checkpoints, sets, policy=POLICY, rows=None, **more):
    rows = rows or {set_id: ROWS[set_id] for set_id in sets}
    return plan(job(*checkpoints, sets=sets, rows={"a": rows}, **more), policy)


@pytest.mark.parametrize(
    ("rows", "live", "place"),
    [
        ([1000], 1000, None),
        ([1000, 100, 100, 100], 1000, None),  # 300 of 1000 in vain
        ([1000, 100, 100, 101], 1000, 0),
        ([1000, 300, 300, 300], 1900, None),  # they are new
        ([1000, 140, 0, 0], 860, 0),  # deletions: 280 of 860 in vain
        ([1000, 120, 0, 0], 880, None),
        ([1000, 140], 0, 0),  # no more keys can be left than that
        ([1000, 60, 25, 20, 15], 1000, 1),  # 60 is not larger than 60
        ([1000, 70, 25, 20, 15], 1000, 2),
        ([1000, 100, 40, 20, 10], 1000, 3),  # none is so small
        ([500, 100, 140, 200, 100], 1040, 0),  # the oldest is not larger than all others
        ([0, 0, 0, 0, 0], 0, 0),  # nothing is known
        ([1000, *[10] * 11], 1000, 1),  # plans came late
        ([1000, 64, 32, 16, 8, 4, 2], 1000, 3),
    ],
)
def test_where_a_run_begins(rows, live, place):
    """With at most 4 sets, and 0.3 rows read in vain for each that is live."""
    assert run_to_merge(rows, live, POLICY.tiers) == place


def test_few_rows_in_vain_are_free():
    """They are read faster than rewritten, however small the state is."""
    assert run_to_merge([10, 20, 20], 10, TierPolicy(4)) is None
    assert run_to_merge([10, 20, 20], 10, TierPolicy(4, free_dead=39)) == 0


def test_a_run_within_a_lineage_becomes_one_and_the_rest_stays():
    """The sets that older checkpoints have only in part stay for these."""
    fact = Compacted(5, "a", compacted_id(1, 5), (2, 3, 4, 5))
    checkpoints = [kept(4, 1, 2, 3, 4), kept(5, 1, 2, 3, 4, 5)]
    assert planned(*checkpoints, sets=[1, 2, 3, 4, 5]) == (Compact(fact), DeleteSets("a", (5,)))
    assert planned(checkpoints[1], sets=[1, 2, 3, 4, 5]) == (
        Compact(fact),
        DeleteSets("a", (2, 3, 4, 5)),
    )


def test_a_compacted_set_is_merged_with_others_of_its_size():
    """So it is in one of double its size."""
    first = compacted_id(1, 5)
    there = kept(8, 1, 2, 3, 4, 5, 6, 7, 8)
    fact = Compacted(8, "a", compacted_id(1, 8), (first, 6, 7, 8))
    rows = {1: 1000, first: 28, 6: 10, 7: 10, 8: 10}
    known = (Compacted(5, "a", first, (2, 3, 4, 5)),)
    assert planned(there, sets=rows, rows=rows, compacted=known) == (
        Compact(fact),
        DeleteSets("a", tuple(sorted((first, 6, 7, 8)))),
    )
    rows[first] = 31
    fact = Compacted(8, "a", compacted_id(5, 8), (6, 7, 8))
    assert planned(there, sets=rows, rows=rows, compacted=known) == (
        Compact(fact),
        DeleteSets("a", (6, 7, 8)),
    )


def test_a_late_plan_makes_what_plans_in_time_would_have_made():
    """Each checkpoint that is kept is looked at in turn, with what was made for those before."""
    ids = tuple(range(1, 9))
    actions = planned(*(kept(n, *ids[:n]) for n in ids), sets=ids)
    made = [a.fact for a in actions if isinstance(a, Compact)]
    assert [(f.set_id, f.replaces) for f in made] == [
        (compacted_id(1, 5), (2, 3, 4, 5)),
        (compacted_id(5, 8), (6, 7, 8)),
    ]


def test_a_set_without_its_fact_that_is_not_wanted_any_more_goes():
    """After a kill between set and fact the sizes may have led to another run."""
    orphan = compacted_id(3, 5)
    there = kept(5, 1, 2, 3, 4, 5)
    rows = {**{n: ROWS[n] for n in (1, 2, 3, 4, 5)}, orphan: 20}
    fact = Compacted(5, "a", compacted_id(1, 5), (2, 3, 4, 5))
    assert planned(there, sets=rows, rows=rows) == (
        Compact(fact),
        DeleteSets("a", (orphan, 2, 3, 4, 5)),
    )


def test_of_a_state_without_a_key_nothing_is_left():
    """So what a plan has made one is not to be made one with others by the next."""
    rows = {1: 1000, **dict.fromkeys(range(2, 12), 100), 12: 1, 13: 1}
    none = Completed(11, 1, {"a": tuple(range(1, 12))}, keys={"a": 0})
    later = Completed(13, 1, {"a": tuple(range(1, 14))}, keys={"a": 1})
    facts = [a.fact for a in planned(none, later, sets=rows, rows=rows) if isinstance(a, Compact)]
    assert facts == [
        Compacted(11, "a", compacted_id(0, 11), tuple(range(1, 12))),
        Compacted(13, "a", compacted_id(0, 13), (compacted_id(0, 11), 12, 13)),
    ]


def test_nothing_is_made_that_would_lead_another_checkpoint_to_sets_that_are_gone():
    """Behind 3, for 5: 6 has that end, too, but has been read from a set that covers it."""
    covers = compacted_id(2, 4)
    rows = {-3: 1000, 1: 990, 2: 10, covers: 20, 4: 10, 5: 10, 6: 10}
    given = {"sets": rows, "rows": rows, "compacted": (Compacted(4, "a", covers, (3, 4)),)}
    five, six = kept(5, -3, 4, 5), kept(6, 1, 2, 3, 4, 5, 6)
    policy = RetentionPolicy(retained=9, tiers=TierPolicy(2, free_dead=0))
    wanted = Compacted(5, "a", compacted_id(3, 5), (4, 5))
    assert Compact(wanted) in planned(five, policy=policy, **given)
    made = [a.fact for a in planned(five, six, policy=policy, **given) if isinstance(a, Compact)]
    assert wanted not in made
    read = lineage_of("a", six.lineages["a"], (*given["compacted"], *made))
    assert {*read} <= {*rows, *(fact.set_id for fact in made)}
