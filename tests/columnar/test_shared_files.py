"""What the key groups of a range write in a micro-batch goes into one file together."""

import random

import pyarrow as pa
import pytest
from stage_cases import pages, run, stage, state_of
from test_stage_schedules import MemoryFiles

from absflow.columnar import shared_files
from absflow.columnar.piece_files import check_pieces, file_of, part_of
from absflow.columnar.shared_files import SharedFiles
from absflow.columnar.stage import Batch, run_range
from absflow.columnar.stored import KeyGroupState, in_range
from absflow.errors import PageCorruptError
from absflow.protocol import alignment

GROUPS = 4


class Range:
    """The key groups of a range, whose state lies in files from the first row on."""

    def __init__(self, files, folder="range-0"):
        self.spec, self.files, self.folder = stage([True], key_groups=GROUPS), files, folder
        self.kept, self.number = b"", 0

    def batch(self, keys, *, committed=True):
        """One of rows with these keys; what it emits, and the files that it has written."""
        before = set(self.files.files)
        batch = Batch(self.number, 0, alignment.start("a"))
        found = pages(self.spec, "a", [(k, f"{self.number}-{n}") for n, k in enumerate(keys)])
        out, kept = run(run_range(self.spec, batch, found, self.kept, self.files, 500, self.folder))
        if committed:
            self.kept, self.number = kept, self.number + 1
        return out, set(self.files.files) - before

    @property
    def states(self):
        return in_range(self.kept, "range") if self.kept else {}

    @property
    def rows(self):
        files = self.files
        return {n: state_of(self.spec, kept, files) for n, kept in self.states.items()}

    @property
    def named(self):
        kept = self.states.values()
        return {file_of(name) for s in kept for name in (*s.files, *s.stale.split())}


@pytest.mark.parametrize("seed", range(5))
def test_a_micro_batch_writes_one_file_and_what_nobody_names_goes(seed):
    """The state is that of key groups without files, whatever batches are run twice."""
    dice = random.Random(seed)
    shared, alone = Range(MemoryFiles(0)), Range(MemoryFiles(1 << 40))
    for _ in range(40):
        keys = [f"k{dice.randrange(300)}" for _ in range(dice.choice([1, 10, 200]))]
        if dice.random() < 0.2:
            shared.batch(keys[1:], committed=False)  # killed: what it has written stays
        out, written = shared.batch(keys)
        assert len(written) == 1
        assert out == alone.batch(keys)[0]
        assert shared.rows == alone.rows
        assert shared.named <= set(shared.files.files)
        left = set(shared.files.files) - shared.named
        assert all(name.startswith(f"range-0/{shared.number - 1}-") for name in left)
    shared.batch(["last"])
    assert set(shared.files.files) == shared.named
    assert alone.files.files == {}


@pytest.mark.parametrize("seed", range(10))
def test_of_a_batch_that_is_run_twice_either_may_be_kept(seed):
    """Where a rename does not replace a file, Spark's store has the first, and the worker the last.

    Those that come are run on what the worker has; after a kill, on what the store has.
    """
    dice = random.Random(seed)
    shared, alone = Range(MemoryFiles(0)), Range(MemoryFiles(1 << 40))
    stored = {0: b""}
    for _ in range(40):
        keys = [f"k{dice.randrange(300)}" for _ in range(dice.choice([1, 10, 200]))]
        while dice.random() < 0.3:  # its state is in the store, and then comes the kill
            shared.batch(keys)
            stored.setdefault(shared.number, shared.kept)
            shared.number -= 1
            shared.kept = stored[shared.number]
        shared.batch(keys), alone.batch(keys)
        stored.setdefault(shared.number, shared.kept)
        assert shared.rows == alone.rows


def test_the_file_of_a_batch_is_named_by_what_is_in_it():
    """The same, if it is run again, though it is first known when the last part is there."""
    work = Range(MemoryFiles(0))
    work.batch(["x", "y", "z"])
    _, first = work.batch(["x", "y", "w"], committed=False)
    _, again = work.batch(["x", "y", "w"], committed=False)
    _, other = work.batch(["x", "y", "v"])
    assert len(first) == len(other) == 1 and again == set()
    assert first != other and first < set(work.files.files)


