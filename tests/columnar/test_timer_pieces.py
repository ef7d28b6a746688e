"""A storm of due timers fires in pieces: in the end all is as if it had fired at once."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
from arrow_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from timed_cases import KEYS, ROWS, TimedStage

from absflow.columnar import range_time
from absflow.columnar import stage as stage_module
from absflow.columnar.event_time import BatchTime, RootTime
from absflow.columnar.expiry import TOUCHED, Expiry
from absflow.columnar.forms import per_row, per_row_timers
from absflow.columnar.packing import Packer
from absflow.columnar.pages import PageKind, decode, pages_of
from absflow.columnar.restore_packer import StatePacker
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.columnar.state import snapshot_schema
from absflow.columnar.timers import Domain, timer_fields
from absflow.errors import ProcessError
from absflow.protocol import event_time, watermarks
from absflow.protocol.watermarks import WatermarkStatus
from absflow.spark.worker.per_key import per_key_timeout

STATE = pa.schema([("n", pa.int64())])
OUTPUT = pa.schema(
    [("k", pa.string()), ("at", pa.int64()), ("name", pa.string()), ("n", pa.int64())]
)
TIME = RootTime("ts", 0, late="process")


def us(time):
    return event_time.from_datetime(time)


def process(state, row, context):
    """Sets a timer at the value of the row; what it counts shows the order of what it has seen."""
    key, _, value = row
    n = (state[0] if state else 0) * 3 + 1
    at = event_time.to_datetime(value)
    if context.watermark is None or at > context.watermark:
        context.timers.set(at)
    return (n,), [(key, -1, "", n)]


def over(timer, state, context):
    """Says what it has found. Some set another timer, one of five forgets its key."""
    at = us(timer.time)
    if at % 5 == 0:
        return None, [(*timer.key, at, timer.name, state[0])]
    if at % 5 == 1:
        context.timers.set(event_time.to_datetime(at + 3), "more")
    return (state[0] * 3 + 2,), [(*timer.key, at, timer.name, state[0])]


def stage_of(groups=4, ranges=1, **more):
    rows = InputSpec("rows", ROWS, True, event_time=TIME, timed=True)
    given_spec = {"state": pa.schema([*STATE, *timer_fields()]), "key_groups": groups, **more}
    functions = {"rows": per_row(process)}
    return TimedStage(
        StageSpec(
            "s", (rows,), KEYS, output=OUTPUT, process=functions,
            on_timer=per_row_timers(over), **given_spec,
        ),
        ranges=ranges,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Two timers for a key group and micro-batch, where they are bounded."""
    monkeypatch.setattr(stage_module, "most_of_each", two_of_each)


def two_of_each(spec, due):
    return None if range_time.most_of_each(spec, due) is None else 2


@contextmanager
def unbounded():
    """With all timers at once."""
    stage_module.most_of_each = lambda _spec, _due: None
    yield
    stage_module.most_of_each = two_of_each


@pytest.mark.parametrize(
    ("on_timer", "piece"),
    [
        (None, 500_000),
        (lambda rows, state, context: None, 500_000),
        (per_row_timers(over), 100_000),
        (per_key_timeout(lambda key, frames, state: (), "UTC", "EventTimeTimeout", ["k"]), 10_000),
    ],
)
def test_a_piece_is_as_large_as_its_function_is_fast(on_timer, piece):
    """Of a range; its key groups that have any share it, and each has a thousand."""
    spec = replace(stage_of().spec, on_timer=on_timer)
    assert range_time.most_of_each(spec, []) == piece
    assert range_time.most_of_each(spec, range(5)) == piece // 5
    assert range_time.most_of_each(spec, range(1_000)) == 1_000


def by_key(rows):
    """What was emitted of each key, in order."""
    found = {}
    for key, *rest in rows:
        found.setdefault(key, []).append(tuple(rest))
    return found


def emitted(out):
    rows = [decode(p.payload, OUTPUT, "") for p in out if p.kind is PageKind.DATA]
    return [tuple(row.values()) for batch in rows for row in batch.to_pylist()]


def plain(state):
    return {key: (row["n"], row["_event_timers"]) for key, row in state.items()}


def fired_of(rows):
    return [row for row in rows if row[1] >= 0]


def first_due(stage):
    """The first timer that is due and waits."""
    times = [
        us(timer["time"]) for row in stage.state().values() for timer in row["_event_timers"] or ()
    ]
    return min((t for t in times if t <= (stage.time.stage.value or -1)), default=None)


