"""What retention plans without a compaction that failed."""

from retention_cases import completed, job

from absflow.protocol.lineage import Compacted
from absflow.protocol.retention.inventory import Compact, DeleteSets, RetentionPolicy
from absflow.protocol.retention.plan import plan
from absflow.protocol.tiers import TierPolicy


def test_without_a_compaction_that_failed_its_sets_stay():
    """Those it would replace, and its own: its fact may be there though an error came back."""
    there = job(completed(3, 1, 2, 3), sets=[-3, 1, 2, 3, 9], ended=9)
    fact = Compacted(3, "a", -3, (1, 2, 3))
    assert plan(there, RetentionPolicy(1, TierPolicy(2)), [fact]) == (DeleteSets("a", (9,)),)


def test_without_a_compaction_that_failed_the_next_checkpoint_has_its_own():
    """It would have begun with the set that failed; all stays until it is known what is there."""
    ids = (1, 2, 3, 4)
    there = job(completed(3, 1, 2, 3), completed(4, *ids), sets=ids)
    policy = RetentionPolicy(2, TierPolicy(2))
    third, fourth = (Compacted(n, "a", -n, ids[:n]) for n in (3, 4))
    assert plan(there, policy) == (Compact(third), DeleteSets("a", (1, 2, 3)))
    assert plan(there, policy, [third]) == (Compact(fourth),)
    assert plan(there, policy, [third, fourth]) == ()
    done = job(completed(3, 1, 2, 3), completed(4, *ids), sets=(*ids, -4), compacted=(fourth,))
    assert plan(done, policy, [third]) == ()
    assert plan(done, policy) == (Compact(third), DeleteSets("a", (1, 2, 3, 4)))
