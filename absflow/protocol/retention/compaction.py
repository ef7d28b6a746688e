"""Which compactions are due, and what they leave to be read.

Rules of this file: plain functions over an inventory. A run of sets that is to become one
(:mod:`absflow.protocol.tiers`) always goes to the end of the lineage of a kept checkpoint; for
later checkpoints it may then lie anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from absflow.protocol.lineage import Compacted, compacted_id, end_of, fits, lineage_of
from absflow.protocol.retention.inventory import Completed, Inventory, RetentionPolicy
from absflow.protocol.tiers import run_to_merge

__all__ = ["choose", "readable"]


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
            place = run_to_merge([sizes.get(n, 0) for n in lineage], live, policy.tiers)
            if place is None:
                continue
            fact = _of(completed.checkpoint_id, stage, lineage, place)
            if fact not in failed and not _harms(fact, kept, (*there.compacted, *made)):
                made.append(fact)
                together = sum(sizes.get(n, 0) for n in fact.replaces)
                whole = completed.keys.get(stage, together)
                sizes.setdefault(fact.set_id, together if place else whole)
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
