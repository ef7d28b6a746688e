"""One key group in one micro-batch: the consistent cut, and nothing lost, doubled or reordered."""

import dataclasses
import itertools

from stage_cases import (
    SNAPSHOT,
    Runner,
    abort,
    barrier,
    end,
    pages,
    report_of,
    stage,
    table,
    tags_out,
)

from absflow.columnar.pages import PageKind, decode, encode
from absflow.columnar.state import DELETED


def test_rows_behind_a_barrier_wait_for_the_other_input():
    """Held over several batches, they are in no snapshot they do not belong to, and come once."""
    spec = stage([True, True])
    runner = Runner(spec)
    runner.run(*pages(spec, "a", [("x", "a1")]), barrier("a", 1))
    assert tags_out(runner.run(*pages(spec, "a", [("x", "a2")]))) == []
    out = runner.run(*pages(spec, "a", [("x", "a3")]), *pages(spec, "b", [("x", "b1")]))
    assert tags_out(out) == [(1, "b1")]
    assert report_of(out)["held_rows"] == 2
    out = runner.run(*pages(spec, "b", [("x", "b2")]), barrier("b", 1))
    assert tags_out(out) == [(1, "b2"), (2, "a2"), (2, "a3")]
    (snapshot,) = (page for page in out if page.kind is PageKind.STATE)
    assert decode(snapshot.payload, SNAPSHOT, "snapshot").to_pylist() == [
        {"k": "x", "n": 3, "seen": ["a1", "b1", "b2"], DELETED: False}
    ]
    assert runner.state == {"x": (5, ["a1", "b1", "b2", "a2", "a3"])}
    assert not runner.stored.held_counts


def test_held_rows_of_a_source_stay_before_later_ones():
    """Page numbers begin anew in each batch; an older batch comes first all the same."""
    spec = stage([True, True])
    runner = Runner(spec)
    runner.run(barrier("a", 1))
    first, second = (pages(spec, "a", [("x", f"a{task}")], partition=task)[0] for task in range(2))
    runner.run(second, first)
    runner.run(*pages(spec, "a", [("x", "a2")]))
    out = runner.run(*pages(spec, "a", [("x", "a3")]), barrier("b", 1))
    assert tags_out(out) == [(2, "a0"), (2, "a1"), (2, "a2"), (2, "a3")]


def test_rows_that_overtook_their_barrier_wait_for_it():
    """A channel brings rows of epoch 2 one commit before barrier 1: they are not in snapshot 1."""
    spec = stage([False])
    runner = Runner(spec)
    early = pages(spec, "a", [("x", "a2")], epoch=2, first=1)
    out = runner.run(*early, *pages(spec, "a", [("x", "a1")], epoch=1))
    assert tags_out(out) == [(1, "a1")]
    assert report_of(out)["held_rows"] == 1
    out = runner.run(barrier("a", 1))
    assert [page.kind.name for page in out] == ["STATE", "BARRIER", "DATA", "REPORT"]
    assert tags_out(out) == [(2, "a2")]
    assert not runner.stored.held_counts


def test_rows_behind_several_barriers_pass_snapshot_by_snapshot():
    """Three checkpoints in flight at one input: their rows fall between the right snapshots."""
    spec = stage([False, True])
    runner = Runner(spec)
    for n in (1, 2, 3):
        rows = pages(spec, "a", [("x", f"a{n}")], epoch=n, first=n)
        out = runner.run(*rows, barrier("a", n))
        assert tags_out(out) == ([(1, "a1")] if n == 1 else [])
    out = runner.run(*pages(spec, "b", [("x", "b")]), *(barrier("b", n) for n in (3, 1, 2)))
    kinds = [(page.kind.name, page.checkpoint_id) for page in out]
    assert kinds == [
        ("DATA", 1),
        ("STATE", 1),
        ("BARRIER", 1),
        ("DATA", 2),
        ("STATE", 2),
        ("BARRIER", 2),
        ("DATA", 3),
        ("STATE", 3),
        ("BARRIER", 3),
        ("REPORT", 0),
    ]
    assert tags_out(out) == [(1, "b"), (2, "a2"), (3, "a3")]


