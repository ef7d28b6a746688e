"""What goes wrong in a simulated world, and how often.

A rate is the probability that one opportunity goes wrong. ``crash`` and ``death`` have one
opportunity before each step of the world, so they fall between any two writes; the others have one
per write or message. After ``quiet_ms`` nothing goes wrong any more, so that a world can be asked
to come to its end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

from absflow.simulation.clock import Clock

__all__ = ["Faults", "Rates", "draw_rates"]


@dataclass(frozen=True, slots=True)
class Rates:
    """One rate per kind of fault.

    Attributes:
        crash: the driver is killed with everything in its memory, and started again.
        crash_finalising: the same, while a manifest is being committed.
        death: a stage's query dies; the driver lives on and starts it again.
        death_reporting: the same, while a stage is between its writes and Spark's own commit.
        report_lost: a report never reaches the coordinator.
        report_repeated: a report reaches it twice.
        report_late: a report takes longer than a checkpoint may take.
        failure_lost: word of a failed checkpoint never reaches the coordinator.
        trigger_failed: writing a barrier row raises; the row may have landed all the same.
        append_failed: appending to a history raises; the set may have landed all the same.
        append_swallowed: appending to a history returns, but nothing has landed.
        append_slow: appending takes longer than a checkpoint may take.
        completion_failed: committing a manifest raises; it may have landed all the same.
        end_repeated: an END row is written twice.
        batch_slow: a micro-batch takes ten times as long.
        stop: a person stops the job, and starts it again later.
        savepoint: a person asks for a savepoint.
        stop_with_savepoint: a person asks for one that is to stop the job.
    """

    crash: float = 0.0
    crash_finalising: float = 0.0
    death: float = 0.0
    death_reporting: float = 0.0
    report_lost: float = 0.0
    report_repeated: float = 0.0
    report_late: float = 0.0
    failure_lost: float = 0.0
    trigger_failed: float = 0.0
    append_failed: float = 0.0
    append_swallowed: float = 0.0
    append_slow: float = 0.0
    completion_failed: float = 0.0
    end_repeated: float = 0.0
    batch_slow: float = 0.0
    stop: float = 0.0
    savepoint: float = 0.0
    stop_with_savepoint: float = 0.0


# The most that a drawn world can have; above it hardly any checkpoint would complete.
_HIGHEST = Rates(
    crash=0.0015,
    crash_finalising=0.03,
    death=0.002,
    death_reporting=0.01,
    report_lost=0.08,
    report_repeated=0.15,
    report_late=0.08,
    failure_lost=0.5,
    trigger_failed=0.15,
    append_failed=0.08,
    append_swallowed=0.04,
    append_slow=0.06,
    completion_failed=0.2,
    end_repeated=0.5,
    batch_slow=0.1,
    stop=0.0006,
    savepoint=0.008,
    stop_with_savepoint=0.001,
)


def draw_rates(dice: random.Random) -> Rates:
    """Rates of one world: each fault is absent, rare or frequent, so that pairs of them occur."""
    severity = {f.name: dice.choice((0.0, 0.0, 0.3, 1.0)) for f in fields(Rates)}
    return Rates(**{name: s * getattr(_HIGHEST, name) for name, s in severity.items()})


class Faults:
    """Throws the dice for every opportunity to go wrong."""

    def __init__(self, rates: Rates, quiet_ms: int, dice: random.Random, clock: Clock) -> None:
        """Faults at ``rates`` until ``quiet_ms``."""
        self._rates = rates
        self._quiet_ms = quiet_ms
        self._dice = dice
        self._clock = clock

    @property
    def active(self) -> bool:
        """Whether anything may still go wrong."""
        return self._clock.now_ms < self._quiet_ms

    def strike(self, kind: str) -> bool:
        """Whether this opportunity goes wrong."""
        rate: float = getattr(self._rates, kind)
        return rate > 0 and self.active and self._dice.random() < rate
