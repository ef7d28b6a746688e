"""What compaction costs as the state grows, beside what it was to merge all sets every so often."""

import pytest

from absflow.protocol.tiers import TierPolicy
from absflow.simulation.compaction import WORKLOADS, simulate

TIERS = TierPolicy(20, free_dead=0)
SHARE = 50


def figures(workload, size, **more):
    """Long enough that most of what there was at first has been merged again."""
    given = {"size": size, "share": SHARE, "checkpoints": 60 + 2 * size // SHARE}
    return simulate(WORKLOADS[workload], TIERS, **{**given, **more})


@pytest.mark.parametrize("workload", WORKLOADS)
def test_bytes_rewritten_for_each_one_changed_grow_with_the_logarithm(workload):
    """A state 10 times as large adds a constant; merging all sets takes 10 times as much."""
    small, medium, large = (figures(workload, n) for n in (500, 5_000, 50_000))
    assert medium.amplification - small.amplification < 3
    assert large.amplification - medium.amplification < 3
    assert large.amplification < 8


def test_to_merge_all_sets_grows_with_the_state():
    """What retention did before it knew sizes, and does where a log has none."""
    more = {"checkpoints": 200, "counted": False}
    small, large = (figures("uniform updates", size, **more) for size in (2_000, 20_000))
    assert large.amplification > 8 * small.amplification
    assert large.amplification > 3 * figures("uniform updates", 20_000).amplification


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("max_sets", [1, 3, 8, 20])
def test_a_restore_reads_few_sets_and_few_rows_in_vain(workload, max_sets):
    """At most ``lineage.max-sets`` sets, and 3 rows for each live key, whatever changes."""
    tiers = TierPolicy(max_sets, free_dead=0)
    found = simulate(WORKLOADS[workload], tiers, size=2_000, share=SHARE, checkpoints=150)
    assert found.most_sets <= max_sets
    assert found.most_read <= 3


def test_free_rows_save_compactions_of_small_states():
    """A state that changes wholly between two checkpoints is not rewritten after each."""
    always = simulate(WORKLOADS["uniform updates"], TIERS, size=50, share=50, checkpoints=200)
    tiers = TierPolicy(20)
    seldom = simulate(WORKLOADS["uniform updates"], tiers, size=50, share=50, checkpoints=200)
    assert always.compactions > 40
    assert seldom.compactions < 12
