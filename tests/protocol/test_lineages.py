"""Which sets are read for a lineage, whatever was compacted."""

from itertools import permutations

from absflow.protocol.lineage import Compacted, begin_of, compacted_id, end_of, lineage_of


def compacted(begin, end, *replaces):
    return Compacted(end, "a", compacted_id(begin, end), replaces)


def test_an_id_says_what_a_set_covers():
    """And is below 0, so that no checkpoint has it."""
    for begin in (0, 1, 7, 999_999_999):
        for end in (1, 8, 999_999_999):
            set_id = compacted_id(begin, end)
            assert -(2**63) <= set_id < 0
            assert (begin_of(set_id), end_of(set_id)) == (begin, end)


def test_compactions_add_up_in_any_order():
    """A lineage ends at the same sets in whichever order the facts are read."""
    inner = compacted(1, 3, 2, 3)
    facts = [
        inner,
        compacted(0, 5, 1, inner.set_id, 4, 5),
        compacted(5, 7, 6, 7),
        compacted(0, 9, -5, compacted_id(5, 7), 8, 9),
    ]
    for some in permutations(facts):
        assert lineage_of("a", (1, 2, 3, 4, 5, 6, 7, 8), some) == (-5, -5_000_000_007, 8)
        assert lineage_of("a", (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), some) == (-9, 10)
        assert lineage_of("a", (1, inner.set_id, 4, 5), some) == (-5,)
        assert lineage_of("a", (-5, 6), some) == (-5, 6)
        assert lineage_of("a", (1, 2, 3, 11), some) == (1, inner.set_id, 11)


def test_a_checkpoint_within_a_compaction_is_read_from_what_was_before():
    """A set fits only where a lineage has both its ends; those of other stages never."""
    facts = [compacted(2, 4, 3, 4)]
    assert lineage_of("a", (1, 2, 3), facts) == (1, 2, 3)
    assert lineage_of("a", (1, 2, 3, 5), facts) == (1, 2, 3, 5)
    assert lineage_of("b", (1, 2, 3, 4), facts) == (1, 2, 3, 4)
    assert lineage_of("a", (2,), facts) == (2,)
    assert lineage_of("a", (), facts) == ()


def test_of_two_that_overlap_the_one_that_ends_later_is_read():
    """It was there first: what is made for a newer checkpoint leaves no end within it."""
    facts = [compacted(2, 4, 3, 4), compacted(1, 3, 2, 3)]
    for some in permutations(facts):
        assert lineage_of("a", (1, 2, 3, 4), some) == (1, 2, -2_000_000_004)
        assert lineage_of("a", (1, 2, 3), some) == (1, -1_000_000_003)


def test_the_longest_of_those_that_end_together_is_read():
    """Also if the shorter ones were made of the same sets."""
    facts = [compacted(3, 5, 4, 5), compacted(0, 5, 1, 2, 3, 4, 5), compacted(0, 3, 1, 2, 3)]
    for some in permutations(facts):
        assert lineage_of("a", (1, 2, 3, 4, 5, 6), some) == (-5, 6)
