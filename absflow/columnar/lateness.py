"""Which rows are late: :func:`absflow.protocol.source_time.observe` for arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

__all__ = ["late_rows"]

_NEVER = np.iinfo(np.int64).min


def late_rows(
    partitions: npt.NDArray[np.int64],
    times: npt.NDArray[np.int64],
    newest: Mapping[int, int],
    delay: int,
) -> tuple[npt.NDArray[np.bool_], dict[int, int]]:
    """Look at the next rows of some partitions, each in its own order.

    Costs a sort of the rows, unless they are of one partition, as those of a task over Kafka.

    Args:
        partitions: int64, of each row a number for its partition.
        times: int64, of each row its event time, microseconds since 1970 (UTC).
        newest: of each partition that has brought rows, the greatest event time so far.
        delay: how much older than that a row may be, microseconds.

    Returns:
        Of each row whether it is late; and what ``newest`` is behind them.
    """
    late = np.zeros(len(times), dtype=np.bool_)
    after = dict(newest)
    if not len(times):
        return late, after
    one = partitions[0] == partitions[-1] and bool((partitions == partitions[0]).all())
    order = np.arange(len(times)) if one else np.argsort(partitions, kind="stable")
    grouped = partitions[order]
    begins = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]])
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        rows, partition = order[begin:end], int(grouped[begin])
        before = after.get(partition, _NEVER)
        reached = np.maximum.accumulate(np.r_[before, times[rows]])
        # A row may be further behind than an int64 can say; an unsigned one can.
        behind = reached[:-1].astype(np.uint64) - times[rows].astype(np.uint64)
        past = (reached[:-1] != _NEVER) & (times[rows] < reached[:-1])
        late[rows] = past & (behind > delay)
        after[partition] = int(reached[-1])
    return late, after