def test_an_abort_lets_held_rows_go():
    """Without a snapshot and without a barrier; the stage stays in its epoch."""
    spec = stage([True, True])
    runner = Runner(spec)
    runner.run(barrier("a", 1))
    runner.run(*pages(spec, "a", [("x", "a1")]))
    out = runner.run(abort(1))
    assert tags_out(out) == [(1, "a1")]
    assert {page.kind for page in out} == {PageKind.DATA, PageKind.REPORT}
    assert tags_out(runner.run(barrier("b", 1))) == []
    assert runner.align.snapshot == 0


def test_an_abort_beats_the_barriers_of_its_batch():
    """Given up before it was aligned everywhere, a checkpoint is not snapshotted by anybody."""
    spec = stage([True, True])
    for control in itertools.permutations([abort(1), barrier("a", 1), barrier("b", 1)]):
        runner = Runner(spec)
        out = runner.run(*pages(spec, "a", [("x", "a1")]), *control)
        assert [page.kind.name for page in out] == ["DATA", "REPORT"]
        assert runner.align.snapshot == 0


def test_rows_of_a_channel_are_taken_in_the_order_they_were_emitted():
    """By place in the channel, then by the producer's key group, whatever page they come in."""
    spec = stage([False])
    rows = [(3, 0, "d"), (1, 5, "b"), (1, 2, "a"), (2, 0, "c")]
    found = []
    for number, (seq, group, tag) in enumerate(rows):
        (page,) = pages(spec, "a", [("x", tag)], epoch=1, partition=number)
        placed = table([("x", tag, seq, group)], spec.input("a").page_schema)
        found.append(dataclasses.replace(page, payload=encode(placed)))
    for order in itertools.permutations(found):
        out = Runner(spec).run(*order)
        assert [tag for _, tag in tags_out(out)] == ["a", "b", "c", "d"]


def test_inputs_of_one_epoch_come_in_declared_order():
    """Epoch by epoch, input by input, task by task."""
    spec = stage([True, True])
    found = [
        page
        for name in "ba"
        for task in (1, 0)
        for page in pages(spec, name, [("x", f"{name}{task}")], partition=task)
    ]
    assert [tag for _, tag in tags_out(Runner(spec).run(*found))] == ["a0", "a1", "b0", "b1"]


def test_the_last_input_ends_the_stage():
    """END goes out behind the last rows, once, when every input has ended."""
    spec = stage([True, True])
    runner = Runner(spec)
    out = runner.run(*pages(spec, "a", [("x", "a1")]), end("a"))
    assert [page.kind.name for page in out] == ["DATA", "REPORT"]
    assert not runner.align.ended
    out = runner.run(end("b"), *pages(spec, "b", [("x", "b1")]))
    assert [page.kind.name for page in out] == ["DATA", "END", "REPORT"]
    assert runner.align.ended
    assert [page.kind.name for page in runner.run(end("b"))] == ["REPORT"]


def test_an_ended_input_holds_nobody_up():
    """It counts as aligned; its state is in the later snapshots."""
    spec = stage([True, True])
    runner = Runner(spec)
    runner.run(*pages(spec, "a", [("x", "a1")]), end("a"))
    out = runner.run(barrier("b", 1))
    assert [page.kind.name for page in out] == ["STATE", "BARRIER", "REPORT"]


def test_an_input_may_end_while_its_barrier_waits():
    """The barrier still is aligned; the rows behind it come after the snapshot, then END."""
    spec = stage([False, True])
    runner = Runner(spec)
    runner.run(barrier("a", 1), *pages(spec, "a", [("x", "a2")], epoch=2), end("a"))
    out = runner.run(barrier("b", 1), end("b"))
    kinds = [(page.kind.name, page.checkpoint_id) for page in out]
    assert kinds == [("BARRIER", 1), ("DATA", 2), ("END", 2), ("REPORT", 0)]
