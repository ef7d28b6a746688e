"""State that expires, in a stage without Spark: what a function, a snapshot and a timer see."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_stage_schedules import MemoryFiles
from timed_cases import GROUPS, KEYS, ROWS, TimedStage

from absflow.columnar.clocks import moved
from absflow.columnar.event_time import RootTime
from absflow.columnar.expiry import TOUCHED, Expiry, expired
from absflow.columnar.pages import TIME_TYPE, PageKind, decode
from absflow.columnar.piece_files import INLINE
from absflow.columnar.process import Result
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.columnar.state import snapshot_schema
from absflow.columnar.stored import in_range
from absflow.columnar.timers import TIMEOUT_FIELDS, Domain, timer_fields

STATE = pa.schema([("n", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
EVENT, PROCESSING = Domain.EVENT, Domain.PROCESSING


def counting(rows, state, context):
    """Counts the rows of a key, and emits how many there are; of a row of -1 it forgets the key.

    A row of 0 changes nothing.
    """
    values = rows["v"].to_numpy()
    seen = np.bincount(context.key_of_row, weights=values != 0, minlength=state.num_rows)
    forget = np.bincount(context.key_of_row, weights=values == -1, minlength=state.num_rows) > 0
    now = state["n"].fill_null(0).to_numpy() + seen.astype(np.int64)
    changed = state.set_column(1, "n", pa.array(now)).filter(pa.array((seen > 0) & ~forget))
    emitted = pa.table([state["k"], pa.array(now)], schema=OUTPUT)
    return Result(output=emitted, state=changed, delete=forget)


def spec_of(expiry, process=counting, on_timer=None):
    time = RootTime("ts", 0)
    given_input = InputSpec("rows", ROWS, True, event_time=time, timed=True, event_column="ts")
    timers = timer_fields() if on_timer else []
    state = pa.schema([*STATE, *timers, TOUCHED])
    return StageSpec(
        "legs", (given_input,), KEYS, state, OUTPUT, {"rows": process}, GROUPS, on_timer, expiry
    )


def snapshot_of(stage, out):
    """The rows of a snapshot, and what had expired by then."""
    schema = snapshot_schema(KEYS, stage.spec.state)
    rows = [decode(p.payload, schema, "") for p in out if p.kind is PageKind.STATE]
    return [row for batch in rows for row in batch.to_pylist()]


def test_a_key_that_was_not_touched_for_so_long_is_new_again():
    stage = TimedStage(spec_of(Expiry(10, EVENT)))
    assert stage.fired([("a", 100, 1), ("b", 100, 1)]) == [("a", 1), ("b", 1)]
    # The watermark is the newest time less one: a was touched at 100, and has expired at 110.
    assert stage.fired([("c", 110, 1), ("a", 105, 1)]) == [("a", 2), ("c", 1)]
    assert stage.fired([("b", 111, 1)]) == [("b", 2)]
    assert stage.fired([("c", 116, 1), ("a", 115, 0)]) == [("a", 2), ("c", 2)]
    assert stage.fired([("a", 117, 1)]) == [("a", 1)]  # the row of 115 has changed nothing


def test_a_row_that_changes_nothing_touches_on_read():
    stage = TimedStage(spec_of(Expiry(10, EVENT, on_read=True)))
    stage.batch([("a", 100, 1)])
    stage.batch([("a", 109, 0)])
    stage.batch([("c", 115, 1)])
    assert stage.fired([("a", 116, 1)]) == [("a", 2)]
    out = stage.batch(barrier=1)
    rows = {row["k"]: row["_touched"].microsecond for row in snapshot_of(stage, out)}
    assert rows == {"a": 116, "c": 115}


def test_processing_time_is_that_of_the_batch():
    stage = TimedStage(spec_of(Expiry(10_000, PROCESSING)))
    stage.batch([("a", 1, 1)], now_ms=50)
    assert stage.fired([("a", 1, 1)], now_ms=59) == [("a", 2)]
    assert stage.fired([("a", 1, 1)], now_ms=69) == [("a", 1)]


def test_trap_18_a_mass_of_keys_expires_without_a_byte_in_a_snapshot():
    stage = TimedStage(spec_of(Expiry(10, EVENT)))
    stage.batch([(f"k{n}", 100, 1) for n in range(500)])
    out = stage.batch(barrier=1)
    assert len(snapshot_of(stage, out)) == 500
    stage.batch([("z", 200, 1)])
    out = stage.batch(barrier=2, base=1)
    assert [row["k"] for row in snapshot_of(stage, out)] == ["z"]
    # Nobody has touched them, and yet they are not kept.
    assert set(stage.state()) == {"z"}
    assert sum(kept.live_keys for kept in in_range(stage.stored, "").values()) == 1


def test_what_has_expired_by_the_snapshot_is_not_in_it():
    stage = TimedStage(spec_of(Expiry(10, EVENT)))
    out = stage.batch([("a", 100, 1), ("b", 130, 1)], barrier=1)
    assert snapshot_of(stage, out) != []  # the rows stand behind the barrier of this batch
    out = stage.batch(barrier=2)
    assert [row["k"] for row in snapshot_of(stage, out)] == ["b"]


def test_what_has_expired_is_left_out_of_the_next_base():
    stage = TimedStage(spec_of(Expiry(10, EVENT)), MemoryFiles(0))
    stage.batch([(f"old{n}", 100, 1) for n in range(200)])
    assert all(kept.base for kept in in_range(stage.stored, "").values())
    stage.batch([(f"new{n}", 200, 1) for n in range(200)])
    stage.batch([(f"new{n}", 201, 1) for n in range(200)])
    stage.batch([(f"new{n}", 202, 1) for n in range(200)])
    assert set(stage.state()) == {f"new{n}" for n in range(200)}


def closing(rows, state, context):
    return Result(output=state.select(["k", "n"]))


def with_timers(rows, state, context):
    """Counts; the value is the time of a timer."""
    result = counting(rows, state, context)
    return replace(result, timers=pa.table({"k": rows["k"], "time": rows["v"].cast(TIME_TYPE)}))


@pytest.mark.parametrize("files", [INLINE, MemoryFiles(0)], ids=["inline", "files"])
def test_a_timer_fires_unless_the_key_has_expired_before_it_in_time(files):
    stage = TimedStage(spec_of(Expiry(10, EVENT), with_timers, closing), files)
    stage.batch([("a", 100, 109), ("b", 100, 110), ("c", 100, 300)])
    if files != INLINE:
        assert any(kept.base for kept in in_range(stage.stored, "").values())
    # All of them are behind the watermark at once, and still the order is that of time.
    assert stage.fired([("d", 250, 400)]) == [("a", 1), ("d", 1)]
    assert stage.fired(barrier=1) == []
    # Nothing is left that a later batch would look for.
    least = min(kept.event_timer for kept in in_range(stage.stored, "").values() if kept.live_keys)
    assert least == 400


def test_a_timer_in_processing_time_does_not_fire_for_what_has_expired_in_event_time():
    def timed(rows, state, context):
        timers = pa.table({"k": rows["k"], "time": rows["v"].cast(TIME_TYPE)})
        timers = timers.append_column("domain", pa.array(["processing"] * rows.num_rows))
        return replace(counting(rows, state, context), timers=timers)

    stage = TimedStage(spec_of(Expiry(10, EVENT), timed, closing))
    stage.batch([("a", 100, 50_000), ("b", 105, 50_000)], now_ms=1)
    assert stage.fired([("c", 112, 99_000)], now_ms=50) == [("b", 1), ("c", 1)]


rows = st.tuples(st.sampled_from("abcdef"), st.integers(0, 6), st.sampled_from([0, 1, 1, 1, -1]))
batches = st.lists(
    st.tuples(st.lists(rows, max_size=6), st.booleans(), st.integers(0, 20)),
    min_size=1,
    max_size=14,
)


class Model:
    """The rule itself: a dictionary, a key at a time."""

    def __init__(self, expiry):
        self.expiry, self.keys = expiry, {}

    def take(self, given_rows, watermark, now):
        domain, after = self.expiry.domain, self.expiry.after
        clock = watermark if domain is EVENT else now
        for key in dict.fromkeys(k for k, *_ in given_rows):
            mine = [(ts, v) for k, ts, v in given_rows if k == key]
            n, touched = self.keys.get(key, (None, None))
            if n is not None and clock is not None and touched + after <= clock:
                n = None
            at = max(ts for ts, _ in mine) if domain is EVENT else now
            seen = sum(v != 0 for _, v in mine)
            if any(v == -1 for _, v in mine):
                self.keys.pop(key, None)
            elif seen:
                self.keys[key] = ((n or 0) + seen, at if n is None else max(touched, at))
            elif n is not None and self.expiry.on_read:
                self.keys[key] = (n, max(touched, at))

    def visible(self, clock):
        after = self.expiry.after
        there = self.keys.items()
        return {k: n for k, (n, at) in there if clock is None or at + after > clock}


@given(
    batches,
    st.sampled_from([EVENT, PROCESSING]),
    st.integers(3, 25),
    st.booleans(),
    st.sampled_from([None, 0, 600]),
)
def test_state_and_history_are_what_the_rule_says(given_batches, domain, after, on_read, inline):
    """Whatever is dropped when: a function, the kept state and the sets of a history agree."""
    unit = 1 if domain is EVENT else 1_000
    expiry = Expiry(after * unit, domain, on_read)
    files = INLINE if inline is None else MemoryFiles(inline)
    stage, model = TimedStage(spec_of(expiry), files), Model(expiry)
    sets, now, newest, number = [], 0, 100, 0
    for made, snapshot, later in given_batches:
        now += later
        given_rows = [(k, newest + ahead, v) for k, ahead, v in made]
        watermark = stage.time.stage.value
        emitted = stage.fired(given_rows, now_ms=now)
        model.take(given_rows, watermark, now * 1_000)
        newest = max([newest, *(ts for _, ts, _ in given_rows)])
        for key, n in emitted:
            if key in model.keys and any(v != 0 for k, _, v in given_rows if k == key):
                assert n == model.keys[key][0]
        if not snapshot:
            continue
        number += 1
        out = stage.batch(barrier=number, now_ms=now, base=number - 1)
        sets.append(snapshot_of(stage, out))
        clock = stage.time.stage.value if domain is EVENT else now * 1_000
        upto = None if clock is None else clock - expiry.after
        schema = snapshot_schema(KEYS, stage.spec.state)
        latest = {row["k"]: row for rows_of_set in sets for row in rows_of_set}
        table = pa.Table.from_pylist(list(latest.values()), schema=schema)
        gone = expired(table, upto)
        seen = {
            row["k"]: row["n"]
            for row, lost in zip(
                table.to_pylist(), [False] * len(table) if gone is None else gone, strict=True
            )
            if not lost and not row["_deleted"]
        }
        assert seen == model.visible(clock)


def test_what_waits_for_processing_time_is_moved() -> None:
    """Timers, time-outs and the times at which keys were touched; of event time nothing."""
    keys = pa.table({"k": ["a", "b", "c"], "n": pa.array([1, 2, 3])})
    some = [[{"time": 5, "name": "x"}, {"time": 9, "name": ""}], None, [{"time": 7, "name": "y"}]]
    event, processing = timer_fields()
    state = keys.append_column(TIMEOUT_FIELDS[1], pa.array([1, 2, None], pa.int64()))
    state = state.append_column(event, pa.array([None, some[0], None], event.type))
    state = state.append_column(processing, pa.array(some, processing.type))
    state = state.append_column(TOUCHED, pa.array([3, 4, None], TIME_TYPE))
    found = moved(pa.concat_tables([state, state]).slice(3), 10_000, touched=True)
    later = [[{"time": 10_005, "name": "x"}, {"time": 10_009, "name": ""}], None,
             [{"time": 10_007, "name": "y"}]]  # fmt: skip
    assert found[processing.name].to_pylist() == pa.array(later, processing.type).to_pylist()
    assert found["_timeout_ms"].to_pylist() == [11, 2, None]
    assert found["_touched"].cast(pa.int64()).to_pylist() == [10_003, 10_004, None]
    same = ["k", "n", event.name]
    assert found.select(same).equals(state.select(same))
    assert moved(keys, 10_000, touched=False).equals(keys)
