"""absflow's housekeeping, within the time that is measured.

A job looks once a minute what retention has to do, vacuums a table every 20 minutes, and rests nine
times as long as it worked, so a benchmark of minutes would see little of it. Here it looks
``EVERY_S`` seconds after it has ended, compacts and deletes, keeps one checkpoint, and vacuums
every table each time, with nothing spared for readers. A run is such a plan of retention, and
``RUN_S`` seconds behind it. Its rows per second are those of both times, by the shares that they
have of a job's life: a tenth and nine tenths, which is as much as retention is ever at work. So
what is measured is rather less than a job has by default. With ``QUICK=1`` no plan is waited for.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from _periods import RUN_S, WARM_S, Runs, between

from absflow.spark.control import retention, tidying

EVERY_S = WARM_S + 5
# Of the time, that a job's retention is at work at most.
SHARE = 1 / (1 + retention.REST)
# What it does where the keys that change are not new.
ALL = ("Compact", "DeleteSets", "VACUUM")
SETTINGS = {"checkpoint.interval": "10s", "checkpoint.retained": "1"}


@dataclass
class Housekeeping:
    """What was done.

    Attributes:
        plans: when each plan of retention began and ended, s since 1970.
        speeds: rows per second in each that was measured, and behind it.
        done: how often each kind of action was done, by its name.
    """

    plans: list[tuple[float, float]] = field(default_factory=list)
    speeds: list[tuple[float, float]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """In words."""
        took = sum(end - begin for begin, end in self.plans) / max(1, len(self.plans))
        done = ", ".join(f"{count} {name}" for name, count in sorted(self.done.items()))
        plans = f"{len(self.plans)} plans of retention, {took:.1f} s each: {done or 'nothing'}"
        speeds = [f"{work:,.0f} rows/s in it, {rest:,.0f} behind it" for work, rest in self.speeds]
        return "; ".join([plans, *speeds])

    def runs(self, moments: Sequence[tuple[float, int]], since: float, most: int) -> Runs:
        """Rows per second of each run that is over, and the longest pause in it."""
        pauses: list[float] = []
        self.speeds = []
        for begin, end in self.plans:
            at_work, calm = between(moments, begin, end), between(moments, end, end + RUN_S)
            if begin >= since and at_work and calm and len(pauses) < most:
                self.speeds.append((at_work[0], calm[0]))
                pauses.append(max(at_work[1], calm[1]))
        return [SHARE * work + (1 - SHARE) * rest for work, rest in self.speeds], pauses

    def missing(self, due: Collection[str]) -> str:
        """What was not done of this, in words; empty if all was."""
        return ", ".join(f"no {name}" for name in sorted({*due} - self.done.keys()))


@contextmanager
def housekeeping(every_s: float = EVERY_S) -> Iterator[Housekeeping]:
    """Jobs that start within have it often; it is noted."""
    seen = Housekeeping()

    def noted(owner: type[Any], name: str, note: Any) -> Any:
        done = getattr(owner, name)

        def call(self: Any, *args: Any) -> Any:
            begun = time.time()
            made = done(self, *args)
            note(begun, *args)
            return made

        return mock.patch.object(owner, name, call)

    def planned(begun: float) -> None:
        seen.plans.append((begun, time.time()))

    def acted(_begun: float, action: object, _found: object) -> None:
        seen.done[type(action).__name__] += 1

    def vacuumed(_begun: float, _table: str) -> None:
        seen.done["VACUUM"] += 1

    with ExitStack() as stack:
        for patch in (
            mock.patch.object(retention, "EVERY", float(every_s)),
            mock.patch.object(retention, "REST", 0.0),
            mock.patch.object(tidying, "VACUUM_EVERY", 0.0),
            mock.patch.object(tidying, "RETAIN", "RETAIN 0 HOURS"),
            noted(retention.Retention, "_clean", planned),
            noted(retention.Retention, "_do", acted),
            noted(tidying.Tidying, "_vacuum", vacuumed),
        ):
            stack.enter_context(patch)
        yield seen
