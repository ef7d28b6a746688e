"""Which sets of a state history add up to a stage's state at a checkpoint.

A *lineage* is a list of set ids, oldest first. The state of a key is its last change along it.
Completion lays a new set on the lineage of an earlier checkpoint; compaction puts one set in the
place of the first several of a lineage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from absflow.protocol.checkpoints import Manifest

__all__ = ["Compacted", "extend_lineage", "lineage_of", "shortened"]


@dataclass(frozen=True, slots=True)
class Compacted:
    """A COMPACTED fact: ``set_id`` holds what the sets ``replaces`` add up to.

    Attributes:
        checkpoint_id: the checkpoint whose lineage was ``replaces`` then.
        stage: the stage.
        set_id: the set that was written.
        replaces: at least two sets, oldest first.
    """

    checkpoint_id: int
    stage: str
    set_id: int
    replaces: tuple[int, ...]


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
        compacted: all COMPACTED facts, in any order.

    >>> facts = [Compacted(3, "a", -3, (1, 2, 3)), Compacted(5, "a", -5, (-3, 5))]
    >>> lineage_of("a", (1, 2, 3, 4), facts)
    (-3, 4)
    >>> lineage_of("a", (1, 2, 3, 5, 6), facts)
    (-5, 6)
    >>> lineage_of("a", (1, 2), facts)
    (1, 2)
    """
    shorter = {c.replaces: c.set_id for c in compacted if c.stage == stage}
    length = len(lineage)
    while length > 1:
        set_id = shorter.get(lineage[:length])
        if set_id is None:
            length -= 1
        else:
            lineage = (set_id, *lineage[length:])
            length = len(lineage)
    return lineage


def shortened(manifest: Manifest, compacted: Iterable[Compacted]) -> Manifest:
    """The manifest with the lineages that are to be read; arguments as for :func:`lineage_of`."""
    facts = tuple(compacted)
    stages = (
        replace(stage, lineage=lineage_of(stage.report.stage, stage.lineage, facts))
        for stage in manifest.stages
    )
    return replace(manifest, stages=tuple(stages))
