"""Every small world: two inputs, a few checkpoints, every order in which things can arrive.

The stage's data plane is the simulator's (``absflow.simulation.stage``); the oracle below knows
nothing of it. It looks at the streams that went in and at the one that came out.
"""

from itertools import combinations, pairwise, product

import pytest

from absflow.protocol import alignment_state
from absflow.protocol.alignment import AbortArrived
from absflow.protocol.alignment_state import Barrier
from absflow.simulation.batch import Batch
from absflow.simulation.items import End, Sent
from absflow.simulation.job import Row, StageSpec
from absflow.simulation.stage import fresh, run_batch

STAGE = StageSpec("s", upstream=("a", "b"))


def row(name, number, epoch):
    return Sent(epoch, Row((name,), number, key=number, amount=1, sign=1))


def stream(name, *controls):
    """A row, then each of the controls with a row behind it."""
    items, epoch = [row(name, 0, 1)], 1
    for number, control in enumerate(controls, 1):
        items.append(control)
        if isinstance(control, Barrier):
            epoch = control.checkpoint_id + 1
            items.append(row(name, number, epoch))
    return items


def interleavings(first, second):
    """Every order of two streams; each keeps its own."""
    size = len(first) + len(second)
    for places in combinations(range(size), len(first)):
        left, right = iter(first), iter(second)
        yield [("a", next(left)) if at in places else ("b", next(right)) for at in range(size)]


def with_abort(arrivals, checkpoint_id):
    """The same arrivals with an abort at each possible place."""
    for at in range(len(arrivals) + 1):
        yield [*arrivals[:at], ("", checkpoint_id), *arrivals[at:]]


def play(batches):
    """Run micro-batches of arrivals; what the stage emitted, and what it kept."""
    memory, emitted = fresh(STAGE), []
    for arrivals in batches:
        items = {name: tuple(i for n, i in arrivals if n == name) for name in "ab"}
        aborts = tuple(AbortArrived(i) for n, i in arrivals if n == "")
        outcome = run_batch(STAGE, memory, Batch(items, {}, aborts), lambda _, row: (row,))
        alignment_state.validate(outcome.memory.alignment)
        memory = outcome.memory
        emitted.extend(outcome.emitted)
    return emitted, memory


def singly(arrivals):
    return play([[arrival] for arrival in arrivals])


def rows_of(items, name):
    return [i.row for i in items if isinstance(i, Sent) and i.row.path == (name,)]


def cuts(emitted):
    """Per barrier that was forwarded, the rows that were processed before it."""
    return {
        item.checkpoint_id: [rows_of(emitted[:at], name) for name in "ab"]
        for at, item in enumerate(emitted)
        if isinstance(item, Barrier)
    }


def brought(items):
    return {i.checkpoint_id for i in items if isinstance(i, Barrier)}


def assert_consistent(streams, emitted, memory, aborted=()):
    """The oracle: cut, exactly once, order, epochs, and nobody is left blocked."""
    for name, items in streams.items():
        assert rows_of(emitted, name) == rows_of(items, name)
    ended = {name for name, items in streams.items() if End() in items}
    for checkpoint_id, processed in cuts(emitted).items():
        # An input that ended without the barrier is wholly before it.
        due = [
            [i.row for i in items if isinstance(i, Sent) and i.epoch <= checkpoint_id]
            for items in streams.values()
        ]
        assert processed == due, f"snapshot {checkpoint_id}"
    known = {n: brought(items) for n, items in streams.items()}
    complete = {
        n
        for n in set().union(*known.values())
        if all(
            n in ids or (name in ended and max(ids, default=0) < n) for name, ids in known.items()
        )
    }
    assert complete - set(aborted) <= cuts(emitted).keys() <= complete
    assert list(cuts(emitted)) == sorted(cuts(emitted))
    epoch = 1
    for item in emitted:
        if isinstance(item, Sent):
            assert item.epoch == epoch
        elif isinstance(item, Barrier):
            epoch = item.checkpoint_id + 1
    assert memory.held == ()
    assert all(not i.waiting for i in memory.alignment.inputs.values())
    assert (End() in emitted) is (ended == {"a", "b"})


TWO = (Barrier(1), Barrier(2))


def test_every_interleaving_is_a_consistent_cut():
    """252 orders of two inputs with two barriers each: both snapshots hold exactly their rows."""
    streams = {"a": stream("a", *TWO), "b": stream("b", *TWO)}
    orders = list(interleavings(*streams.values()))
    assert len(orders) == 252
    for arrivals in orders:
        assert_consistent(streams, *singly(arrivals))


