"""Which sets of a lineage become one, so that restores read little and little is written again.

Sets are merged by size, as in a log-structured merge tree (RocksDB calls it universal compaction).
Sizes are rows, for those are what manifests and logs know. A run always goes to the end of the
lineage of a kept checkpoint; for later checkpoints it may then lie anywhere. Two rules:

- *Few dead rows.* A restore has to read the rows of all sets of a lineage; of each key one counts,
  and of a deleted key none. If there are more dead ones than ``max_dead`` times the live ones, and
  more than ``free_dead``, all sets become one, which has no dead ones. Between two such merges of L
  live rows, at least max_dead * L / 2 rows must have changed: an update makes one row dead, a
  deletion two, itself and what it deletes. So this costs 1 / max_dead rows for each one updated, 2
  / max_dead for each one deleted, and nothing for those that are new.
- *Few sets.* More than ``max_sets`` become fewer. The run begins at the oldest set that is not
  larger than all younger ones together. Behind it every set is in one of at least double its size,
  or was never merged before (older sets than a merged one were larger than it and all younger ones,
  so a run that reaches beyond it has double its rows). So a row is written again at most 1 +
  log2(state / max_sets changes) times. Nothing is merged before there are too many: a merge
  takes most of them, and the next one is max_sets - log2(...) checkpoints away. If no set is so
  small, max_sets is less than that logarithm; then the youngest that are too many become one.

Where a log does not say how many rows a set has, it counts as none, and the second rule merges all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["FEW_ROWS", "TierPolicy", "run_to_merge"]

# So many rows are read faster than sets are merged, or than a state is snapshotted whole for them.
FEW_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """How much a restore may read for nothing, so that little is written again.

    Attributes:
        max_sets: sets that a stage's state may be read from before some are compacted; at least 1.
        max_dead: rows that a restore may read in vain, for each live key; two, as RocksDB's
            universal compaction has it.
        free_dead: so many it may always read in vain: they take less time than a compaction.
    """

    max_sets: int = 10
    max_dead: float = 2.0
    free_dead: int = FEW_ROWS


def run_to_merge(rows: Sequence[int], live: int, policy: TierPolicy) -> int | None:
    """Where the run begins that is to become one set; None if a lineage is to stay as it is.

    Args:
        rows: of each set of the lineage, oldest first.
        live: keys of the state; 0 if it is not known.
        policy: when too many rows or sets would be read.

    >>> policy = TierPolicy(max_sets=4, free_dead=0)
    >>> run_to_merge([1000, 900, 900, 200], 1000, policy)
    >>> run_to_merge([1000, 900, 900, 201], 1000, policy)
    0
    >>> run_to_merge([1000, 40, 10, 10, 10], 1000, policy)
    2
    >>> run_to_merge([1000, 80, 40, 20, 10], 1000, policy)
    3
    """
    if len(rows) < 2:
        return None
    # The oldest set has neither deletions nor a key twice, and a row takes one key away at most.
    live = max(live, 2 * rows[0] - sum(rows))
    if sum(rows) - live > max(policy.max_dead * live, policy.free_dead):
        return 0
    if len(rows) <= policy.max_sets:
        return None
    younger = sum(rows)
    for place, size in enumerate(rows[: policy.max_sets]):
        younger -= size
        if size <= younger:
            return place
    return policy.max_sets - 1
