"""absflow's housekeeping, within the time that is measured: seen, and made to come more often.

A job looks once a minute what retention has to do, and vacuums a table every 20 minutes, so a
benchmark of minutes would see little of it. Here it looks every ``EVERY_S`` seconds, vacuums every
table each time, with nothing spared for readers, and keeps one checkpoint; retention rests nine
times as long as it worked, as always. So it is at work for as much of the time as it ever is, and
what is measured is rather less than a job has by default. A run goes from the end of one such plan
to the end of another; with ``QUICK=1`` plans are not waited for.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from _periods import RUN_S

from absflow.spark.control import retention, tidying

EVERY_S = RUN_S
# What it does where the keys that change are not new.
ALL = ("Compact", "DeleteSets", "VACUUM")
SETTINGS = {"checkpoint.interval": "10s", "checkpoint.retained": "1"}


@dataclass
class Housekeeping:
    """What was done.

    Attributes:
        plans: when each plan of retention began and ended, s since 1970.
        done: how often each kind of action was done, by its name.
    """

    plans: list[tuple[float, float]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """In words."""
        took = sum(end - begin for begin, end in self.plans) / max(1, len(self.plans))
        done = ", ".join(f"{count} {name}" for name, count in sorted(self.done.items()))
        return f"{len(self.plans)} plans of retention, {took:.1f} s each: {done or 'nothing'}"

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
            mock.patch.object(tidying, "VACUUM_EVERY", 0.0),
            mock.patch.object(tidying, "RETAIN", "RETAIN 0 HOURS"),
            noted(retention.Retention, "_clean", planned),
            noted(retention.Retention, "_do", acted),
            noted(tidying.Tidying, "_vacuum", vacuumed),
        ):
            stack.enter_context(patch)
        yield seen