@pytest.mark.parametrize("checkpoint_id", [1, 2])
def test_an_abort_at_any_point(checkpoint_id):
    """Wherever the abort falls, the other checkpoint is taken, and no row is lost or blocked."""
    streams = {"a": stream("a", *TWO), "b": stream("b", *TWO)}
    outcomes = set()
    for arrivals in interleavings(*streams.values()):
        for aborted in with_abort(arrivals, checkpoint_id):
            emitted, memory = singly(aborted)
            assert_consistent(streams, emitted, memory, aborted=[checkpoint_id])
            outcomes.add(tuple(cuts(emitted)))
    assert outcomes == {(1, 2), (3 - checkpoint_id,)}


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("length", range(6))
def test_an_end_at_any_point(name, length):
    """One input ends after any of its items: what it still brought is in, the other goes on."""
    other = "b" if name == "a" else "a"
    streams = {n: stream(n, *TWO) for n in "ab"}
    streams[name] = [*streams[name][:length], End()]
    for arrivals in interleavings(streams["a"], streams["b"]):
        emitted, memory = singly(arrivals)
        assert_consistent(streams, emitted, memory)
        assert set(cuts(emitted)) == brought(streams[other])


@pytest.mark.parametrize("checkpoint_id", [1, 2])
@pytest.mark.parametrize("lengths", list(product((1, 2, 4, 5), (2, 4))))
def test_ends_of_both_and_an_abort_at_any_point(lengths, checkpoint_id):
    """Both inputs end, with any of their barriers, and an id dies: the stage ends, and in order."""
    streams = {
        name: [*stream(name, *TWO)[:length], End()]
        for name, length in zip("ab", lengths, strict=True)
    }
    for arrivals in interleavings(*streams.values()):
        for aborted in with_abort(arrivals, checkpoint_id):
            assert_consistent(streams, *singly(aborted), aborted=[checkpoint_id])


def test_rows_that_come_before_the_barrier_they_are_behind():
    """A channel's writer commits the rows of a batch before its barriers; nothing is cut wrongly.

    Rows 1 and 2 of input a have epoch 2 and 3, and stand before barriers 1 and 2.
    """
    early = [row("a", 0, 1), row("a", 1, 2), Barrier(1), row("a", 2, 3), Barrier(2)]
    streams = {"a": early, "b": stream("b", *TWO)}
    for arrivals in interleavings(*streams.values()):
        assert_consistent(streams, *singly(arrivals))


@pytest.mark.parametrize("checkpoint_id", [1, 2])
@pytest.mark.parametrize("controls", [(), (1,), (2,)])
def test_ids_that_one_input_never_brings(controls, checkpoint_id):
    """A sender gave ids up that the other forwards; one more is aborted: the ends settle all."""
    streams = {
        "a": stream("a", *map(Barrier, controls), End()),
        "b": stream("b", *TWO, End()),
    }
    for arrivals in interleavings(*streams.values()):
        for aborted in with_abort(arrivals, checkpoint_id):
            assert_consistent(streams, *singly(aborted), aborted=[checkpoint_id])


@pytest.mark.parametrize(
    ("first", "second"), [((2, 3), (1, 2, 3)), ((1, 3), (2, 3)), ((3,), (1, 3))]
)
def test_skipped_ids_block_nobody(first, second):
    """What only one input brings is given up, and the next common barrier finds nobody blocked."""
    streams = {
        name: stream(name, *map(Barrier, ids)) for name, ids in (("a", first), ("b", second))
    }
    for arrivals in interleavings(*streams.values()):
        assert_consistent(streams, *singly(arrivals))


def splits(arrivals):
    """Every way to cut a sequence into micro-batches."""
    for size in range(len(arrivals)):
        for places in combinations(range(1, len(arrivals)), size):
            edges = [0, *places, len(arrivals)]
            yield [arrivals[i:j] for i, j in pairwise(edges)]


def chunked(name, *controls):
    """Chunks of a row and the control behind it, so that a split falls between chunks."""
    items = stream(name, *controls)
    return [tuple(items[at : at + 2]) for at in range(0, len(items), 2)]


def flat(chunks):
    return [(name, item) for name, items in chunks for item in items]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1, 2, 3), (1, 2, 3)),
        ((1, 3), (1, 2, 3)),
        ((2, 3), (1, 3)),
    ],
)
def test_micro_batches_are_confluent(first, second):
    """However arrivals are cut into micro-batches: the same snapshots of the same rows.

    Inside a batch the control rows are merged by id and not by arrival.
    """
    a, b = (chunked(n, *map(Barrier, ids), End()) for n, ids in (("a", first), ("b", second)))
    expected = {}
    for chunks in interleavings(a, b):
        for batches in splits(chunks):
            emitted, memory = play([flat(batch) for batch in batches])
            assert memory.alignment.ended
            expected = expected or cuts(emitted)
            assert cuts(emitted) == expected
    assert set(expected) == set(first) & set(second)


@pytest.mark.parametrize("checkpoint_id", [1, 2])
def test_an_abort_is_confluent_for_all_others(checkpoint_id):
    """Whether an abort comes in time depends on the batches; every other snapshot does not."""
    a, b = (chunked(name, *TWO) for name in "ab")
    expected = play([flat(next(interleavings(a, b)))])[0]
    for chunks in interleavings(a, b):
        for arrivals in with_abort(chunks, checkpoint_id):
            marked = [(n, i if n else (i,)) for n, i in arrivals]
            for batches in splits(marked):
                emitted, _ = play([flat(batch) for batch in batches])
                found = cuts(emitted)
                assert found.keys() >= {1, 2} - {checkpoint_id}
                assert found.items() <= cuts(expected).items()
