"""State that expires (TTL): a key is forgotten when it was not touched for so long.

When a key was touched last stands in a column of its state. Expiry is a predicate on that column
and nothing that is written: a row of state has expired once a time says so, whoever reads it, in a
micro-batch, in a snapshot, in SQL. So a million keys may expire at once and cost a checkpoint no
byte. What has expired is left out where rows are written anyway.

That needs two rules. The time never goes back, so what has expired stays so. And the newest row of
a key is also the one that was touched last, so what an older set has of a key with an expired row
has expired, too, and no tombstone is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.pages import TIME_TYPE
from absflow.columnar.timers import NEVER, Domain

__all__ = ["TOUCHED", "Expiry", "expired", "last_touched", "touched_times"]

_Ints = npt.NDArray[np.int64]

# When a key was touched last.
TOUCHED = pa.field("_touched", TIME_TYPE)


@dataclass(frozen=True, slots=True)
class Expiry:
    """When the state of a stage's keys expires.

    Attributes:
        after: so long after it was touched, microseconds.
        domain: of which time.
        on_read: rows of a key touch its state also if they do not change it.
    """

    after: int
    domain: Domain
    on_read: bool = False

    def upto(self, watermark: int | None, time_ms: int) -> int | None:
        """What was touched up to then has expired; None if nothing has.

        Args:
            watermark: of the stage, microseconds; None if it has none yet.
            time_ms: of the micro-batch, ms.
        """
        now = watermark if self.domain is Domain.EVENT else time_ms * 1_000
        return None if now is None else now - self.after


def expired(table: pa.Table | pa.RecordBatch, upto: int | None) -> npt.NDArray[np.bool_] | None:
    """Of each row of state whether it has expired; of a tombstone it is false.

    Args:
        table: rows of a state, or of its history.
        upto: what was touched up to then; None if nothing has expired.

    Returns:
        None if none has, for the state does not expire.
    """
    if upto is None or TOUCHED.name not in table.schema.names:
        return None
    times = touched_times(table[TOUCHED.name], NEVER)
    return times <= upto


def touched_times(column: pa.ChunkedArray | pa.Array, never: int) -> _Ints:
    """The column as integers, with ``never`` where there is no time."""
    times: _Ints = pc.fill_null(column.cast(pa.int64()), never).to_numpy(zero_copy_only=False)
    return times


def last_touched(table: pa.Table | pa.RecordBatch) -> int:
    """The greatest time in the column; -:data:`NEVER` if there is none, or no such column."""
    if TOUCHED.name not in table.schema.names:
        return -NEVER
    return int(touched_times(table[TOUCHED.name], -NEVER).max(initial=-NEVER))
