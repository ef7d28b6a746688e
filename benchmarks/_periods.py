"""Runs of whole periods, for ``throughput.py`` and ``engines.py``; nothing that a peer may lack."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

from _quick import usual

CHECKPOINT_S = 10
# A run has two whole checkpoint periods. Before the first, so many seconds, and each key so often.
RUN_S, WARM_S, WARM_TIMES = usual(20, 10), usual(30, 5), usual(5, 2)
Runs = tuple[list[float], list[float]]


def runs_of(moments: Sequence[tuple[float, int]], marks: Iterable[float], most: int) -> Runs:
    """Rows per second of each run, and the longest time in it from one moment to the next.

    Args:
        moments: when rows came, in order, and how many.
        marks: when a run may begin and end, in order; it begins and ends with the first moment
            behind such a mark.
        most: as many runs; fewer if moments or marks do not reach further.
    """
    times = [at for at, _ in moments]
    speeds: list[float] = []
    pauses: list[float] = []
    begun: tuple[int, float] | None = None
    for mark in marks:
        # A period is never quite as long as it was to be.
        if begun is not None and mark < begun[1] + RUN_S - 1:
            continue
        place = bisect_left(times, mark)
        if place == len(times) or len(speeds) == most:
            break
        if begun is not None and place > begun[0]:
            first = begun[0]
            took = times[place] - times[first]
            speeds.append(sum(rows for _, rows in moments[first:place]) / took)
            steps = pairwise(times[first : place + 1])
            pauses.append(max(later - earlier for earlier, later in steps))
        begun = place, mark
    return speeds, pauses
