"""What is written of a large key group's recent rows, and how many files they lie in."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_stage_schedules import MemoryFiles

from absflow.columnar.segments import untouched
from absflow.columnar.state import KeyedState
from absflow.columnar.stored import KeyGroupState, load, retire, store
from absflow.errors import PageCorruptError

KEYS, STATE = pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())])
LARGE = 100_000


class Group:
    """A key group with many keys, batch by batch; `written` has the bytes of each batch."""

    def __init__(self):
        self.files, self.kept, self.batch, self.written = MemoryFiles(1000), KeyGroupState(), 0, []
        self.due = {}

    def run(self, keys, *, drop=False):
        """A batch that changes some keys, or deletes them."""
        self.batch += 1
        state, place = self.load(), f"0/{self.batch}"
        touched = state.touched(pa.table({"k": pa.array(keys, pa.int64())}))
        every = np.arange(len(keys))
        if drop:
            state = state.deleted(touched, every, 1)
            self.due = {k: v for k, v in self.due.items() if k not in set(keys)}
        else:
            values = pa.array([self.batch] * len(keys), pa.int64())
            rows = pa.table({"k": touched.table["k"], "v": values})
            state = state.changed(touched, rows, every, 1)
            self.due.update(dict.fromkeys(keys, self.batch))
        there = set(self.files.files)
        after = store(state, self.kept, self.files, place)
        new = set(self.files.files) - there
        self.written.append(sum(len(self.files.files[name]) for name in new))
        self.kept = retire(self.kept, after, self.files, place)

    def load(self) -> KeyedState:
        return load(self.kept, KEYS, STATE, self.files, "state")

    @property
    def values(self):
        rows = pa.Table.from_batches(self.load().live_batches())
        return dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))


def test_a_batch_writes_what_it_changes_and_not_what_others_have_changed():
    """A hundred batches of 200 keys: each key is written one to three times, not fifty times."""
    group = Group()
    group.run(range(LARGE))
    base = group.kept.base
    for number in range(100):
        group.run(range(200 * number, 200 * (number + 1)))
    assert group.kept.base == base
    of_one = group.written[1]
    assert sum(group.written[1:]) < 4.5 * 100 * of_one
    assert len(group.kept.recent.split()) <= 12
    assert group.values == group.due


def test_the_same_keys_again_stay_in_few_files():
    """What was replaced counts no longer, and goes with the files that are taken in."""
    group = Group()
    group.run(range(LARGE))
    for _ in range(60):
        group.run(range(1000))
        assert len(group.kept.recent.split()) <= 9
        assert len(group.load().table) == 1000
    assert group.values == group.due


def test_a_key_that_comes_and_goes_is_not_found_in_the_segment_that_had_it():
    """It leaves no row that would stand for it, so the next segment's head must say so."""
    group = Group()
    group.run(range(LARGE))
    group.run(range(LARGE, LARGE + 500))
    group.run(range(LARGE, LARGE + 100), drop=True)
    assert len(group.kept.recent.split()) == 2
    assert group.values == group.due
    assert len(group.load().table) == 400


def test_segments_are_dropped_when_all_is_merged():
    """A base that is due takes in all of them, and they are deleted a change later."""
    group = Group()
    group.run(range(1000))
    for number in range(1, 7):
        group.run(range(90 * number, 90 * (number + 1)))
    assert group.kept.recent == ""
    group.run(range(1))
    assert set(group.files.files) == {group.kept.base}
    assert group.values == group.due


def test_a_damaged_head_is_found():
    """Each piece has a checksum, and the head is one."""
    group = Group()
    group.run(range(LARGE))
    group.run(range(500))
    group.run(range(600, 700))
    newest = group.kept.recent.split()[-1]
    damaged = bytearray(group.files.files[newest])
    damaged[200] ^= 1
    group.files.files[newest] = bytes(damaged)
    with pytest.raises(PageCorruptError, match=newest):
        group.load()


@given(st.lists(st.integers(0, 50), max_size=400))
def test_there_are_few_segments_and_a_row_is_written_again_as_often_as_the_logarithm(batches):
    """However many rows the batches have."""
    segments, written = [], 0
    for new in batches:
        stay = untouched(segments, new)
        taken = sum(segments[stay:]) + new
        written += taken
        segments = [*segments[:stay], taken]
    total = sum(batches)
    assert sum(segments) == total
    levels = np.log(max(total, 1)) / np.log(4) + 1
    assert len(segments) <= 3 * levels + 2
    assert written <= total * (levels / np.log(4 / 3) * np.log(4) + 1)
