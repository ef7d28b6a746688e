"""What is due in a simulated world: computed from the rows of the sources and the graph alone.

How the world moved does not matter: neither its batches, nor its alignments. A row of a source is
late by the rows before it in its partition; what is on time goes on, and is in its window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from absflow.simulation.job import DELAY, PARTITIONS, Graph, Row, transform, window_end

__all__ = ["Due", "State", "Window", "newest_at", "watermark_at"]

State = dict[str, tuple[int, int]]
# The window's end, and the key.
Window = tuple[int, int]
# A source, then the stages that a row has passed.
_Way = tuple[str, ...]


@dataclass(slots=True)
class DuePath:
    """The rows that are due on one way into a stage, folded up to a number that only rises.

    Attributes:
        rows: all of them; of a source, those that are late, too.
        late: the numbers of these.
        folded: how many have been folded.
        seen: of these, how many were on time.
        windows: of each window and key, how many rows, and their sum.
    """

    rows: tuple[Row, ...]
    late: frozenset[int]
    folded: int = 0
    seen: int = 0
    digest: int = 0
    counts: Counter[int] = field(default_factory=Counter)
    totals: Counter[int] = field(default_factory=Counter)
    windows: dict[Window, tuple[int, int]] = field(default_factory=dict)

    def advance(self, count: int) -> None:
        """Fold rows until there are ``count``."""
        for row in self.rows[self.folded : count]:
            self.folded += 1
            if row.number in self.late:
                continue
            amount = row.sign * row.amount
            self.seen += 1
            self.digest = (self.digest * 1_000_003 + row.number * 91 + amount) % (2**61 - 1)
            self.counts[row.key] += row.sign
            self.totals[row.key] += amount
            window = (window_end(row.at), row.key)
            rows, total = self.windows.get(window, (0, 0))
            self.windows[window] = (rows + 1, total + amount)


class Due:
    """What each stage must have made of how many rows on each of the ways into it."""

    def __init__(self, graph: Graph, rows: Mapping[str, tuple[Row, ...]]) -> None:
        """Of a graph whose sources have these rows."""
        late = {source: _late(given) for source, given in rows.items()}
        nothing: frozenset[int] = frozenset()
        self.into = {
            s.name: {
                path: DuePath(
                    _along(path, rows, late), late[path[0]] if len(path) == 1 else nothing
                )
                for path in graph.paths(s.name)
            }
            for s in graph.stages
        }
        self.out = {
            s.name: {
                (*path, s.name): _along((*path, s.name), rows, late) for path in graph.paths(s.name)
            }
            for s in graph.stages
        }

    def ways(self, stage: str) -> Iterator[tuple[_Way, DuePath]]:
        """Every way into ``stage``, and what is due on it."""
        for path, due in self.into[stage].items():
            yield (*path, stage), due

    def sent(self, way: _Way, count: int) -> int:
        """How many rows a stage makes of the first ``count`` on a way into it."""
        *path, stage = way
        due = self.into[stage][tuple(path)]
        return sum(len(transform(stage, r)) for r in due.rows[:count] if r.number not in due.late)

    def state(self, stage: str, processed: Mapping[_Way, int], fired: Collection[Window]) -> State:
        """The state of ``stage`` after so many rows on each of the ways into it.

        Windows that have fired are gone.
        """
        state: State = {}
        counts: Counter[int] = Counter()
        totals: Counter[int] = Counter()
        for path, due in self.into[stage].items():
            way = (*path, stage)
            due.advance(processed[way])
            counts.update(due.counts)
            totals.update(due.totals)
            if due.seen:
                state["path " + ">".join(path)] = (due.seen, due.digest)
            if late := [r.number for r in due.rows[: due.folded] if r.number in due.late]:
                state[f"late {path[0]}"] = (len(late), sum(late))
        for key, count in counts.items():
            if (count, totals[key]) != (0, 0):
                state[f"key {key}"] = (count, totals[key])
        for (end, key), value in self.windows(stage).items():
            if (end, key) not in fired:
                state[f"window {end} {key}"] = value
        return state

    def windows(self, stage: str) -> dict[Window, tuple[int, int]]:
        """What the rows that have been folded come to, by window and key."""
        return _together(self.into[stage].values())

    def whole_windows(self, stage: str) -> dict[Window, tuple[int, int]]:
        """What all rows come to that are on time, by window and key."""
        whole = [DuePath(due.rows, due.late) for due in self.into[stage].values()]
        for due in whole:
            due.advance(len(due.rows))
        return _together(whole)


def _together(paths: Iterable[DuePath]) -> dict[Window, tuple[int, int]]:
    found: dict[Window, tuple[int, int]] = {}
    for due in paths:
        for window, (rows, total) in due.windows.items():
            before = found.get(window, (0, 0))
            found[window] = (before[0] + rows, before[1] + total)
    return found


def newest_at(rows: tuple[Row, ...], position: int) -> dict[str, int]:
    """The greatest event time of each partition of a source that has been read so far."""
    newest: dict[str, int] = {}
    for row in rows[:position]:
        newest[row.partition] = max(row.at, newest.get(row.partition, row.at))
    return newest


def watermark_at(rows: tuple[Row, ...], position: int) -> int | None:
    """The watermark of a source that has been read up to a position."""
    newest = newest_at(rows, position)
    return min(newest.values()) - DELAY - 1 if len(newest) == PARTITIONS else None


def _late(rows: tuple[Row, ...]) -> frozenset[int]:
    """The numbers of the rows that are late, by the rows before them in their partition."""
    newest: dict[str, int] = {}
    late = set()
    for row in rows:
        before = newest.get(row.partition)
        if before is not None and row.at < before - DELAY:
            late.add(row.number)
        newest[row.partition] = row.at if before is None else max(before, row.at)
    return frozenset(late)


def _along(
    path: _Way, rows: Mapping[str, tuple[Row, ...]], late: Mapping[str, frozenset[int]]
) -> tuple[Row, ...]:
    """The rows of a source after the stages of a path; at its beginning, the late ones, too."""
    source, *stages = path
    along = rows[source]
    if stages:
        along = tuple(row for row in along if row.number not in late[source])
    for stage in stages:
        along = tuple(made for row in along for made in transform(stage, row))
    return along
