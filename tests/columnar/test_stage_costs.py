"""What a stage does not do: no decoding, no writing, where nothing changed."""

import dataclasses
import itertools
import random
from collections import defaultdict

import pyarrow as pa
import pytest
from stage_cases import (
    KEYS,
    SNAPSHOT,
    STATE,
    Runner,
    barrier,
    filled,
    pages,
    report_of,
    rows_out,
    run,
    stage,
    tags_out,
)

from absflow.columnar import held as held_module
from absflow.columnar import stored as stored_module
from absflow.columnar import work as work_module
from absflow.columnar.pages import PageKind, decode
from absflow.columnar.process import Result
from absflow.columnar.stage import Batch, run_key_group, run_range
from absflow.columnar.state import DELETED, state_schema
from absflow.columnar.stored import KeyGroupState, in_range
from absflow.errors import PageCorruptError
from absflow.protocol import alignment


@pytest.fixture
def decoded(monkeypatch):
    """Names of all that is decoded."""
    names = []

    def counting(payload, schema, what):
        names.append(what)
        return decode(payload, schema, what)

    monkeypatch.setattr(held_module, "decode", counting)
    monkeypatch.setattr(stored_module, "decode", counting)
    monkeypatch.setattr(work_module, "decode", counting)
    return names


def test_a_barrier_without_a_change_costs_nothing(decoded):
    """The very value that was stored comes back, and its state was not even decoded."""
    runner = filled(stage([True]))
    stored = runner.stored
    decoded.clear()
    out = runner.run(barrier("a", 2, base=1, completed=1))
    assert [page.kind.name for page in out] == ["BARRIER", "REPORT"]
    assert runner.stored is stored
    assert decoded == []
    assert report_of(out)["snapshots"] == [[2, 0, 0, 2, stored.size, None]]


def test_a_batch_without_pages_costs_nothing(decoded):
    """Neither output nor a new value."""
    runner = filled(stage([True]))
    stored = runner.stored
    decoded.clear()
    assert runner.run() == []
    assert runner.stored is stored
    assert decoded == []


def test_a_full_snapshot_without_a_change_writes_no_state():
    """A savepoint decodes and emits the whole state, and stores nothing."""
    runner = filled(stage([True]))
    stored = runner.stored
    out = runner.run(barrier("a", 2, base=0, completed=1))
    assert [(page.kind.name, page.rows) for page in out[:-1]] == [("STATE", 2), ("BARRIER", 0)]
    assert runner.stored is stored


def test_rows_that_change_no_key_store_nothing():
    """A function that only emits leaves the stored value alone."""
    spec = stage([True], process=lambda rows, *_: Result(output=rows.append_column("n", [[1]])))
    runner = Runner(spec)
    stored = runner.stored
    assert tags_out(runner.run(*pages(spec, "a", [("x", "a1")]))) == [(1, "a1")]
    assert runner.stored is stored


def test_held_rows_do_not_touch_the_state(decoded):
    """While a barrier blocks its input the state stays encoded, in the very bytes it had."""
    spec = stage([True, True])
    runner = filled(spec)
    runner.run(*pages(spec, "a", [("z", "a3")]), barrier("a", 2, base=1))
    runner.run(*pages(spec, "a", [("z", "a4")]))
    state = runner.stored.state
    decoded.clear()
    runner.run(*pages(spec, "a", [("z", "a5")]))
    assert runner.stored.state is state
    assert {name.split(" of ")[0] for name in decoded} == {"held pages"}
    assert runner.stored.changed_epoch == 2
    assert runner.stored.live_keys == 3


def test_what_is_kept_says_what_changed():
    """changed_epoch is the last epoch that changed a key, live_keys counts those not deleted."""
    spec = stage([True])
    runner = filled(spec)
    assert (runner.stored.changed_epoch, runner.stored.live_keys) == (1, 2)
    runner.run(*pages(spec, "a", [("x", "-a3")]))
    assert (runner.stored.changed_epoch, runner.stored.live_keys) == (2, 1)
    out = runner.run(barrier("a", 2, base=1, completed=1))
    (snapshot,) = (page for page in out if page.kind is PageKind.STATE)
    assert decode(snapshot.payload, SNAPSHOT, "snapshot").to_pylist() == [
        {"k": "x", "n": None, "seen": None, DELETED: True}
    ]
    runner.run(barrier("a", 3, base=2, completed=2), *pages(spec, "a", [("y", "a4")]))
    kept = decode(runner.stored.state, state_schema(KEYS, STATE), "state")
    assert kept.column("k").to_pylist() == ["y"]


