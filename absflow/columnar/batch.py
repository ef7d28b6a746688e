"""What a stage's micro-batch is to its tasks, and what they say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from absflow.protocol.alignment_state import Alignment
from absflow.protocol.event_time import EventTime

__all__ = ["Batch", "RangeWork", "Snapshot"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The micro-batch, as every task of it knows it.

    Attributes:
        batch_id: Spark's number of the batch; a replay has the same.
        time_ms: the batch's time, ms since 1970 (UTC); a replay has the same.
        alignment: the stage's alignment before the batch.
        time: its event time before the batch; None if it has none.
        take_changes: is given what snapshots hold, in the place of STATE pages: the key group, the
            checkpoint and rows of :func:`~absflow.columnar.state.snapshot_schema`; None for pages.
    """

    batch_id: int
    time_ms: int
    alignment: Alignment
    time: EventTime | None = None
    take_changes: Callable[[int, int, pa.RecordBatch], None] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one key group says of one snapshot, inside its REPORT page.

    All say the same of ``expired_upto``: state that was touched last up to then had expired.
    """

    checkpoint_id: int
    rows_changed: int
    bytes_changed: int
    keys_total: int
    bytes_total: int
    expired_upto: int | None = None


@dataclass(slots=True)
class RangeWork:
    """What the key groups of a range have come to together.

    Attributes:
        late_emitted: rows that they have emitted behind the stage's own watermark.
        most: of each domain so many timers fire in a key group; None for all that are due.
        pending: the first timer in event time that is due and has not fired, microseconds since
            1970 (UTC), at each checkpoint whose snapshot was taken; behind the micro-batch, by 0.
        left: whether timers of any domain are due behind the micro-batch.
    """

    late_emitted: int = 0
    most: int | None = None
    pending: dict[int, int] = field(default_factory=dict)
    left: bool = False

    def note_pending(self, time: int, checkpoint_id: int = 0) -> None:
        """A key group has a timer at this time that is due."""
        self.pending[checkpoint_id] = min(time, self.pending.get(checkpoint_id, time))
