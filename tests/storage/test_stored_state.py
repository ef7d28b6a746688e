"""Files of a key group's state on a store, with a cache on the worker's machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from absflow.columnar.piece_files import part_name
from absflow.columnar.state import KeyedState
from absflow.columnar.stored import KeyGroupState, load, retire, store
from absflow.errors import PageCorruptError, StorageError
from absflow.storage import state_files, stored_state
from absflow.storage.stored_state import StoredStateFiles

KEYS, STATE = pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())])


@dataclass(eq=False)
class Bucket:
    """A store in memory that counts what it is asked, and may hold up or refuse what is written."""

    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    open: threading.Event = field(default_factory=threading.Event)
    refuses: bool = False

    def __post_init__(self) -> None:
        self.open.set()

    def read(self, path: str) -> bytes | None:
        self.asked.append("read")
        return self.files.get(path)

    def write(self, path: str, data: Any) -> None:
        assert self.open.wait(60)
        self.asked.append("write")
        if self.refuses:
            raise StorageError("the bucket is full")
        self.files[path] = bytes(data)

    def create(self, path: str, data: bytes) -> bool:
        raise NotImplementedError

    def exists(self, path: str) -> bool:
        raise NotImplementedError

    def add(self, path: str, data: Any) -> None:
        if path in self.files:
            raise StorageError(f"{path} is there")
        self.write(path, data)

    def names(self, folder: str) -> list[str]:
        self.asked.append("names")
        below = (path.removeprefix(f"{folder}/") for path in self.files if folder in path)
        return sorted(name for name in below if "/" not in name)

    def delete(self, paths: Sequence[str]) -> None:
        if paths:
            self.asked.append("delete")
        for path in paths:
            self.files.pop(path, None)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A worker of its own, whose machine has these directories."""
    other_machine(tmp_path / "one", monkeypatch)
    yield tmp_path / "one" / "absflow-state"


def other_machine(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{local},/nowhere")
    monkeypatch.setattr(state_files, "_seen", type(state_files._seen)())
    monkeypatch.setattr(stored_state, "_open", {})


def files_in(bucket: Bucket) -> StoredStateFiles:
    return StoredStateFiles(bucket, "s3a://bucket/state", 80)


def changed(stored: KeyGroupState, bucket: Bucket, batch: int, keys: range) -> KeyGroupState:
    """One batch, which sets these keys to its number."""
    files = files_in(bucket)
    state: KeyedState = load(stored, KEYS, STATE, files, "state")
    touched = state.touched(pa.table({"k": pa.array(keys, pa.int64())}))
    rows = pa.table({"k": touched.table["k"], "v": pa.array([batch] * len(keys), pa.int64())})
    state = state.changed(touched, rows, np.arange(len(keys)), 1)
    kept = retire(stored, store(state, stored, files, f"0/{batch}"), files, f"0/{batch}")
    files.finish()
    return kept


def values(stored: KeyGroupState, bucket: Bucket) -> dict[int, int]:
    table = load(stored, KEYS, STATE, files_in(bucket), "state").flat().table
    return dict(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))


