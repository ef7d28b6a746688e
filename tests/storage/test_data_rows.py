"""A part of a data file, fetched by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from absflow.storage.delta import data_files, data_rows
from absflow.storage.delta.data_rows import UnreadableFileError, Within, rows_of
from absflow.storage.state_history import row_groups
from absflow.storage.stores.mounted import MountedStore

GROUPS, ROWS = 12, 300_000
SCHEMA = pa.schema([("key_group", pa.int32()), ("k", pa.int64()), ("text", pa.string())])
METADATA = {"partitionColumns": [], "configuration": {}}


class Counting(MountedStore):
    """Counts the bytes that are read; each method of a store is its own."""

    fetched = 0

    def read(self, path: str) -> bytes | None:
        data = super().read(path)
        Counting.fetched += len(data or b"")
        return data

    def read_part(self, path: str, begin: int, size: int) -> bytes | None:
        Counting.fetched += size
        return super().read_part(path, begin, size)


@pytest.fixture(scope="module")
def file() -> bytes:
    """Rows by key groups, as a set has them."""
    chance = np.random.default_rng(7)
    groups = np.sort(chance.integers(0, GROUPS, ROWS)).astype(np.int32)
    keys = chance.integers(0, 1 << 60, ROWS)
    rows = pa.record_batch([groups, keys, [f"text {n}" for n in keys]], schema=SCHEMA)
    found: list[bytes] = []

    def create(_: str, data: pa.Buffer) -> None:
        found.append(data.to_pybytes())

    made = data_files.write([rows], SCHEMA, METADATA, "snappy", "4.2.0", create, row_groups)
    assert sum(1 for _ in made) == 1
    return found[0]


def rows_in(path: Path, within: Within | None, size: int) -> pa.Table:
    found = rows_of(Counting(), f"file:{path}", SCHEMA, within, size=size)
    return pa.Table.from_batches(found, SCHEMA)


@pytest.mark.parametrize("tail", [100, 1 << 16])
def test_no_more_is_fetched_than_row_groups_that_are_wanted(
    tmp_path: Path, file: bytes, monkeypatch: pytest.MonkeyPatch, tail: int
) -> None:
    """And the footer, by a second request where it is long; the rows are those of the whole."""
    monkeypatch.setattr(data_rows, "_TAIL_BYTES", tail)
    path = tmp_path / "file"
    path.write_bytes(file)
    for least, most in ((0, 0), (3, 5), (GROUPS - 1, 99), (0, 99), (GROUPS, 99)):
        within = Within("key_group", least, most)
        Counting.fetched = 0
        found = rows_in(path, within, len(file))
        part = Counting.fetched
        assert found.equals(rows_in(path, within, 0))
        share = len({*range(GROUPS)} & {*range(least, most + 1)}) / GROUPS
        assert part < len(file) * (share + 0.2) + (1 << 17)
    assert rows_in(path, None, len(file)).num_rows == ROWS


def test_a_file_that_is_not_what_it_was_is_read_whole_and_named(
    tmp_path: Path, file: bytes
) -> None:
    """Wherever it ends, and whatever stands in the place of its footer."""
    path, within = tmp_path / "file", Within("key_group", 2, 2)
    for damaged in (file[:-1], file[: len(file) // 2], b"", bytes(len(file)), b"P" * len(file)):
        path.write_bytes(damaged)
        with pytest.raises(UnreadableFileError, match="cannot be read"):
            rows_in(path, within, len(file))
    middle = len(file) // 2
    path.write_bytes(file[:middle] + bytes([file[middle] ^ 1]) + file[middle + 1 :])
    with pytest.raises(UnreadableFileError, match="cannot be read"):
        rows_in(path, Within("key_group", 0, 99), len(file))
    path.unlink()
    with pytest.raises(UnreadableFileError, match="is gone"):
        rows_in(path, within, len(file))
