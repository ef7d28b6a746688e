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
    speeds: list[float] = []
    pauses: list[float] = []
    begun: float | None = None
    for mark in marks:
        # A period is never quite as long as it was to be.
        if begun is not None and mark < begun + RUN_S - 1:
            continue
        if mark > moments[-1][0] or len(speeds) == most:
            break
        if begun is not None and (found := between(moments, begun, mark)):
            speeds.append(found[0])
            pauses.append(found[1])
        begun = mark
    return speeds, pauses


def between(
    moments: Sequence[tuple[float, int]], begin: float, end: float
) -> tuple[float, float] | None:
    """Rows per second between two marks, and the longest pause; None if there is no whole moment.

    It begins and ends with the first moment behind each.
    """
    times = [at for at, _ in moments]
    first, last = bisect_left(times, begin), bisect_left(times, end)
    if last == len(times) or last == first:
        return None
    speed = sum(rows for _, rows in moments[first:last]) / (times[last] - times[first])
    return speed, max(later - earlier for earlier, later in pairwise(times[first : last + 1]))