def test_the_store_has_all_that_a_batch_has_kept(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine the state is the same, after any batch, and is read once."""
    kept, due = KeyGroupState(), {}
    for batch in range(12):
        keys = range(100 if batch % 5 == 0 else batch)
        kept = changed(kept, bucket, batch, keys)
        due |= dict.fromkeys(keys, batch)
        assert {f"s3a://bucket/state/{name}" for name in kept.files} <= set(bucket.files)
        other_machine(tmp_path / f"other-{batch}", monkeypatch)
        bucket.asked.clear()
        for _ in range(2):
            assert values(kept, bucket) == due
        assert bucket.asked == ["read"] * len(kept.files)
    needed = kept.files | set(kept.stale.split())
    assert set(bucket.files) == {f"s3a://bucket/state/{name}" for name in needed}


def test_a_machine_that_has_written_reads_nothing_from_the_store(bucket: Bucket) -> None:
    """Nor is there a request for anything but what is new and what goes; one listing in all."""
    kept = changed(KeyGroupState(), bucket, 0, range(100))
    for batch in range(1, 9):
        kept = changed(kept, bucket, batch, range(20))
    assert "read" not in bucket.asked
    assert bucket.asked.count("names") == 1


def test_what_is_written_is_in_the_store_when_it_is_finished(bucket: Bucket) -> None:
    """Not before: the worker goes on meanwhile."""
    bucket.open.clear()
    files = files_in(bucket)
    name = files.write("0/1-base", [b"some", b"thing"], lambda: "0/1-base-x")
    assert bucket.files == {}
    assert bytes(files.read(name)[0]) == b"something"
    bucket.open.set()
    files.finish()
    assert bucket.files == {"s3a://bucket/state/0/1-base-x": b"something"}


def test_a_batch_that_was_killed_runs_again_where_it_left_files(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same names, and not all of them whole."""
    kept = changed(KeyGroupState(), bucket, 0, range(100))
    killed = changed(kept, bucket, 1, range(50))
    for name in killed.files - kept.files:
        bucket.files[f"s3a://bucket/state/{name}"] = b"a part"
    other_machine(tmp_path / "other", monkeypatch)
    assert changed(kept, bucket, 1, range(50)) == killed
    other_machine(tmp_path / "third", monkeypatch)
    assert values(killed, bucket) == dict.fromkeys(range(50), 1) | dict.fromkeys(range(50, 100), 0)


def test_what_cannot_be_brought_there_fails_the_task(bucket: Bucket) -> None:
    """And nothing is deleted for it."""
    kept = changed(KeyGroupState(), bucket, 0, range(100))
    there = dict(bucket.files)
    bucket.refuses = True
    with pytest.raises(StorageError, match="the bucket is full"):
        for batch in range(1, 9):
            kept = changed(kept, bucket, batch, range(100))
    assert bucket.files == there


def test_the_cache_drops_what_was_not_used_for_longest(
    bucket: Bucket, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is then read from the store."""
    monkeypatch.setattr(stored_state, "CACHE_BYTES", 8000)
    files = files_in(bucket)
    for number in range(20):
        name = f"0/{number}-base"
        files.write(name, [bytes(900)], lambda name=name: name)  # type: ignore[misc]
        assert len(files.read("0/0-base")[0]) == 900
        files.finish()
    sizes = [path.stat().st_size for path in machine.rglob("*") if path.is_file()]
    assert sum(sizes) <= 8000
    assert len(bucket.files) == 20
    bucket.asked.clear()
    assert [len(files.read(f"0/{n}-base")[0]) for n in range(20)] == [900] * 20
    assert bucket.asked == ["read"] * (20 - len(sizes))


def test_parts_of_a_file_are_read_with_it(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request for all; each part's checksum is looked at once for each time it was fetched."""
    files = files_in(bucket)
    files.write("range-0/1-shared", [b"onetwo"], lambda: "range-0/1-shared")
    files.finish()
    one, two = (part_name("range-0/1-shared", at, 3) for at in (0, 3))
    assert not files.read(one)[1]  # this process has written it
    other_machine(tmp_path / "other", monkeypatch)
    bucket.asked.clear()
    for unseen in (True, False):
        found = [files.read(name) for name in (one, two)]
        assert [bytes(data) for data, _ in found] == [b"one", b"two"]
        assert [each for _, each in found] == [unseen, unseen]
    assert bucket.asked == ["read"]
    (kept,) = (path for path in (tmp_path / "other").rglob("1-shared"))
    kept.unlink()  # as the cache does
    assert [files.read(name)[1] for name in (two, one, two)] == [True, True, False]
    assert bucket.asked == ["read", "read"]


def test_damage_on_the_way_is_found(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the checksums of the pieces, and what is gone by its path."""
    kept = changed(KeyGroupState(), bucket, 0, range(100))
    (path,) = bucket.files
    whole = bytearray(bucket.files[path])
    whole[-1] ^= 1
    bucket.files[path] = bytes(whole)
    other_machine(tmp_path / "other", monkeypatch)
    with pytest.raises(PageCorruptError, match="is corrupt: checksum"):
        values(kept, bucket)
    bucket.files.clear()
    other_machine(tmp_path / "third", monkeypatch)
    with pytest.raises(StorageError, match=f"could not read '{path}'.*restore the job"):
        values(kept, bucket)
