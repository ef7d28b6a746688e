"""What a stage refuses, and what it reports."""

import dataclasses
import random

import pytest
from stage_cases import (
    ROWS,
    Runner,
    abort,
    barrier,
    end,
    filled,
    flipped,
    pages,
    report_of,
    rows_out,
    run,
    stage,
    tags_out,
)

from absflow.columnar.pages import Page, PageKind
from absflow.columnar.stage import Batch, run_range
from absflow.columnar.stored import KeyGroupState
from absflow.errors import PageCorruptError, ProcessError, ProtocolViolation
from absflow.protocol import alignment, alignment_state
from absflow.protocol.alignment import AbortArrived, BarrierArrived, InputEnded
from absflow.protocol.alignment_state import Barrier


def test_a_forwarding_stage_passes_rows_on():
    """No keys, no state: rows go through, held at barriers, and a snapshot is the barrier alone."""
    spec = stage([True, False], process=None)
    runner = Runner(spec)
    out = runner.run(*pages(spec, "a", [("x", "a1"), (None, "a2")]), barrier("a", 1))
    assert rows_out(out, ROWS) == [(1, "x", "a1"), (1, None, "a2")]
    out = runner.run(*pages(spec, "a", [("x", "a3")]), *pages(spec, "b", [("y", "b1")], epoch=1))
    assert rows_out(out, ROWS) == [(1, "y", "b1")]
    out = runner.run(barrier("b", 1), end("a"), end("b"))
    kinds = [page.kind.name for page in out]
    assert kinds == ["BARRIER", "DATA", "END", "REPORT"]
    assert rows_out(out, ROWS) == [(2, "x", "a3")]
    assert runner.stored == KeyGroupState()


@pytest.mark.parametrize("root", [True, False])
def test_a_corrupt_page_is_refused(root):
    """The error names stage, input and key group."""
    spec = stage([root])
    (page,) = pages(spec, "a", [("x", "a1")], epoch=1)
    damaged = dataclasses.replace(page, payload=flipped(page.payload))
    with pytest.raises(PageCorruptError, match="page of stage 'legs', input 'a', key group 0 is"):
        Runner(spec).run(damaged)


def test_a_page_of_another_length_is_refused():
    """A whole page in the place of another is seen by its number of rows."""
    spec = stage([True])
    (page,) = pages(spec, "a", [("x", "a1")])
    with pytest.raises(PageCorruptError, match="has 1 rows where 2 were packed"):
        Runner(spec).run(dataclasses.replace(page, rows=2))


def test_corrupt_state_is_refused():
    """The stored state, as soon as it is needed, and not before."""
    spec = stage([True])
    runner = filled(spec)
    runner.stored = dataclasses.replace(runner.stored, state=flipped(runner.stored.state))
    runner.run(barrier("a", 2, base=1))
    with pytest.raises(PageCorruptError, match="state of stage 'legs', key group 0 is corrupt"):
        runner.run(*pages(spec, "a", [("x", "a1")]))


def test_corrupt_held_pages_are_refused():
    """Both the stored bytes of the held pages, and the bytes of one held page."""
    spec = stage([True, True])
    runner = Runner(spec)
    runner.run(barrier("a", 1))
    (page,) = pages(spec, "a", [("x", "a1")])
    runner.run(dataclasses.replace(page, payload=flipped(page.payload)))
    held = runner.stored
    with pytest.raises(PageCorruptError, match="page of stage 'legs', input 'a'"):
        runner.run(barrier("b", 1))
    runner.stored = dataclasses.replace(held, held=flipped(held.held))
    with pytest.raises(PageCorruptError, match="held pages of stage 'legs', key group 0 is"):
        runner.run(barrier("b", 1))


def test_a_failing_function_stops_the_batch():
    """Its error says where, and nothing is returned that could be committed."""
    spec = stage([True], process=lambda *_: 1 / 0)
    with pytest.raises(
        ProcessError,
        match=r"stage 'legs', input 'a', .*test_stage_reports.py:92 .key group 0.: .*\{'k': 'x'\}",
    ):
        Runner(spec).run(*pages(spec, "a", [("x", "a1")]))


def test_a_barrier_of_an_unknown_input_is_refused():
    """It was written by another graph; the machine says so."""
    with pytest.raises(ProtocolViolation, match="names input 'z', but the stage has"):
        Runner(stage([True])).run(barrier("z", 1))


def test_a_report_is_written_only_with_something_to_say():
    """With a control row or held pages; rows alone need none."""
    spec = stage([True, True])
    runner = Runner(spec)
    assert report_of(runner.run(*pages(spec, "a", [("x", "a1")]))) is None
    assert report_of(runner.run(barrier("a", 1))) is not None
    assert report_of(runner.run()) is None
    assert report_of(runner.run(*pages(spec, "a", [("x", "a2")]))) is not None
    assert report_of(runner.run()) is not None


