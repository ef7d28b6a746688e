"""Which sets of a state history add up to a stage's state at a checkpoint.

A *lineage* is a list of set ids, oldest first. The state of a key is its last change along it.
Completion lays a new set on the lineage of an earlier checkpoint, and compaction puts one set in
the place of several that follow each other. A manifest is never changed: whoever reads finds out
which sets take the place of others (:func:`lineage_of`).

The set of a checkpoint n has the id n. It is laid on one lineage only, so whatever lineage it is
in, what stands before it adds up to the same: every set *ends* at a checkpoint, and up to there all
lineages that have a set with that end are equal. A compacted set says in its id behind which end it
begins, and where it ends (:func:`compacted_id`). So its rows follow from its id, whichever sets it
was made of, and it fits into every lineage that has both ends.

A lineage is read from its end backwards. Where compacted sets end, the one that begins first is
taken, and what it covers is passed over. This depends neither on the order of the facts nor on
facts whose sets are gone: a longer one ends where they did, or no lineage that is kept passes
there. So the facts that matter to a lineage are those with both ends in it (:func:`fits`), and no
others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from absflow.protocol.checkpoints import Manifest, SetDigest, StageManifest

__all__ = [
    "SPAN",
    "Compacted",
    "begin_of",
    "compacted_id",
    "end_of",
    "extend_lineage",
    "fits",
    "lineage_of",
    "shortened",
]

# More than there will be checkpoints: one a second for thirty years. Ten to a power, for people.
SPAN = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Compacted:
    """A COMPACTED fact: ``set_id`` holds what the sets ``replaces`` add up to.

    Attributes:
        checkpoint_id: the checkpoint whose lineage it was made for, and goes to the end of.
        stage: the stage.
        set_id: the set that was written.
        replaces: at least two sets, oldest first, of which it was made.
        digest: of the set; None if an earlier version wrote it.
    """

    checkpoint_id: int
    stage: str
    set_id: int
    replaces: tuple[int, ...]
    digest: SetDigest | None = None


def compacted_id(begin: int, end: int) -> int:
    """The id of what has changed behind checkpoint ``begin`` (0: the whole state) up to ``end``.

    >>> compacted_id(0, 42), compacted_id(17, 42)
    (-42, -17000000042)
    """
    return -(begin * SPAN + end)


def begin_of(set_id: int) -> int | None:
    """Behind which end a compacted set begins; None for the set of a checkpoint.

    >>> begin_of(-42), begin_of(-17000000042), begin_of(42)
    (0, 17, None)
    """
    return None if set_id > 0 else -set_id // SPAN


def end_of(set_id: int) -> int:
    """The checkpoint at which a set ends.

    >>> end_of(-42), end_of(-17000000042), end_of(42)
    (42, 42, 42)
    """
    return set_id if set_id > 0 else -set_id % SPAN


def fits(set_id: int, ends: Collection[int]) -> bool:
    """Whether a compacted set takes the place of others in a lineage that has these ends."""
    begin = begin_of(set_id)
    return end_of(set_id) in ends and (begin == 0 or begin in ends)


def extend_lineage(
    previous: tuple[int, ...], checkpoint_id: int, base_id: int, rows_changed: int
) -> tuple[int, ...]:
    """The sets that make up a stage's state at ``checkpoint_id``.

    A full snapshot (``base_id`` 0) stands alone. An increment holds every change since its base,
    so it may be laid on the newest completed checkpoint m with base <= m (whose lineage is
    ``previous``): what m already has is repeated, never missed. A snapshot without a change wrote
    no set.

    >>> extend_lineage((1, 2), 4, base_id=1, rows_changed=7)
    (1, 2, 4)
    >>> extend_lineage((1, 2), 5, base_id=0, rows_changed=7)
    (5,)
    >>> extend_lineage((1, 2), 6, base_id=2, rows_changed=0)
    (1, 2)
    """
    changed = (checkpoint_id,) if rows_changed else ()
    return changed if base_id == 0 else (*previous, *changed)


def lineage_of(
    stage: str, lineage: tuple[int, ...], compacted: Iterable[Compacted]
) -> tuple[int, ...]:
    """The sets to read for the state of ``stage``, oldest first.

    Args:
        stage: the stage.
        lineage: what a manifest says, or what this function said before.
        compacted: the COMPACTED facts that fit into it, in any order; others change nothing.

    >>> facts = [Compacted(3, "a", -1000000003, (2, 3)), Compacted(5, "a", -5, (1, -1000000003, 5))]
    >>> lineage_of("a", (1, 2, 3, 4), facts)
    (1, -1000000003, 4)
    >>> lineage_of("a", (1, 2, 3, 5, 6), facts)
    (-5, 6)
    >>> lineage_of("a", (1, 2), facts)
    (1, 2)
    """
    ends = {*map(end_of, lineage)}
    longest: dict[int, tuple[int, int]] = {}  # where it begins, and which set, by where it ends
    for fact in compacted:
        if fact.stage == stage and fits(fact.set_id, ends):
            begin, end = begin_of(fact.set_id) or 0, end_of(fact.set_id)
            longest[end] = min((begin, fact.set_id), longest.get(end, (end, 0)))
    read: list[int] = []
    at = math.inf
    for set_id in reversed(lineage):
        end = end_of(set_id)
        if end <= at:
            at, chosen = longest.get(end, (end - 1, set_id))
            read.append(chosen)
    return tuple(reversed(read))


def shortened(manifest: Manifest, compacted: Iterable[Compacted]) -> Manifest:
    """The manifest with the lineages that are to be read; arguments as for :func:`lineage_of`."""
    facts = tuple(compacted)
    return replace(manifest, stages=tuple(_shortened(stage, facts) for stage in manifest.stages))


def _shortened(stage: StageManifest, facts: tuple[Compacted, ...]) -> StageManifest:
    name = stage.report.stage
    lineage = lineage_of(name, stage.lineage, facts)
    written = (c.digest for c in facts if c.stage == name and c.digest is not None)
    digests = {each.set_id: each for each in (*stage.sets, *written)}
    sets = tuple(digests[set_id] for set_id in lineage if set_id in digests)
    return replace(stage, lineage=lineage, sets=sets)
