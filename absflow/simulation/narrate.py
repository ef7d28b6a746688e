"""The story of a simulated run: one aligned line per event, and the hard cases it went through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from absflow.simulation.clock import Clock

__all__ = ["Story", "is_interesting", "line"]

# What much goes wrong means: of each line at least one.
_INTERESTING = (
    ("crash before the manifest landed", "crash after the manifest landed"),
    ("batch replayed",),
    ("rows in flight",),
    ("two checkpoints in flight", "more than two checkpoints in flight"),
    ("report lost", "report late", "report duplicate"),
)


def line(now_ms: int, who: str, what: str, checkpoint_id: int | None, detail: str) -> str:
    """One event as a line: when, who, what, of which checkpoint, and the rest.

    >>> line(1250, "stage b", "snapshot", 7, "12 changes")
    '   1250  stage b    snapshot            7  12 changes'
    """
    number = "" if checkpoint_id is None else str(checkpoint_id)
    return f"{now_ms:>7}  {who:<10} {what:<16} {number:>4}  {detail}".rstrip()


class Story:
    """What happened, for people; and how often each hard case did, for *sometimes* properties."""

    def __init__(self, clock: Clock) -> None:
        """Begin an empty story; ``clock`` dates its lines."""
        self._clock = clock
        self.lines: list[str] = []
        self.marks: Counter[str] = Counter()

    def note(self, who: str, what: str, checkpoint_id: int | None = None, detail: str = "") -> None:
        """Add a line."""
        self.lines.append(line(self._clock.now_ms, who, what, checkpoint_id, detail))

    def mark(self, case: str, when: bool = True) -> None:
        """Note that a hard case was reached."""
        if when:
            self.marks[case] += 1


def is_interesting(marks: Mapping[str, int]) -> bool:
    """Whether much of what makes the protocol hard was reached in one world.

    A driver that dies while it finalises, a replayed micro-batch, a barrier that overtakes rows,
    two checkpoints at once, and a report that does not come as it was sent.

    Args:
        marks: how often each hard case was.
    """
    return all(any(marks.get(case) for case in cases) for cases in _INTERESTING)