ARRIVALS = st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 9), st.integers(0, 50))
BATCHES = st.lists(
    st.tuples(
        st.lists(ARRIVALS, max_size=8),
        st.sampled_from(["", "barrier", "silent"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=7,
)


@examples(120)
@given(BATCHES, st.integers(1, 3))
def test_trap_12_pieces_come_to_what_all_at_once_comes_to(batches, ranges):
    """Rows of each key, state and timers; and what is said stays behind the timers that wait."""
    pieces, whole = stage_of(ranges=ranges), stage_of()
    of_pieces, of_whole, moved, checkpoint, said = [], [], 0, 0, []
    for drawn, kind, jump in batches:
        moved += 60 if jump else 5
        rows = [(k, moved + ts, moved + v) for k, ts, v in drawn]
        checkpoint += kind == "barrier"
        more = {"barrier": checkpoint if kind == "barrier" else 0, "silent": kind == "silent"}
        with unbounded():
            of_whole += emitted(whole.batch(rows, **more))
        of_pieces += emitted(pieces.batch(rows, **more))
        assert pieces.time.stage.value == whole.time.stage.value
        check_said(pieces, said)
    for _ in range(200):
        if not pieces.asked:
            break
        of_pieces += emitted(pieces.batch(woken=True))
        check_said(pieces, said)
    assert by_key(of_pieces) == by_key(of_whole)
    assert plain(pieces.state()) == plain(whole.state())
    assert pieces.time.stage == whole.time.stage
    assert pieces.time.stage.settled


def check_said(stage, said):
    """The output never falls, and is behind the first timer that waits; which is not forgotten."""
    time = stage.time.stage
    first = first_due(stage)
    if said:
        watermarks.validate(said[-1], time)
    said.append(time)
    if first is not None and time.output is not None:
        assert time.output < first
    assert stage.asked or (first is None and time.settled)


def storm(stage, keys=8, upto=40):
    """Timers of every key up to a time; then the watermark comes to there."""
    names = [f"k{n}" for n in range(keys)]
    times = [v for v in range(1, upto, 2) if v % 5]
    stage.batch([(k, 0, v) for k in names for v in times])
    return stage.batch([("z", upto + 1, upto + 100)])


def test_a_piece_is_bounded_and_the_earliest_come_first():
    stage = stage_of(groups=1)
    rows = fired_of(emitted(storm(stage)))
    assert [at for _, at, _, _ in rows] == [1, 1]
    assert (stage.left, stage.time.stage.output) == (True, 0)
    while stage.time.stage.output < 1:
        rows = fired_of(emitted(stage.batch(woken=True)))
        assert len(rows) == 2


def test_barriers_pass_and_a_restore_goes_on_with_the_pieces():
    """Into other key groups: what comes out in the end is the same, and nothing comes twice."""
    whole = stage_of()
    with unbounded():
        due = emitted(storm(whole))
    stage = stage_of(ranges=2)
    before = emitted(storm(stage))
    out = stage.batch(barrier=1)
    before += emitted(out)
    barriers = [json.loads(p.payload) for p in out if p.kind is PageKind.BARRIER]
    assert len(barriers) == 4
    assert stage.at[1].output < stage.at[1].value  # what the driver makes of the ranges' reports
    assert stage.left
    schema = snapshot_schema(KEYS, stage.spec.state)
    rows = [decode(p.payload, schema, "") for p in out if p.kind is PageKind.STATE]
    back = restored(stage, pa.Table.from_batches(rows), groups=7, ranges=3)
    assert plain(back.state()) == plain(stage.state())
    after = []
    while True:
        after += emitted(back.batch(woken=True))
        if not back.left:
            break
    assert by_key(fired_of([*before, *after])) == by_key(fired_of(due))
    assert plain(back.state()) == plain(whole.state())
    assert back.time.stage.output == back.time.stage.value == whole.time.stage.value


def restored(stage, changes, groups, ranges):
    """A stage with other key groups that begins with a snapshot, as a restore gives it."""
    names = [n for n in changes.column_names if n != "_deleted"]
    history = changes.select(names).append_column("set_id", pa.array([1] * changes.num_rows))
    history = history.append_column("op", pa.array(["upsert"] * changes.num_rows))
    packer = StatePacker(
        stage="s", keys=KEYS, state=stage.spec.state, key_groups=groups,
        checkpoint_id=1, lineage=(1,),
    )  # fmt: skip
    pages = [p for batch in packer.pack(history.to_batches()) for p in pages_of(batch)]
    back = stage_of(groups=groups, ranges=ranges)
    back.take_state(pages)
    begun = back.spec.begin_time()
    at = replace(stage.time, stage=stage.at[1])
    back.time = event_time.restored(begun, at, 1, {})
    return back


def test_rows_of_a_key_find_what_its_timers_have_left():
    """Though other keys have timers that are due, and have not fired."""
    stage = stage_of(groups=1)
    storm(stage)
    out = emitted(stage.batch([("k7", 41, 500)]))
    mine = by_key(out)["k7"]
    (row,) = [number for number, (at, *_) in enumerate(mine) if at == -1]
    assert len(mine[:row]) == 20
    assert mine[row:] == [mine[row]]
    assert stage.left


def test_the_end_of_all_sources_fires_all_of_them():
    """And so does a stop that fires timers, which goes by the same words."""
    stage = stage_of(groups=1)
    storm(stage)
    assert stage.left
    stage.batch(barrier=1, ended=True)
    assert not stage.left
    assert all(row["_event_timers"] is None for row in stage.state().values())
    assert stage.time.stage.status is WatermarkStatus.ENDED
    assert stage.time.stage.settled


@pytest.mark.parametrize("step", [0, 1])
def test_trap_10_a_timer_that_sets_itself_for_ever_is_an_error_in_pieces_too(monkeypatch, step):
    """Of many keys each sets itself again, so no piece comes to the end of one."""
    monkeypatch.setattr("absflow.columnar.firing.MAX_ROUNDS", 50)

    def endless(timer, state, context):
        context.timers.set(event_time.to_datetime(us(timer.time) + step))
        return state, None

    stage = stage_of(groups=1)
    stage.spec = replace(stage.spec, on_timer=per_row_timers(endless))
    stage.batch([(f"k{n}", 0, n + 1) for n in range(30)])

    def pieces():
        stage.batch([("z", 10_000, 20_000)])
        for _ in range(20):
            stage.batch(woken=True)

    with pytest.raises(ProcessError, match=r"50 event timers of key \{'k': 'k\d+'\} were due in"):
        pieces()


def test_timers_in_processing_time_go_in_pieces_too():
    def wait(state, row, context):
        context.timers.set(event_time.to_datetime(5_000 + row[2]), domain="processing")
        return (1,), None

    stage = stage_of(groups=1)
    stage.spec = replace(stage.spec, process={"rows": per_row(wait)})
    stage.batch([(f"k{n}", 0, n) for n in range(9)], now_ms=1)
    assert not stage.left
    found, batches = [], 0
    while batches == 0 or stage.left:
        found += emitted(stage.batch(woken=True, now_ms=100))
        batches += 1
    assert [at for _, at, _, _ in found] == [5_000 + n for n in range(9)]
    assert batches == 5
    assert emitted(stage.batch(woken=True, now_ms=101)) == []


def test_state_that_expires_is_not_kept_for_pieces():
    """A snapshot leaves it out, and the timers with it: so all of them fire at once."""
    expiry = Expiry(1_000, Domain.EVENT, on_read=False)
    state = pa.schema([*STATE, *timer_fields(), TOUCHED])
    rows = InputSpec("rows", ROWS, True, event_time=TIME, timed=True, event_column="ts")
    stage = stage_of(groups=1, state=state, expiry=expiry)
    stage.spec = replace(stage.spec, inputs=(rows,))
    assert len(fired_of(emitted(storm(stage)))) > 100
    assert not stage.left


def test_a_stage_behind_a_direct_edge_is_no_further_than_the_range_that_waits():
    """Each range of the first stage speaks for itself; a barrier has the words of one of them."""
    stage = stage_of(ranges=2)
    storm(stage)
    outs = []
    while stage.left or not outs:
        barrier = len(outs) + 1
        out = stage.batch(barrier=barrier, woken=True)
        outs.append((barrier, out, stage.at[barrier], stage.time))
    edge = Packer("s", OUTPUT, ("k",), 4, root=False, timed=True, heads=(0, 2))
    begun = event_time.start(["s"], {})
    for barrier, out, at, after in outs:
        pages = list(edge.repack(out, 0, 0))
        mine = [p for p in pages if p.kind is PageKind.WATERMARK and p.key_group == 0]
        mine += [p for p in pages if p.kind is PageKind.BARRIER and p.key_group == 0]
        time = BatchTime(begun, barrier, {}, mine)
        assert time.step(1, {"s": barrier}, barrier).value == at.output
        assert time.step(2, {"s": None}).value == after.stage.output
    assert any(p.kind is PageKind.WAKE for p in edge.repack(outs[0][1], 0, 0))


def test_a_stage_that_is_woken_for_another_one_does_nothing_but_wake_the_next():
    stage = stage_of()
    stage.batch([("a", 5, 90)])
    before = stage.time, stage.stored
    (page,) = stage.batch(woken=True)
    assert (page.kind, page.input) == (PageKind.WAKE, "s")
    assert (stage.time, stage.stored) == before