def test_a_report_says_what_arrived_was_snapshotted_and_held():
    """Each number of it, after a batch that has all of them."""
    spec = stage([True, True])
    runner = Runner(spec)
    runner.run(*pages(spec, "a", [("x", "a1"), ("y", "a2")]), barrier("a", 1, ms=5))
    held = pages(spec, "a", [("x", "a3"), ("z", "a4"), ("x", "a5")])
    runner.run(*held)
    (late,) = pages(spec, "b", [("w", "b1")])
    out = runner.run(late, barrier("b", 1, ms=5), barrier("a", 1, ms=5), barrier("b", 2, ms=6))
    report = report_of(out)
    (snapshot,) = (page for page in out if page.kind is PageKind.STATE)
    assert report["arrived"] == [["a", 1, 5], ["b", 1, 5], ["b", 2, 6]]
    assert report["skipped"] == []
    ((n, rows, size, keys, total, expired_upto),) = report["snapshots"]
    assert expired_upto is None
    assert (n, rows, size, keys) == (1, 3, len(snapshot.payload), 3)
    assert total > 0
    assert (report["held_rows"], report["held_bytes"]) == (0, 0)
    report = report_of(runner.run(*pages(spec, "b", [("y", "b2")])))
    assert report["held_rows"] == 1
    assert report["held_bytes"] > 0
    assert report["arrived"] == report["snapshots"] == []


def test_a_report_names_what_an_input_never_brought():
    """Input b went on to 2 without 1, so 1 cannot be aligned; the abort of 3 is no news."""
    runner = Runner(stage([True, True]))
    out = runner.run(barrier("a", 1), barrier("b", 2), abort(3))
    assert report_of(out)["skipped"] == [1]


def test_the_reported_alignment_is_that_of_the_machine():
    """Dead ids, waiting barriers and the end are in it, snapshots in the same batch or not."""
    spec = stage([True, True])
    runner = Runner(spec)
    one, three = Barrier(1, 0, 0, 10), Barrier(3, 1, 1, 30)
    found = [barrier(name, *dataclasses.astuple(one)) for name in "ab"]
    found += [abort(2), barrier("a", *dataclasses.astuple(three)), *pages(spec, "b", [("x", "b")])]
    events = [BarrierArrived("a", one), BarrierArrived("b", one), AbortArrived(2)]
    due, _ = alignment.run(alignment.start("ab"), [*events, BarrierArrived("a", three)])
    out = runner.run(*found)
    assert [page.checkpoint_id for page in out if page.kind is PageKind.BARRIER] == [1]
    assert runner.align == due
    assert (runner.align.snapshot, runner.align.dead) == (1, {2})
    assert runner.align.inputs["a"].waiting == (three,)
    alignment_state.validate(runner.align)
    due, _ = alignment.run(due, [BarrierArrived("b", three), InputEnded("a"), InputEnded("b")])
    out = runner.run(barrier("b", *dataclasses.astuple(three)), end("a"), end("b"))
    assert [page.kind.name for page in out] == ["BARRIER", "END", "REPORT"]
    assert runner.align == due
    assert runner.align.ended
    assert runner.align.dead == set()


def test_every_key_group_reports_the_same_alignment():
    """Whatever rows it has, for the control rows are the same."""
    spec = stage([True, False])
    control = [barrier("a", 1), barrier("b", 1), abort(2), barrier("b", 3), end("b")]
    alignments = set()
    for rows in ([], pages(spec, "a", [("x", "a1")]), pages(spec, "b", [("x", "b1")], epoch=2)):
        found = [*rows, *control]
        for _ in range(3):
            random.Random(len(alignments)).shuffle(found)
            alignments.add(report_of(Runner(spec).run(*found))["alignment"])
    assert len(alignments) == 1


def test_pages_for_the_driver_pass_a_stage_of_a_chain_untouched():
    """Also where it has no key group of that number: those before it may have more."""
    spec = stage([False])
    handed_on = [
        Page(5, PageKind.STATE, "before", 1, rows=2, payload=b"state"),
        Page(5, PageKind.WRITTEN, "before", 1, rows=2, payload=b"files"),
        Page(5, PageKind.REPORT, "before", payload=b"report"),
    ]
    runner = Runner(spec, key_group=5)
    before = runner.stored
    assert runner.run(*handed_on) == handed_on
    assert runner.stored is before
    out = runner.run(*handed_on, *pages(spec, "a", [("x", "a1")], epoch=1), barrier("a", 1))
    assert out[:3] == handed_on
    assert tags_out(out) == [(1, "a1")]
    assert [(p.kind, p.input) for p in out if p.kind in {PageKind.STATE, PageKind.REPORT}][2:] == [
        (PageKind.STATE, "legs"),
        (PageKind.REPORT, "legs"),
    ]
    restore = [*handed_on, Page(5, PageKind.RESTORE, checkpoint_id=1)]
    batch = Batch(0, 0, alignment.start("a", 1))
    assert run(run_range(spec, batch, restore, b""))[0][:3] == handed_on
