"""What stands in the sources and channels of a simulated world."""

from __future__ import annotations

from dataclasses import dataclass

from absflow.protocol.alignment_state import Barrier
from absflow.protocol.watermarks import Watermark
from absflow.simulation.job import Row

__all__ = ["End", "Fired", "Item", "Output", "Sent", "SentWatermark", "Value"]

Value = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Sent:
    """A row in a channel."""

    epoch: int
    row: Row


@dataclass(frozen=True, slots=True)
class Fired:
    """What a stage says of a window when its timer fires; nobody reads it but the checkers."""

    epoch: int
    key: int
    end: int
    value: Value


@dataclass(frozen=True, slots=True)
class SentWatermark:
    """A watermark in a channel."""

    watermark: Watermark

    @property
    def epoch(self) -> int:
        """That of the watermark."""
        return self.watermark.epoch


@dataclass(frozen=True, slots=True)
class End:
    """The last item of an input."""


Output = Sent | Fired | SentWatermark | Barrier | End
Item = Row | Output
