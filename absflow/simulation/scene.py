"""What all parts of one simulated world share: its settings, dice, clock, faults and tables."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from absflow.protocol.coordinator.messages import Policy
from absflow.protocol.tiers import TierPolicy
from absflow.simulation.clock import Clock
from absflow.simulation.faults import Faults, Rates, draw_rates
from absflow.simulation.job import GRAPHS, Graph, draw_rows
from absflow.simulation.narrate import Story
from absflow.simulation.tables import Tables

__all__ = ["Knobs", "Scene", "build", "draw_knobs"]


@dataclass(frozen=True, slots=True)
class Knobs:
    """Settings of one world; times in ms, spans of times as (least, most).

    Attributes:
        graph: the job.
        policy: what the coordinator decides by.
        rates: the faults.
        rows: how many rows each source has.
        arrival_ms: when the last row of a source has come.
        quiet_ms: when the faults cease.
        items_per_batch: the most that a batch takes from one input.
        batch_ms: how long a micro-batch computes.
        write_ms: how long a write to a table takes.
        message_ms: how long a report travels.
        held_rows: ``alignment.max-held``, in rows.
        overtakes_seen: per stage, how likely a micro-batch is to look at ABORT and OVERTAKE rows.
        laggard: a stage whose micro-batches take longer until the faults cease.
        report_first: a stage reports before Spark commits the batch rather than after.
        idles: how likely a micro-batch is to see that partitions bring nothing more.
        timers: so many fire in a micro-batch at most.
    """

    graph: Graph
    policy: Policy
    rates: Rates
    rows: int = 70
    arrival_ms: int = 4_000
    quiet_ms: int = 9_000
    items_per_batch: int = 12
    batch_ms: tuple[int, int] = (10, 60)
    write_ms: tuple[int, int] = (1, 15)
    message_ms: tuple[int, int] = (0, 25)
    held_rows: int = 1_000
    overtakes_seen: Mapping[str, float] = field(default_factory=dict)
    laggard: str | None = None
    report_first: bool = True
    idles: float = 0.0
    timers: int = 1_000


@dataclass(frozen=True, slots=True)
class Scene:
    """One world's shared parts."""

    knobs: Knobs
    dice: random.Random
    clock: Clock
    faults: Faults
    story: Story
    tables: Tables

    def between(self, span: tuple[int, int]) -> int:
        """A time from a span."""
        return self.dice.randint(*span)


def draw_knobs(
    dice: random.Random, graph: Graph | None = None, rates: Rates | None = None
) -> Knobs:
    """Settings of one world, drawn; ``graph`` and ``rates`` are as given if they are given."""
    graph = graph or dice.choice(GRAPHS)
    batch_ms = dice.choice(((5, 20), (10, 60), (40, 200)))
    message_ms = dice.choice(((0, 5), (0, 25), (0, 300)))
    # A timeout below what a healthy barrier needs would be a setting no job can live with.
    healthy_ms = len(graph.stages) * (batch_ms[1] + 150) + message_ms[1]
    policy = Policy(
        interval_ms=dice.choice((100, 250, 600)),
        timeout_ms=healthy_ms * dice.choice((2, 4, 8)),
        min_pause_ms=dice.choice((0, 0, 200)),
        max_concurrent=dice.choice((1, 2, 3, 5)),
        tolerable_failed=dice.choice((1_000, 1_000, 3)),
        savepoint_timeout_ms=healthy_ms * dice.choice((1, 4, 12)),
        aligned_timeout_ms=dice.choice((None, 0, 0, 100, 400)),
        full_from_rows=(few := dice.choice((0, 2, 50_000))),
        tiers=TierPolicy(free_dead=few),
    )
    return Knobs(
        graph=graph,
        policy=policy,
        rates=rates or draw_rates(dice),
        items_per_batch=dice.choice((2, 5, 12, 40)),
        batch_ms=batch_ms,
        message_ms=message_ms,
        held_rows=dice.choice((8, 1_000, 1_000)),
        overtakes_seen={stage.name: dice.choice((1.0, 0.5, 0.02)) for stage in graph.stages},
        laggard=dice.choice((None, *(stage.name for stage in graph.stages))),
        report_first=dice.random() < 0.5,
        idles=dice.choice((0.0, 0.0, 0.3)),
        timers=dice.choice((1_000, 1_000, 3)),
    )


def build(seed: int, knobs: Knobs, dice: random.Random, tables: Tables | None = None) -> Scene:
    """A scene with these tables; with full sources and empty tables if none are given."""
    clock = Clock()
    story = Story(clock)
    story.note("world", "begins", None, f"seed {seed}, graph {knobs.graph.name}, {knobs.policy}")
    faults = Faults(knobs.rates, knobs.quiet_ms, dice, clock)
    return Scene(knobs, dice, clock, faults, story, tables or _draw_tables(knobs, dice))


def _draw_tables(knobs: Knobs, dice: random.Random) -> Tables:
    rows = {}
    arrivals = {}
    for source in knobs.graph.sources:
        rows[source] = draw_rows(dice, source, dice.randint(knobs.rows // 3, knobs.rows))
        last_ms = dice.randint(knobs.arrival_ms // 8, knobs.arrival_ms)
        arrivals[source] = tuple(sorted(dice.randint(0, last_ms) for _ in rows[source]))
    return Tables.of(knobs.graph, rows, arrivals)
