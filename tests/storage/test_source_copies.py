"""B: copies of source logs are merged, and a kill at any point leaves every position restorable."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from absflow.errors import StorageError
from absflow.spark.sources import copies
from absflow.spark.sources.copies import entries_of, last_offset, merge, texts
from absflow.spark.sources.file_log import FileEntry, build, text

FOLDER = "positions/attempt=1/left/a"


class Killed(Exception):
    """The driver is gone."""


class Disk:
    """A directory; the process dies before its ``dies_at``-th change of it."""

    def __init__(self) -> None:
        self.there: dict[str, str] = {}
        self.dies_at = math.inf
        self.changes = 0
        self.written = 0

    def names(self, path: str) -> list[str]:
        return sorted(self.there)

    def read(self, path: str) -> str | None:
        return self.there.get(path.rpartition("/")[2])

    def write(self, path: str, text: str) -> None:
        self._change()
        self.there[path.rpartition("/")[2]] = text
        self.written += text.count("\n")

    def delete(self, path: str) -> None:
        self._change()
        self.there.pop(path.rpartition("/")[2], None)

    def _change(self) -> None:
        self.changes += 1
        if self.changes >= self.dies_at:
            raise Killed

    def keep(self, upto: int) -> None:
        """As a checkpoint does: what is new since the last one."""
        after = last_offset(self.there)
        log = [FileEntry(f"file:/{n}", n, n) for n in range(after + 1, upto + 1)]
        self.write(f"{FOLDER}/{upto}", text(log))


def check(disk: Disk, upto: int) -> None:
    """Each position up to ``upto`` can be restored: the log up to it is whole."""
    entries = entries_of(disk, FOLDER)
    assert {entry.batch_id for entry in entries} == set(range(upto + 1))
    assert last_offset(disk.there) == upto
    build(entries, upto, 10)


def test_b_after_a_kill_at_any_change_every_position_is_there() -> None:
    """Merges of one and of two levels, killed twice; the next one ends the work."""
    for count in (10, 13, 100, 107):
        dies_at, killed = 0, True
        kept = Disk()
        for n in range(count):
            kept.keep(n)
        while killed:
            dies_at, killed = dies_at + 1, False
            disk = Disk()
            disk.there, disk.dies_at = dict(kept.there), dies_at
            for _ in range(2):
                try:
                    merge(disk, FOLDER)
                except Killed:
                    check(disk, count - 1)
                    disk.changes, killed = 0, True
            disk.dies_at = math.inf
            disk.keep(count + 4)
            merge(disk, FOLDER)
            check(disk, count + 4)
            assert len(disk.there) < 30
            before = dict(disk.there)
            disk.changes = 0
            merge(disk, FOLDER)
            assert (disk.there, disk.changes) == (before, 0)
        assert dies_at > 10


def test_b_their_number_and_what_is_written_grow_with_the_logarithm() -> None:
    """Of 1,200 checkpoints, each of which wrote what was new since the last."""
    disk = Disk()
    for n in range(1200):
        disk.written = 0
        disk.keep(n)
        assert disk.written == 1
        merge(disk, FOLDER)
        assert len(disk.there) <= 9 * 4
    check(disk, 1199)


@settings(deadline=None)
@given(st.lists(st.integers(1, 7), max_size=60), st.sets(st.integers(0, 60)))
def test_b_whenever_they_are_merged_all_is_there_once(steps: list[int], merges: set[int]) -> None:
    """Checkpoints at any distance, plans of retention at any time."""
    disk, upto = Disk(), -1
    for number, step in enumerate(steps):
        upto += step
        disk.keep(upto)
        if number in merges:
            merge(disk, FOLDER)
            entries = entries_of(disk, FOLDER)
            assert len(entries) == len(set(entries))
        check(disk, upto)


class Moving(Disk):
    """A directory that is merged behind a reader's back, between its look and its read."""

    def names(self, path: str) -> list[str]:
        found = super().names(path)
        if self.pending:
            next(self.pending, None)
        return found

    pending: Iterator[None] = iter(())


def test_b_who_reads_while_files_are_merged_reads_them_anew() -> None:
    """A fork reads the copies of a job that runs."""
    disk = Moving()
    for n in range(25):
        disk.keep(n)

    def once() -> Iterator[None]:
        still = Disk()
        still.there = disk.there
        merge(still, FOLDER)
        yield

    disk.pending = once()
    check(disk, 24)
    assert set(texts(disk, FOLDER)) == {"24.1"}


def test_b_a_damaged_copy_is_not_merged_and_nothing_is_lost() -> None:
    """The error names it; the other files stay."""
    disk = Disk()
    for n in range(12):
        disk.keep(n)
    whole = disk.there["5"]
    disk.there["5"] = whole[:20]
    before = dict(disk.there)
    with pytest.raises(StorageError, match="damaged"):
        merge(disk, FOLDER)
    assert disk.there == before
    disk.there["5"] = whole
    merge(disk, FOLDER)
    check(disk, 11)


def test_b_nothing_is_merged_before_it_is_worth_it() -> None:
    """Nine files stay; and what is no copy is left alone."""
    disk = Disk()
    for n in range(9):
        disk.keep(n)
    disk.there["0.compact"] = "v1"
    before = dict(disk.there)
    merge(disk, FOLDER)
    assert disk.there == before
    assert copies.last_offset(["0.compact", "7", "23.1"]) == 23
