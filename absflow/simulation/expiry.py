"""State that expires in a simulated stage: a count for each way and key, and when it was touched.

It follows the rules of ``absflow.columnar.expiry``: expiry is a predicate, and what has expired is
left out where rows are written anyway, in snapshots and now and then in memory.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from absflow.simulation.items import Value
from absflow.simulation.job import Graph, Row

__all__ = ["Clocks", "Ttl", "brief_name", "draw_clocks", "expired", "is_brief", "step"]

_BRIEF = "brief "
# Of event time, and of batch time in ms; how far the clocks of two machines may be apart, ms.
_AFTER = {False: (6, 20, 45), True: (100, 400, 1_500)}
_SKEW_MS = 800
_BEGIN_MS = 1_000


@dataclass(frozen=True, slots=True)
class Ttl:
    """When a stage's brief state expires.

    Attributes:
        after: so long after it was touched.
        clock: by the time of the batches, not by the watermark.
        on_read: a row of a key touches it also if it does not change it.
    """

    after: int
    clock: bool
    on_read: bool

    def upto(self, watermark: int | None, now_ms: int) -> int | None:
        """What was touched up to then has expired; None if nothing has."""
        now = now_ms if self.clock else watermark
        return None if now is None else now - self.after


@dataclass(frozen=True, slots=True)
class Clocks:
    """What an attempt's stages go by.

    Attributes:
        ttls: by stage.
        skews: by how much the wall clock of each driver is wrong, ms; the ninth has the first's.
        begin_ms: what the wall clock shows when the attempt begins.
        origin: the checkpoint that the attempt was restored from; 0 if there is none.
        origin_ttls: by which that was taken.
    """

    ttls: Mapping[str, Ttl]
    skews: tuple[int, ...] = (0,)
    begin_ms: int = _BEGIN_MS
    origin: int = 0
    origin_ttls: Mapping[str, Ttl] = field(default_factory=dict)

    @property
    def full_first(self) -> bool:
        """Whether the first snapshots must be full: what expires is not what had expired."""
        return self.origin > 0 and self.origin_ttls != self.ttls

    def ttls_at(self, checkpoint_id: int) -> Mapping[str, Ttl]:
        """By which a checkpoint was taken, that of the origin or a later one."""
        return self.origin_ttls if checkpoint_id == self.origin else self.ttls

    def wall_ms(self, now_ms: int, drivers: int) -> int:
        """What the wall clock of the newest driver shows."""
        return self.begin_ms + now_ms + self.skews[drivers % len(self.skews)]


def draw_clocks(
    seed: int, graph: Graph, before: Clocks | None = None, checkpoint_id: int = 0, at_ms: int = 0
) -> Clocks:
    """The clocks of an attempt, drawn by dice of their own.

    Args:
        seed: of the dice.
        graph: the job.
        before: those of the attempt that it goes back to; None if it is the first.
        checkpoint_id: of that attempt.
        at_ms: the last that the wall clocks of that attempt have shown.
    """
    dice = random.Random(f"clocks {seed}")
    skews = tuple(dice.choice((0, dice.randint(-_SKEW_MS, _SKEW_MS))) for _ in range(8))
    ttls = {}
    for stage in graph.stages:
        clock = dice.random() < 0.5 if before is None else before.ttls[stage.name].clock
        ttls[stage.name] = Ttl(dice.choice(_AFTER[clock]), clock, dice.random() < 0.5)
    if before is None:
        return Clocks(ttls, skews)
    if dice.random() < 0.4:
        ttls = dict(before.ttls)
    later_ms = dice.choice((-_SKEW_MS, 0, 500, 20_000))
    return Clocks(ttls, skews, at_ms + later_ms, checkpoint_id, before.ttls_at(checkpoint_id))


def brief_name(row: Row) -> str:
    """Where a row's brief state is kept; rows of one way come in one order."""
    return f"{_BRIEF}{'>'.join(row.path)} {row.key}"


def is_brief(name: str) -> bool:
    """Whether it names brief state."""
    return name.startswith(_BRIEF)


def expired(name: str, value: Value | None, upto: int | None) -> bool:
    """Whether an entry of the state has expired; a tombstone has not."""
    return upto is not None and value is not None and is_brief(name) and value[1] <= upto


def step(value: Value | None, row: Row, ttl: Ttl, at: int) -> Value | None:
    """What a row makes of its key's brief state.

    Args:
        value: how many rows it has counted, and when it was touched; None if there is none.
        row: counts, takes an earlier one back, which only reads, or has the key forgotten.
        ttl: of the stage.
        at: when the row touches what it touches.
    """
    if row.amount % 11 == 0:
        return None
    if row.sign > 0:
        count, touched = value or (0, at)
        return count + 1, max(touched, at)
    return (value[0], max(value[1], at)) if value is not None and ttl.on_read else value
