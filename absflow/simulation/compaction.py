"""What compaction writes and what a restore reads, for workloads over many checkpoints.

A stage's state is a set of keys; a row of its history is an upsert or a deletion of one. After each
checkpoint the plan of retention is carried out. All rows count alike, so rows stand for bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from absflow.protocol.lineage import Compacted, begin_of, extend_lineage, lineage_of
from absflow.protocol.retention.inventory import (
    Compact,
    Completed,
    DeleteSets,
    Inventory,
    RetentionPolicy,
)
from absflow.protocol.retention.plan import plan
from absflow.protocol.tiers import TierPolicy

__all__ = ["WORKLOADS", "Figures", "Workload", "simulate"]

# The keys that a checkpoint upserts, and those that it deletes. A workload is given how many keys
# there are at first, and how many rows a checkpoint is to change.
Changes = tuple[set[int], set[int]]
Workload = Callable[[random.Random, int, int], Iterator[Changes]]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a workload came to.

    Attributes:
        changed: rows of snapshots, the first one not counted.
        rewritten: rows that compaction wrote.
        compactions: how many there were.
        most_sets: the most sets that a state had to be read from, after a plan.
        most_read: the most rows that had to be read for each live one, after a plan.
    """

    changed: int
    rewritten: int
    compactions: int
    most_sets: int
    most_read: float

    @property
    def amplification(self) -> float:
        """Rows rewritten for each one changed."""
        return self.rewritten / self.changed


def uniform(chance: random.Random, size: int, share: int) -> Iterator[Changes]:
    """Updates of keys, each as likely as any other."""
    while True:
        yield {chance.randrange(size) for _ in range(share)}, set()


def skewed(chance: random.Random, size: int, share: int) -> Iterator[Changes]:
    """Updates of keys, of which half come to a hundredth of all keys."""
    while True:
        yield {int(size * chance.random() ** 6.6) for _ in range(share)}, set()


def growing(_chance: random.Random, size: int, share: int) -> Iterator[Changes]:
    """New keys only."""
    while True:
        yield set(range(size, size + share)), set()
        size += share


def passing(_chance: random.Random, size: int, share: int) -> Iterator[Changes]:
    """Half new keys, and as many of the oldest deleted, as with sessions."""
    oldest = 0
    while True:
        half = share // 2
        yield set(range(size, size + half)), set(range(oldest, oldest + half))
        size, oldest = size + half, oldest + half


def shrinking(_chance: random.Random, size: int, share: int) -> Iterator[Changes]:
    """Deletions only; when little is left, as many new keys as there were at first, at once."""
    oldest, newest = 0, size
    while True:
        while newest - oldest > share:
            yield set(), set(range(oldest, oldest + share))
            oldest += share
        yield set(range(newest, newest + size)), set()
        newest += size


WORKLOADS: dict[str, Workload] = {
    "uniform updates": uniform,
    "skewed updates": skewed,
    "new keys only": growing,
    "new keys, old ones deleted": passing,
    "deletions only": shrinking,
}


class _History:
    """The sets of a state history: upserts and deletions by id."""

    def __init__(self) -> None:
        self.sets: dict[int, Changes] = {}
        self.live: set[int] = set()
        self.facts: list[Compacted] = []

    def take(self, set_id: int, changes: Changes) -> None:
        upserts, deletions = changes
        self.sets[set_id] = changes
        self.live -= deletions
        self.live |= upserts

    def add_up(self, lineage: tuple[int, ...]) -> Changes:
        first, *younger = lineage
        upserts, deletions = (set(keys) for keys in self.sets[first])
        for set_id in younger:
            upserted, deleted = self.sets[set_id]
            upserts = (upserts - deleted) | upserted
            deletions = (deletions - upserted) | deleted
        return upserts, deletions

    def compact(self, fact: Compacted) -> None:
        upserts, deletions = self.add_up(fact.replaces)
        self.sets[fact.set_id] = (upserts, deletions if begin_of(fact.set_id) else set())
        self.facts.append(fact)

    def rows(self) -> dict[int, int]:
        return {n: len(upserts) + len(deleted) for n, (upserts, deleted) in self.sets.items()}


def simulate(
    workload: Workload,
    tiers: TierPolicy,
    *,
    size: int,
    share: int,
    checkpoints: int,
    seed: int = 1,
    counted: bool = True,
) -> Figures:
    """Take so many checkpoints, and carry out the plan of retention after each.

    Args:
        workload: what changes.
        tiers: when sets are compacted.
        size: keys at first.
        share: rows that a checkpoint changes.
        checkpoints: how many.
        seed: of the generator.
        counted: whether the log says how many rows a set has; else all sets become one.
    """
    changes = workload(random.Random(seed), size, share)
    history = _History()
    lineage: tuple[int, ...] = (1,)
    history.take(1, (set(range(size)), set()))
    changed = rewritten = compactions = most_sets = 0
    most_read = 1.0
    for n in range(2, checkpoints + 2):
        history.take(n, next(changes))
        rows = history.rows()
        changed += rows[n]
        lineage = extend_lineage(lineage, n, n - 1, rows[n])
        done = Completed(n, 1, {"a": lineage}, keys={"a": len(history.live)})
        there = Inventory(
            {1: 0},
            completed=(done,),
            compacted=tuple(history.facts),
            ended_id=n,
            sets={"a": frozenset(rows)},
            rows={"a": rows} if counted else {},
        )
        for action in plan(there, RetentionPolicy(tiers=tiers)):
            match action:
                case Compact(fact):
                    history.compact(fact)
                    rewritten += sum(map(len, history.sets[fact.set_id]))
                case DeleteSets(_, set_ids):
                    for set_id in set_ids:
                        del history.sets[set_id]
        # The job lays the next one on what is read now, and that ends no set that is gone.
        compacted, history.facts = history.facts, []
        lineage = lineage_of("a", lineage, compacted)
        compactions += len(compacted)
        read = sum(history.rows()[set_id] for set_id in lineage)
        most_sets = max(most_sets, len(lineage))
        most_read = max(most_read, read / max(1, len(history.live)))
    assert history.add_up(lineage)[0] == history.live
    return Figures(changed, rewritten, compactions, most_sets, most_read)
