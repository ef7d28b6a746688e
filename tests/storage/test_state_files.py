"""Files of a key group's state on a real file system."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from absflow.columnar.piece_files import part_name
from absflow.columnar.state import KeyedState
from absflow.columnar.stored import KeyGroupState, load, retire, store
from absflow.errors import PageCorruptError, StorageError
from absflow.storage import state_files
from absflow.storage.state_files import MountedStateFiles

KEYS, STATE = pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())])


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No file has been seen by this process."""
    monkeypatch.setattr(state_files, "_seen", type(state_files._seen)())
    yield


@pytest.fixture
def files(tmp_path: Path) -> MountedStateFiles:
    """Two rows of state, 41 bytes, are too many to be kept inline."""
    return MountedStateFiles(str(tmp_path / "state"), 80)


def put(state: KeyedState, keys: range, value: int) -> KeyedState:
    """A value for each of the keys, in epoch 1."""
    touched = state.touched(pa.table({"k": pa.array(keys, pa.int64())}))
    rows = pa.table({"k": touched.table["k"], "v": pa.array([value] * len(keys), pa.int64())})
    return state.changed(touched, rows, np.arange(len(keys)), 1)


def values(stored: KeyGroupState, files: MountedStateFiles) -> dict[int, int]:
    """The state as it is read again."""
    table = load(stored, KEYS, STATE, files, "state").flat().table
    return dict(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))


def names(files: MountedStateFiles) -> set[str]:
    """All that lies there, hidden files too."""
    there = Path(files.directory)
    return {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}


def changed(
    stored: KeyGroupState, files: MountedStateFiles, batch: int, keys: range
) -> KeyGroupState:
    """One batch."""
    state = put(load(stored, KEYS, STATE, files, "state"), keys, batch)
    place = f"0/{batch}"
    return retire(stored, store(state, stored, files, place), files, place)


def test_state_wanders_from_inline_to_files_and_is_merged(files: MountedStateFiles) -> None:
    """Small: inline. Large: a base; then recent rows, inline and in a file; then a new base.

    A file stays for one change behind its last use.
    """
    first = changed(KeyGroupState(), files, 0, range(1))
    assert first.state
    assert not Path(files.directory).exists()
    second = changed(first, files, 1, range(100))
    assert (second.state, second.recent, names(files)) == (b"", "", {second.base})
    third = changed(second, files, 2, range(1))
    assert (third.base, third.recent, bool(third.state)) == (second.base, "", True)
    fourth = changed(third, files, 3, range(20))
    assert (fourth.base, names(files)) == (second.base, {fourth.base, fourth.recent})
    fifth = changed(fourth, files, 4, range(60))
    assert (fifth.recent, set(fifth.stale.split())) == ("", {second.base, fourth.recent})
    assert names(files) == {fifth.base, *fifth.stale.split()}
    assert values(fourth, files) == {k: 3 if k < 20 else 1 for k in range(100)}
    sixth = changed(fifth, files, 5, range(1))
    assert (names(files), sixth.stale) == ({fifth.base}, "")
    due = {k: 4 if k < 60 else 1 for k in range(100)} | {0: 5}
    assert values(sixth, files) == due
    assert (sixth.live_keys, fifth.live_keys) == (100, 100)


def referred(stored: KeyGroupState) -> set[str]:
    """The files that a key group reads its state from."""
    return {stored.base, *stored.recent.split()} - {""}


