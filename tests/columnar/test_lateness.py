"""Lateness of whole batches is that of one row after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from absflow.columnar.lateness import late_rows
from absflow.protocol.source_time import observe, start_source

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(-50, 200)), max_size=60)


@given(ROWS, st.integers(0, 30), st.lists(st.integers(1, 20), min_size=1))
def test_batches_say_what_rows_say(
    rows: list[tuple[int, int]], delay: int, sizes: list[int]
) -> None:
    """Over batches of any size; the greatest times are carried from one to the next."""
    source, due = start_source(delay, map(str, range(4))), []
    for partition, time in rows:
        source, late = observe(source, str(partition), [time])
        due += late
    found: list[bool] = []
    newest: dict[int, int] = {}
    turn = 0
    while len(found) < len(rows):
        batch = np.array(rows[len(found) : len(found) + sizes[turn % len(sizes)]], dtype=np.int64)
        late, newest = late_rows(batch[:, 0], batch[:, 1], newest, delay)
        found += late.tolist()
        turn += 1
    assert found == due
    assert {str(p): at for p, at in newest.items()} == {
        p: at for p, at in source.newest.items() if at is not None
    }


def test_the_ends_of_time_do_not_wrap_around() -> None:
    """The least and the greatest int64 are times like others, but the least, which is none yet."""
    ends = np.iinfo(np.int64)
    partitions, times = np.zeros(3, dtype=np.int64), np.array([5, ends.max, ends.max - 7])
    late, newest = late_rows(partitions, times, {}, 6)
    assert late.tolist() == [False, False, True]
    assert newest == {0: ends.max}
    late, _ = late_rows(partitions, np.array([ends.min + 1, -1, ends.max]), newest, 6)
    assert late.tolist() == [True, True, False]
    late, newest = late_rows(partitions[:0], times[:0], newest, 6)
    assert (late.tolist(), newest) == ([], {0: ends.max})