def test_a_file_stays_for_the_key_group_that_does_not_change():
    """It goes when that one has let it go as well, and its next change is written."""
    work = Range(MemoryFiles(0))
    work.batch([f"k{n}" for n in range(200)])
    (first,) = work.files.files
    quiet = next(n for n in work.states if len(work.states) > 1)
    loud = [k for n, rows in work.rows.items() if n != quiet for k in rows]
    mine = list(work.rows[quiet])
    for _ in range(10):
        work.batch(loud)
    assert first in work.files.files
    for _ in range(3):
        work.batch(mine)
    assert first not in work.files.files
    assert sum(map(len, work.rows.values())) == 200


def test_what_is_large_has_a_file_of_its_own(monkeypatch):
    """It goes with its key group's next base, whatever the others do."""
    monkeypatch.setattr(shared_files, "PART_BYTES", 2000)
    work, alone = Range(MemoryFiles(0)), Range(MemoryFiles(1 << 40))
    few, many = ["x"], [f"k{n}" for n in range(400)]
    assert {name.partition("/")[0] for name in work.batch(many)[1]} == set("0123")
    assert {name.partition("/")[0] for name in work.batch(few)[1]} == {"range-0"}
    alone.batch(many), alone.batch(few)
    assert work.rows == alone.rows


def test_a_shared_file_is_bounded(monkeypatch):
    """The parts wait in memory."""
    monkeypatch.setattr(shared_files, "FILE_BYTES", 1)
    work = Range(MemoryFiles(0))
    assert len(work.batch([f"k{n}" for n in range(100)])[1]) == GROUPS
    assert sum(map(len, work.rows.values())) == 100


def test_ranges_have_folders_of_their_own():
    """None sweeps what another one has written."""
    files = MemoryFiles(0)
    one, other = Range(files, "range-0"), Range(files, "range-10")
    other.batch(["x", "y"])
    for _ in range(5):
        one.batch(["x", "y"])
    assert other.named <= set(files.files)
    assert sum(map(len, other.rows.values())) == 2


def test_shared_files_are_files_of_pieces():
    """So that ``absflow verify`` sees a flipped bit of any part, and a reader of that part."""
    work = Range(MemoryFiles(0))
    work.batch([f"k{n}" for n in range(100)])
    ((name, data),) = work.files.files.items()
    check_pieces(pa.py_buffer(data), name)
    for kept in work.states.values():
        part = kept.base.rpartition("#")[2]
        at, size = map(int, part.split("+"))
        damaged = bytearray(data)
        damaged[at + size // 2] ^= 1
        work.files.files[name] = bytes(damaged)
        with pytest.raises(PageCorruptError):
            check_pieces(pa.py_buffer(bytes(damaged)), name)
        with pytest.raises(PageCorruptError, match="state, range-0/"):
            state_of(work.spec, kept, work.files)
        work.files.files[name] = data[: at + size - 1]
        with pytest.raises(PageCorruptError, match="the file has"):
            state_of(work.spec, kept, work.files)
        work.files.files[name] = data


def test_a_name_of_a_whole_file_is_itself():
    """Also if it looks a little like a part of one."""
    for name in ("3/7-base-00112233", "a#b/3/7-base", "x#1+2/3", "x#1+", "x#+2", "x#1"):
        assert file_of(name) == name
        assert part_of(pa.py_buffer(b"bytes"), name) == pa.py_buffer(b"bytes")
    assert file_of("a#b/x#1+2") == "a#b/x"
    assert part_of(pa.py_buffer(b"bytes"), "a#b/x#1+2").to_pybytes() == b"yt"


def test_nothing_is_written_before_the_last_key_group():
    """And nothing of what was not made whole."""
    files = MemoryFiles(0)
    shared = SharedFiles(files, "range-0", 7)

    def failing():
        yield b"one"
        raise ValueError("no more")

    first = shared.write("0/7", [b"be", b"fore"], lambda: "0/7-x")
    with pytest.raises(ValueError, match="no more"):
        shared.write("1/7", failing(), lambda: "1/7-x")
    assert files.files == {}
    named = shared.close({}, {0: KeyGroupState(base=first)})
    assert files.read(named[0].base)[0].to_pybytes() == b"before"
