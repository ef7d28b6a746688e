"""At-least-once checkpoints: no row waits, and what a snapshot has too much is counted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from stage_cases import SNAPSHOT, Runner, barrier, pages, report_of, stage, tags_out

from absflow.columnar.pages import Page, PageKind, decode
from absflow.columnar.spec import StageSpec
from absflow.spark.batch.outcome import merge_reports


def spec_of(roots: list[bool]) -> StageSpec:
    return replace(stage(roots), at_least_once=True)


def seen_at(page: Page) -> list[str]:
    """The tags that a snapshot has."""
    rows = decode(page.payload, SNAPSHOT, "snapshot").to_pylist()
    return [tag for row in rows for tag in row["seen"]]


def test_rows_behind_a_barrier_do_not_wait() -> None:
    """They are in the snapshot that comes later, and their number is reported."""
    spec = spec_of([True, True])
    runner = Runner(spec)
    out = runner.run(*pages(spec, "a", [("x", "a1")]), barrier("a", 1))
    assert report_of(out)["early"] == []
    out = runner.run(*pages(spec, "a", [("x", "a2"), ("x", "a3")]))
    assert tags_out(out) == [(1, "a2"), (1, "a3")]
    assert report_of(out)["early"] == [[2, 2]]
    assert report_of(out)["held_rows"] == 0
    out = runner.run(*pages(spec, "b", [("x", "b1")]), barrier("b", 1))
    (snapshot,) = (page for page in out if page.kind is PageKind.STATE)
    assert seen_at(snapshot) == ["a1", "a2", "a3", "b1"]
    assert runner.align.snapshot == 1
    out = runner.run(*pages(spec, "a", [("x", "a4")]))
    assert tags_out(out) == [(2, "a4")]
    assert report_of(out) is None  # nothing is early any more


def test_rows_that_come_before_their_barrier_wait_for_it() -> None:
    """A channel brings them one commit before it; that costs nobody more than that."""
    spec = spec_of([False])
    runner = Runner(spec)
    assert tags_out(runner.run(*pages(spec, "a", [("x", "a2")], epoch=2, first=1))) == []
    assert tags_out(runner.run(barrier("a", 1))) == [(2, "a2")]


@settings(max_examples=300)
@given(st.data())
def test_a_snapshot_has_all_rows_before_it_and_the_early_ones(data: st.DataObject) -> None:
    """Two inputs, one far ahead of the other, several checkpoints in flight."""
    spec = spec_of([True, True])
    runner = Runner(spec)
    newest = {"a": 0, "b": 0}
    before: dict[int, set[str]] = defaultdict(set)
    early: dict[int, int] = {}
    for number in range(data.draw(st.integers(1, 10))):
        given_pages: list[Page] = []
        for name in "ab":
            tags = [f"{name}{number}.{n}" for n in range(data.draw(st.integers(0, 3)))]
            before[newest[name] + 1].update(tags)
            given_pages += pages(spec, name, [("x", tag) for tag in tags])
            for _ in range(data.draw(st.integers(0, 2))):
                newest[name] += 1
                given_pages.append(barrier(name, newest[name]))
                early.setdefault(newest[name], 0)
        out = runner.run(*given_pages)
        assert len(tags_out(out)) == sum(page.rows for page in given_pages)
        report = next((p.payload.decode() for p in out if p.kind is PageKind.REPORT), None)
        if report is None:
            continue
        outcome = merge_reports(spec, [(0, report)])
        for checkpoint_id in early:
            early[checkpoint_id] += outcome.early_rows(checkpoint_id)
        seen: list[str] = []
        for page in out:
            if page.kind is PageKind.STATE:
                seen = seen_at(page)
            elif page.kind is PageKind.BARRIER:
                n = page.checkpoint_id
                due = {tag for epoch, tags in before.items() if epoch <= n for tag in tags}
                assert due <= {*seen}
                assert len(seen) - len(due) == early.pop(n)
        early = {n: rows for n, rows in early.items() if n > outcome.after.snapshot}