@pytest.mark.parametrize("seed", range(8))
def test_a5_what_batches_that_ran_again_have_left_goes(files: MountedStateFiles, seed: int) -> None:
    """Each runs several times, with other rows each time; what a replay needs is always there."""
    random = np.random.default_rng(seed)
    kept = KeyGroupState()
    for batch in range(30):
        tries = []
        for _ in range(random.integers(1, 4)):
            state = load(kept, KEYS, STATE, files, "state")  # as the batch before has left it
            keys, value = range(int(random.integers(1, 60))), int(random.integers(1000))
            after = store(put(state, keys, value), kept, files, f"0/{batch}")
            tries.append(retire(kept, after, files, f"0/{batch}"))
            assert referred(kept) <= names(files)
            assert values(tries[-1], files)
        kept = tries[random.integers(len(tries))]
        assert referred(kept) <= names(files)
        if batch % 7 == 0:  # a worker is killed while it writes
            (Path(files.directory, "0") / f".{batch}-base-x-y").write_bytes(b"half")
    for batch in (30, 31):
        kept = changed(kept, files, batch, range(59))
    batches = {name: int(name.partition("/")[2].lstrip(".").split("-")[0]) for name in names(files)}
    earlier = {name for name, batch in batches.items() if batch < 31}
    assert earlier <= referred(kept) | set(kept.stale.split())


def test_what_is_read_shares_the_memory_of_the_file(files: MountedStateFiles) -> None:
    """A base is mapped, not copied: Arrow has allocated nothing for it."""
    stored = changed(KeyGroupState(), files, 0, range(100_000))
    before = pa.total_allocated_bytes()
    state = load(stored, KEYS, STATE, files, "state")
    assert state.base is not None
    assert state.base.nbytes > 1_000_000
    assert pa.total_allocated_bytes() - before < 10_000


def flip(path: Path) -> None:
    """One bit of the last byte."""
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)


def test_a_damaged_file_is_found_by_a_process_that_reads_it_first(
    files: MountedStateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its checksum, with its name; a checksum is not computed anew for each batch."""
    stored = changed(KeyGroupState(), files, 0, range(100))
    monkeypatch.setattr(state_files, "_seen", type(state_files._seen)())
    assert files.read(stored.base)[1]
    assert not files.read(stored.base)[1]
    monkeypatch.setattr(state_files, "_seen", type(state_files._seen)())
    flip(Path(files.directory, stored.base))
    with pytest.raises(PageCorruptError, match=f"state, {stored.base} is corrupt: checksum"):
        load(stored, KEYS, STATE, files, "state")


def test_each_part_of_a_file_is_looked_at(
    files: MountedStateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the process that reads it first; what it has written itself it knows."""
    name = files.write("range-0/1-shared", [b"onetwo"], lambda: "range-0/1-shared")
    one, two = (part_name(name, at, 3) for at in (0, 3))
    assert not files.read(two)[1]
    monkeypatch.setattr(state_files, "_seen", type(state_files._seen)())
    found = [files.read(part) for part in (one, two, one, two)]
    assert [bytes(data) for data, _ in found] == [b"one", b"two"] * 2
    assert [unseen for _, unseen in found] == [True, True, False, False]
    with pytest.raises(PageCorruptError, match=r"the file has 6 bytes; restore the job"):
        files.read(part_name(name, 3, 4))


def test_a_file_that_is_gone_is_told_by_its_path(files: MountedStateFiles) -> None:
    """With what to do about it."""
    stored = changed(KeyGroupState(), files, 0, range(100))
    files.delete(stored.base)
    files.delete(stored.base)
    with pytest.raises(StorageError, match=f"{stored.base}.*restore the job"):
        load(stored, KEYS, STATE, files, "state")


def test_a_directory_that_cannot_be_written_is_told_by_its_path(tmp_path: Path) -> None:
    """A file stands in its place."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/state'.*must name a place"):
        changed(
            KeyGroupState(), MountedStateFiles(str(tmp_path / "file" / "state"), 0), 0, range(9)
        )


def test_only_so_many_names_are_remembered(
    files: MountedStateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest one is forgotten first."""
    monkeypatch.setattr(state_files, "_MOST_SEEN", 2)
    for name in "abc":
        files.write(name, [b"x"], name.lower)
    seen: dict[str, Any] = {name: files.read(name)[1] for name in "cba"}
    assert seen == {"c": False, "b": False, "a": True}
