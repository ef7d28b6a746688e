"""The restart strategy: whether and when a stage's dead query is started again.

Exponential delay with a bounded number of attempts in a row (Flink's ``exponential-delay``). A
query that has run long enough since it was last started has earned a clean slate.

>>> policy = RestartPolicy(attempts=2, initial_ms=100, max_ms=150, multiplier=2, reset_after_ms=900)
>>> state, delay = on_failure(policy, Restarts(), started_ms=0, now_ms=10)
>>> delay
100
>>> state, delay = on_failure(policy, state, started_ms=110, now_ms=120)
>>> delay
150
>>> on_failure(policy, state, started_ms=270, now_ms=280)[1] is None
True
>>> on_failure(policy, state, started_ms=270, now_ms=1270)[1]
100
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RestartPolicy", "Restarts", "on_failure"]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The ``restart.*`` settings; times in ms."""

    attempts: int
    initial_ms: int
    max_ms: int
    multiplier: float
    reset_after_ms: int


@dataclass(frozen=True, slots=True)
class Restarts:
    """What is remembered of one stage: its restarts in a row."""

    in_a_row: int = 0


def on_failure(
    policy: RestartPolicy, state: Restarts, started_ms: int, now_ms: int
) -> tuple[Restarts, int | None]:
    """Decide about a query that was started at ``started_ms`` and died at ``now_ms``.

    Returns:
        What to remember, and how long to wait before the restart in ms; None to give up.
    """
    if now_ms - started_ms >= policy.reset_after_ms:
        state = Restarts()
    if state.in_a_row >= policy.attempts:
        return state, None
    delay = min(policy.initial_ms * policy.multiplier**state.in_a_row, policy.max_ms)
    return Restarts(state.in_a_row + 1), int(delay)