def test_a_replay_gives_the_same_bytes():
    """Pages and kept value, with random numbers in the output."""

    def chance(rows, state, context):
        n = pa.array(context.random.integers(0, 1 << 40, rows.num_rows))
        return Result(output=rows.append_column("n", n), state=state)

    spec = stage([True, False], process=chance)
    found = pages(spec, "a", [("x", "a1"), ("y", "a2")]) + pages(spec, "b", [("x", "b")], epoch=1)
    found += [barrier("a", 1), barrier("b", 1)]
    batch = Batch(7, 1000, alignment.start("ab"))
    first = run(run_key_group(spec, 0, batch, found, KeyGroupState()))
    random.Random(1).shuffle(found)
    assert run(run_key_group(spec, 0, batch, found, KeyGroupState())) == first
    numbers = [n for *_, n in rows_out(first[0])]
    assert len(set(numbers)) == len(numbers) == 3
    later = dataclasses.replace(batch, batch_id=8)
    other = run(run_key_group(spec, 0, later, found, KeyGroupState()))
    assert rows_out(other[0]) != rows_out(first[0])


def test_a_range_gives_what_its_key_groups_give():
    """In the order of the key groups, whoever of them has pages; what the others keep stays."""
    spec = stage([True], key_groups=4)
    rows = [(str(n), f"a{n}") for n in range(20)]
    runners = [Runner(spec, key_group) for key_group in range(4)]
    kept, batches = b"", [rows, rows[:1], [], rows[3:5], rows]
    for number, due in enumerate(batches):
        by_group = defaultdict(list)
        for page in pages(spec, "a", due):
            by_group[page.key_group].append(page)
        if not due:
            by_group = {n: [dataclasses.replace(barrier("a", 1), key_group=n)] for n in range(4)}
        batch = Batch(number, 1000 * number, runners[0].align)
        alone = [page for n in sorted(by_group) for page in runners[n].run(*by_group[n])]
        for runner in runners:
            runner.batch_id = number + 1
            runner.align = runners[0].align
        arrived = itertools.chain(*by_group.values())
        out, kept = run(run_range(spec, batch, arrived, kept))
        assert out == alone
        assert in_range(kept, "range") == {
            n: runner.stored for n, runner in enumerate(runners) if runner.stored.live_keys
        }
    assert len(in_range(kept, "range")) > 1


def test_a_range_that_nothing_changes_is_not_written():
    """Spark would write all of it, and pickle it before."""
    spec = stage([True], key_groups=2)
    batch = Batch(0, 0, alignment.start("a"))
    found = pages(spec, "a", [("x", "a1")])
    _, kept = run(run_range(spec, batch, found, b""))
    barriers = [dataclasses.replace(barrier("a", 1), key_group=p.key_group) for p in found]
    later = dataclasses.replace(batch, batch_id=1)
    out, again = run(run_range(spec, later, barriers, kept))
    assert [page.kind.name for page in out] == ["STATE", "BARRIER", "REPORT"]
    assert again is kept


def test_what_a_range_keeps_is_checked():
    """A flipped bit is an error, not another state."""
    spec = stage([True])
    batch = Batch(0, 0, alignment.start("a"))
    found = pages(spec, "a", [("x", "a1")])
    _, kept = run(run_range(spec, batch, found, b""))
    damaged = bytearray(kept)
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(PageCorruptError, match="state of stage 'legs'"):
        run(run_range(spec, batch, found, bytes(damaged)))


def test_what_has_changed_may_be_taken_before_pages_are_made_of_it():
    """The same rows, and a report that says the same, but for the bytes of pages around them."""
    spec = stage([True])
    runners = [Runner(spec), Runner(spec)]
    taken = []
    runners[1].take_changes = lambda *given: taken.append(given)
    batches = [
        [*pages(spec, "a", [("x", "a1"), ("y", "a2")], epoch=1), barrier("a", 1)],
        [*pages(spec, "a", [("x", "a3")], epoch=2), barrier("a", 2, base=1)],
        [barrier("a", 3, base=2)],
        [barrier("a", 4)],
    ]
    for given in batches:
        taken.clear()
        in_pages, others = (runner.run(*given) for runner in runners)
        state = [page for page in in_pages if page.kind is PageKind.STATE]
        due = [(p.key_group, p.checkpoint_id, decode(p.payload, SNAPSHOT, "state")) for p in state]
        assert taken == due
        assert [page for page in in_pages[:-1] if page not in state] == others[:-1]
        (said,), (also,) = (report_of(out)["snapshots"] for out in (in_pages, others))
        assert said[:2] + said[3:] == also[:2] + also[3:]
        assert bool(said[2]) == bool(also[2])
