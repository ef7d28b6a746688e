"""The simulated job: its graphs, its rows, and what a stage does to a row.

What a stage makes of a row depends on the row alone, and what it keeps is a sum per key: so state
and output of a stage are a function of *which* rows it has processed, whatever the order in which
its inputs were merged. That lets a checker compute them without knowing how the world moved. The
order within one path is kept all the same, and is checked by a digest per path.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from absflow.protocol.coordinator.messages import RootInput, Topology

__all__ = [
    "DELAY",
    "GRAPHS",
    "PARTITIONS",
    "WINDOW",
    "Graph",
    "Row",
    "StageSpec",
    "draw_rows",
    "partitions",
    "transform",
    "window_end",
]

# Of each source, and the delay of its watermark; the size of the windows that stages keep.
PARTITIONS, DELAY, WINDOW = 3, 8, 25
_KEYS = 7
# How far partitions are apart, how disordered each is, and how far one goes from row to row.
_LAG, _DISORDER, _STEP = 60, 14, 6


@dataclass(frozen=True, slots=True)
class Row:
    """A row, tagged with where it comes from.

    Attributes:
        path: its source, then the stages that it has passed.
        number: its place in the source; what a stage makes of a row keeps the number.
        key: what state is kept by.
        amount: what is summed.
        sign: -1 takes an earlier row with the same key and amount back.
        at: its event time.
    """

    path: tuple[str, ...]
    number: int
    key: int
    amount: int
    sign: int
    at: int = 0

    @property
    def partition(self) -> str:
        """The partition of its source that it comes from."""
        return f"{self.path[0]}{self.number % PARTITIONS}"


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage: the sources that it reads itself, and the stages whose channels it reads."""

    name: str
    roots: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Its inputs in declared order; an input is called what its sender is called."""
        return (*self.roots, *self.upstream)


@dataclass(frozen=True, slots=True)
class Graph:
    """A job: stages in topological order; a source is read by exactly one of them."""

    name: str
    stages: tuple[StageSpec, ...]

    @property
    def topology(self) -> Topology:
        """The graph as the coordinator needs it."""
        roots = frozenset(RootInput(s.name, r) for s in self.stages for r in s.roots)
        return Topology({s.name: s.upstream for s in self.stages}, roots)

    @property
    def sources(self) -> tuple[str, ...]:
        """Every source, in the order of the stages that read them."""
        return tuple(root for stage in self.stages for root in stage.roots)

    def stage(self, name: str) -> StageSpec:
        """The stage called ``name``."""
        return next(s for s in self.stages if s.name == name)

    def paths(self, name: str) -> Iterator[tuple[str, ...]]:
        """Every way of a row from a source into stage ``name``, without the stage itself."""
        stage = self.stage(name)
        for root in stage.roots:
            yield (root,)
        for sender in stage.upstream:
            for path in self.paths(sender):
                yield (*path, sender)


GRAPHS: tuple[Graph, ...] = (
    Graph("single", (StageSpec("a", ("x",)),)),
    Graph(
        "chain",
        (StageSpec("a", ("x",)), StageSpec("b", (), ("a",)), StageSpec("c", (), ("b",))),
    ),
    Graph(
        "join",
        (
            StageSpec("a", ("x",)),
            StageSpec("b", ("y",)),
            StageSpec("c", (), ("a", "b")),
        ),
    ),
    Graph(
        "diamond",
        (
            StageSpec("a", ("x",)),
            StageSpec("b", (), ("a",)),
            StageSpec("c", (), ("b",)),
            StageSpec("d", (), ("a", "c")),
        ),
    ),
    Graph(
        "mixed",
        (
            StageSpec("a", ("x",)),
            StageSpec("b", ("y",), ("a",)),
            StageSpec("c", ("z",), ("a", "b")),
        ),
    ),
    Graph("two roots", (StageSpec("a", ("x", "y")), StageSpec("b", (), ("a",)))),
    Graph(
        "delta",
        (
            StageSpec("a", ("x",)),
            StageSpec("b", ("y",)),
            StageSpec("c", (), ("a", "b")),
            StageSpec("d", ("z",), ("b",)),
            StageSpec("e", (), ("c", "d", "a")),
        ),
    ),
)


def transform(stage: str, row: Row) -> tuple[Row, ...]:
    """What ``stage`` emits for ``row``: mostly one row, sometimes two, sometimes none.

    A row and the one that takes it back are treated alike, so their results cancel downstream too.
    """
    if row.amount % 5 == 0:
        return ()
    path = (*row.path, stage)
    key = (3 * row.key + len(row.path)) % _KEYS
    first = Row(path, row.number, key, row.amount + 1, row.sign, row.at)
    if row.amount % 7 != 3:
        return (first,)
    return (first, Row(path, row.number, (key + 1) % _KEYS, row.amount + 2, row.sign, row.at))


def partitions(source: str) -> tuple[str, ...]:
    """The partitions of a source."""
    return tuple(f"{source}{number}" for number in range(PARTITIONS))


def window_end(at: int) -> int:
    """The last time of the window that a time is in; the window's timer is due then."""
    return at - at % WINDOW + WINDOW - 1


def draw_rows(dice: random.Random, source: str, count: int) -> tuple[Row, ...]:
    """Rows of one source; many take an earlier one back, so that keys come and go.

    Event time goes on in each partition by itself, with some disorder, and some rows too late.
    """
    rows: list[Row] = []
    standing: list[Row] = []
    now = [dice.randrange(_LAG) for _ in range(PARTITIONS)]
    for number in range(count):
        place = number % PARTITIONS
        now[place] += dice.randrange(_STEP)
        at = max(0, now[place] - dice.randrange(_DISORDER))
        if standing and dice.random() < 0.45:
            old = standing.pop(dice.randrange(len(standing)))
            rows.append(Row((source,), number, old.key, old.amount, -1, at))
        else:
            row = Row((source,), number, dice.randrange(_KEYS), dice.randrange(1, 90), 1, at)
            rows.append(row)
            standing.append(row)
    return tuple(rows)
