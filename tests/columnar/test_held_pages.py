"""Held rows are kept in pieces: added to, not written anew, and read when they are due."""

import dataclasses

import pytest
from stage_cases import Runner, barrier, pages, report_of, rows_out, stage
from test_stage_schedules import MemoryFiles

from absflow.columnar.held import HeldPages
from absflow.columnar.pages import Page, PageKind
from absflow.columnar.stored import KeyGroupState
from absflow.errors import PageCorruptError


class Watched(MemoryFiles):
    """Notes which files are read."""

    def read(self, name):
        seen.append(name)
        return super().read(name)


seen: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_seen():
    seen.clear()


def tags(number):
    """The rows that a batch brings on input "a": more than what is kept inline."""
    return [(f"k{n}", f"a{number}-{n}".ljust(60, "x")) for n in range(20)]


def test_what_is_held_is_added_to_and_read_when_it_is_due():
    """Each batch writes what it holds; what was held before is neither read nor written again."""
    spec = stage([False, False])
    files = Watched(100)
    runner, whole = Runner(spec, files=files, page_bytes=500), Runner(spec)
    for each in (runner, whole):
        each.run(*pages(spec, "a", [("k0", "before")], epoch=1), barrier("a", 1))
    before, rows, sizes = set(files.files), 0, 0
    for number in range(30):
        found = pages(spec, "a", tags(number), epoch=2, first=1 + 20 * number)
        written = set(files.files)
        rows, sizes = rows + 20, sizes + sum(len(page.payload) for page in found)
        for each in (runner, whole):
            report = report_of(each.run(*found))
            assert (report["held_rows"], report["held_bytes"]) == (rows, sizes)
        assert written < set(files.files)
        assert len(files.files) == len(written) + 1
        assert len(runner.stored.held) <= 1000
    assert seen == []
    out, due = runner.run(barrier("b", 1)), whole.run(barrier("b", 1))
    assert rows_out(out) == rows_out(due)
    assert len(rows_out(out)) == 600
    assert runner.state == whole.state
    held = set(files.files) - before - runner.stored.files
    assert set(runner.stored.stale.split()) >= held
    assert not runner.stored.held_counts
    runner.run(*pages(spec, "a", [("k0", "after")], epoch=2, first=700))
    assert not held & set(files.files)


def test_what_is_not_due_yet_is_held_on():
    """Of rows behind two barriers those before the second go with the first, the rest later."""
    spec = stage([False, False])
    files = Watched(100)
    runner, whole = Runner(spec, files=files), Runner(spec)
    for each in (runner, whole):
        each.run(barrier("a", 1), *pages(spec, "a", tags(0), epoch=2))
        each.run(barrier("a", 2), *pages(spec, "a", tags(1), epoch=3, first=20))
        assert report_of(each.run())["held_rows"] == 40
    for n in (1, 2):
        out, due = runner.run(barrier("b", n)), whole.run(barrier("b", n))
        assert rows_out(out) == rows_out(due)
        assert len(rows_out(out)) == 20
        assert runner.state == whole.state
        assert report_of(out)["held_rows"] == report_of(due)["held_rows"] == 20 * (2 - n)


def test_a_damaged_file_of_held_pages_is_refused():
    """When it is read, with its name."""
    spec = stage([False, False])
    files = MemoryFiles(100)
    runner = Runner(spec, files=files)
    runner.run(barrier("a", 1), *pages(spec, "a", tags(0), epoch=2))
    (name,) = runner.stored.held_files.split()
    files.files[name] = files.files[name][:-1] + b"?"
    with pytest.raises(
        PageCorruptError, match=f"held pages of stage 'legs', key group 0, {name} is"
    ):
        runner.run(barrier("b", 1))


def test_few_held_pages_lie_inline():
    """And go into a file with those that make them too many."""
    files = MemoryFiles(100)
    page = Page(0, PageKind.DATA, "a", 5, rows=1, payload=b"x" * 40)
    kept = KeyGroupState()
    for number, (inline, count) in enumerate([(True, 0), (True, 0), (False, 1), (True, 1)]):
        new = dataclasses.replace(page, seq=number)
        kept = HeldPages(kept, [new], files, "held").keep(f"0-{number}", 1000)
        assert (bool(kept.held), len(kept.held_files.split())) == (inline, count)
    waiting = HeldPages(kept, [], files, "held")
    assert waiting.counts == (4, 160)
    assert waiting.take({"a": 4}) == []
    assert sorted(p.seq for p in waiting.take({"a": 5})) == [0, 1, 2, 3]
    assert waiting.keep("0-4", 1000) == KeyGroupState()
