"""Which rows are late: :func:`absflow.protocol.source_time.observe` for arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

__all__ = ["late_by_batch", "late_rows"]

_Times = npt.NDArray[np.int64]
_NEVER = np.iinfo(np.int64).min


def late_rows(
    partitions: _Times,
    times: _Times,
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
        late[rows] = _is_late(times[rows], reached[:-1], delay)
        after[partition] = int(reached[-1])
    return late, after


def late_by_batch(
    partitions: _Times, times: _Times, newest: Mapping[int, int], delay: int
) -> tuple[npt.NDArray[np.bool_], dict[int, int]]:
    """As :func:`late_rows`, where rows come in any order: by what was known before all of them."""
    count = int(partitions.max(initial=-1)) + 1
    before = np.array([newest.get(number, _NEVER) for number in range(count)], dtype=np.int64)
    after = before.copy()
    np.maximum.at(after, partitions, times)
    return _is_late(times, before[partitions], delay), dict(enumerate(after.tolist()))


def _is_late(times: _Times, newest: _Times, delay: int) -> npt.NDArray[np.bool_]:
    """Of each row whether it is late, if ``newest`` is the greatest time that counts for it."""
    # A row may be further behind than an int64 can say; an unsigned one can.
    behind = newest.astype(np.uint64) - times.astype(np.uint64)
    late: npt.NDArray[np.bool_] = (newest != _NEVER) & (times < newest) & (behind > delay)
    return late
