"""Which sets of a lineage become one, so that restores read little and little is written again.

Rules of this file: plain functions over an inventory.

Sets are merged by size, as in a log-structured merge tree (RocksDB calls it universal compaction).
Sizes are rows, for those are what manifests and logs know. A run always goes to the end of the
lineage of a kept checkpoint; for later checkpoints it may then lie anywhere. Two rules:

- *Few dead rows.* A restore has to read the rows of all sets of a lineage; of each key one counts,
  and of a deleted key none. If there are more dead ones than ``max_dead`` times the live ones, and
  more than ``free_dead``, all sets become one, which has no dead ones. Between two such merges of L
  live rows, at least max_dead * L / 2 rows must have changed: an update makes one row dead, a
  deletion two, itself and what it deletes. So this costs 1 / max_dead rows for each one updated, 2
  / max_dead for each one deleted, and nothing for those that are new.
- *Few sets.* More than ``max_lineage`` become fewer. The run begins at the oldest set that is not
  larger than all younger ones together. Behind it every set is in one of at least double its size,
  or was never merged before (older sets than a merged one were larger than it and all younger ones,
  so a run that reaches beyond it has double its rows). So a row is written again at most 1 +
  log2(state / max_lineage changes) times. Nothing is merged before there are too many: a merge
  takes most of them, and the next one is max_lineage - log2(...) checkpoints away. If no set is so
  small, max_lineage is less than that logarithm; then the youngest that are too many become one.

Where a log does not say how many rows a set has, it counts as none, and the second rule merges all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from absflow.protocol.lineage import Compacted, compacted_id, end_of, fits, lineage_of
from absflow.protocol.retention.inventory import Completed, Inventory, RetentionPolicy

__all__ = ["choose", "readable", "run_to_merge"]


def run_to_merge(rows: Sequence[int], live: int, policy: RetentionPolicy) -> int | None:
    """Where the run begins that is to become one set; None if a lineage is to stay as it is.

    Args:
        rows: of each set of the lineage, oldest first.
        live: keys of the state; 0 if it is not known.
        policy: what is to be kept.

    >>> policy = RetentionPolicy(max_lineage=4, free_dead=0)
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
    if len(rows) <= policy.max_lineage:
        return None
    younger = sum(rows)
    for place, size in enumerate(rows[: policy.max_lineage]):
        younger -= size
        if size <= younger:
            return place
    return policy.max_lineage - 1


def choose(
    there: Inventory,
    kept: Sequence[Completed],
    policy: RetentionPolicy,
    failed: Collection[Compacted] = (),
) -> list[Compacted]:
    """The compactions that are due, in the order in which they are to be made.

    Args:
        there: what there is.
        kept: the checkpoints that stay, oldest first: what is made for one shortens the next.
        policy: what is to be kept.
        failed: those that were tried in vain, and are not to be tried now.
    """
    made: list[Compacted] = []
    rows = {stage: dict(sizes) for stage, sizes in there.rows.items()}
    for completed in kept:
        for stage, manifest in sorted(completed.lineages.items()):
            sizes, live = rows.setdefault(stage, {}), completed.keys.get(stage, 0)
            lineage = lineage_of(stage, manifest, (*there.compacted, *made))
            place = run_to_merge([sizes.get(n, 0) for n in lineage], live, policy)
            if place is None:
                continue
            fact = _of(completed.checkpoint_id, stage, lineage, place)
            if fact not in failed and not _harms(fact, kept, (*there.compacted, *made)):
                made.append(fact)
                together = sum(sizes.get(n, 0) for n in fact.replaces)
                sizes.setdefault(fact.set_id, together if place else live or together)
    return made


def _of(checkpoint_id: int, stage: str, lineage: tuple[int, ...], place: int) -> Compacted:
    set_id = compacted_id(end_of(lineage[place - 1]) if place else 0, end_of(lineage[-1]))
    return Compacted(checkpoint_id, stage, set_id, lineage[place:])


def _harms(fact: Compacted, kept: Sequence[Completed], known: Collection[Compacted]) -> bool:
    """Whether a kept checkpoint would be read from sets that may be gone.

    One whose compaction had failed may now want a set that ends within a newer one's.
    """
    for completed in kept:
        if fact.stage in completed.lineages:
            manifest = completed.lineages[fact.stage]
            now = lineage_of(fact.stage, manifest, known)
            then = lineage_of(fact.stage, manifest, (*known, fact))
            if not {*then} <= {*now, fact.set_id}:
                return True
    return False


def readable(
    stage: str,
    manifest: tuple[int, ...],
    compacted: Collection[Compacted],
    failed: Collection[Compacted],
) -> set[int]:
    """The sets that a lineage is read from, or may be.

    The fact of a compaction that failed may have been committed though its writer got an error.
    Then whatever fits into the lineage may be read.
    """
    if all(fact.stage != stage for fact in failed):
        return {*lineage_of(stage, manifest, compacted)}
    ends = {*map(end_of, manifest)}
    made = (f.set_id for f in (*compacted, *failed) if f.stage == stage)
    return {*manifest, *(set_id for set_id in made if fits(set_id, ends))}
