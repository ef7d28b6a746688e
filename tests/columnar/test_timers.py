"""Timers in a stage without Spark: set, fired in rounds, deleted, kept with the state."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from timed_cases import GROUPS, KEYS, ROWS, TimedStage

from absflow.columnar import firing
from absflow.columnar.event_time import RootTime
from absflow.columnar.forms import on_pandas
from absflow.columnar.pages import TIME_TYPE, PageKind, decode
from absflow.columnar.process import Result
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.columnar.state import snapshot_schema
from absflow.columnar.stored import in_range
from absflow.columnar.timers import NEVER, timer_fields
from absflow.errors import ProcessError, ResultError
from absflow.protocol.watermarks import WatermarkStatus

STATE = pa.schema([("n", pa.int64())])
OUTPUT = pa.schema(
    [("k", pa.string()), ("at", pa.int64()), ("name", pa.string()), ("n", pa.int64())]
)


def spec_of(process, on_timer, delay=0):
    time = RootTime("ts", delay)
    given = InputSpec("rows", ROWS, True, event_time=time, timed=True)
    state = pa.schema([*STATE, *timer_fields()])
    return StageSpec("windows", (given,), KEYS, state, OUTPUT, {"rows": process}, GROUPS, on_timer)


def counting(rows, state, context):
    """Counts rows, and sets a timer at the value of each, named after it if it is odd."""
    seen = np.bincount(context.key_of_row, minlength=state.num_rows)
    before = state["n"].fill_null(0).to_numpy()
    now = state.set_column(1, "n", pa.array(before + seen))
    names = ["odd" if v % 2 else "" for v in rows["v"].to_pylist()]
    timers = pa.table({"k": rows["k"], "time": rows["v"].cast(TIME_TYPE), "name": pa.array(names)})
    return Result(state=now, timers=timers)


def emitting(rows, state, context):
    at = rows["time"].cast(pa.int64())
    return Result(pa.table([rows["k"], at, rows["name"], state["n"]], schema=OUTPUT))


def test_a_timer_fires_when_the_watermark_has_come_to_it():
    stage = TimedStage(spec_of(counting, emitting))
    assert stage.fired([("a", 10, 20), ("b", 11, 12)]) == []
    assert stage.time.stage.value == 10
    # The watermark is the newest time less one: 12 is reached by a row of 13.
    assert stage.fired([("c", 13, 99)]) == [("b", 12, "", 1)]
    assert stage.fired([("c", 40, 98)]) == [("a", 20, "", 1)]
    assert stage.fired([("c", 41, 97)]) == []


def test_a_timer_is_one_of_its_key_time_and_name():
    stage = TimedStage(spec_of(counting, emitting))
    stage.batch([("a", 1, 21), ("a", 1, 21), ("a", 1, 20), ("b", 1, 21)])
    (timers,) = (stage.state()["a"]["_event_timers"],)
    assert [(t["time"].microsecond, t["name"]) for t in timers] == [(20, ""), (21, "odd")]
    fired = stage.fired([("a", 50, 99)])
    assert fired == [("a", 20, "", 4), ("a", 21, "odd", 4), ("b", 21, "odd", 1)]
    assert stage.state()["b"]["_event_timers"] is None


def test_trap_11_timers_of_a_key_fire_in_order_each_on_what_the_other_left():
    def adding(rows, state, context):
        now = pa.array([n * 10 + 1 for n in state["n"].to_pylist()])
        result = emitting(rows, state, context)
        return replace(result, state=state.set_column(1, "n", now))

    stage = TimedStage(spec_of(counting, adding))
    stage.batch([("a", 1, 4), ("a", 1, 2), ("a", 1, 8), ("b", 1, 2)])
    assert stage.fired([("c", 9, 99)]) == [
        ("a", 2, "", 3), ("a", 4, "", 31), ("a", 8, "", 311), ("b", 2, "", 1)
    ]  # fmt: skip


def test_trap_19_a_timer_set_and_fired_between_two_snapshots_is_in_neither():
    """The key's row, which the same rows have changed, is written once and has no timer."""
    stage = TimedStage(spec_of(counting, emitting))
    stage.batch([("a", 1, 50)], barrier=1)
    stage.batch([("a", 2, 5), ("a", 3, 6)])
    assert stage.fired([("b", 9, 60)]) == [("a", 5, "odd", 3), ("a", 6, "", 3)]
    out = stage.batch(barrier=2, base=1)
    pages = [p for p in out if p.kind is PageKind.STATE]
    schema = snapshot_schema(KEYS, stage.spec.state)
    rows = [row for p in pages for row in decode(p.payload, schema, "").to_pylist()]
    waiting = {r["k"]: [t["time"].microsecond for t in r["_event_timers"]] for r in rows}
    assert waiting == {"a": [50], "b": [60]}
    assert len(rows) == 2


def test_a_timer_that_a_timer_sets_fires_in_the_same_batch_if_it_is_due():
    def again(rows, state, context):
        times = rows["time"].cast(pa.int64()).to_numpy()
        timers = pa.table({"k": rows["k"], "time": pa.array(times + 10).cast(TIME_TYPE)})
        return replace(emitting(rows, state, context), timers=timers)

    stage = TimedStage(spec_of(counting, again))
    stage.batch([("a", 1, 4)])
    assert [at for _, at, _, _ in stage.fired([("c", 36, 99)])] == [4, 14, 24, 34]
    assert [at for _, at, _, _ in stage.fired([("c", 45, 98)])] == [44]


def test_trap_10_a_timer_that_sets_itself_again_and_again_is_an_error_with_its_key(monkeypatch):
    monkeypatch.setattr("absflow.columnar.firing.MAX_ROUNDS", 20)

    def endless(rows, state, context):
        times = rows["time"].cast(pa.int64()).to_numpy()
        return Result(
            timers=pa.table({"k": rows["k"], "time": pa.array(times + 1).cast(TIME_TYPE)})
        )

    stage = TimedStage(spec_of(counting, endless))
    stage.batch([("a", 1, 4)])
    with pytest.raises(ProcessError, match=r"20 event timers of key \{'k': 'a'\} were due in one"):
        stage.batch([("c", 1_000, 2_000)])


def test_a_timer_in_the_past_is_an_error_that_names_the_key_and_both_times():
    stage = TimedStage(spec_of(counting, emitting))
    stage.batch([("a", 1_000, 2_000)])
    expected = r"event time 1970-01-01T00:00:00.000005\+00:00 for key \{'k': 'b'\}, but that key"
    with pytest.raises(ProcessError, match=expected):
        stage.batch([("b", 1_001, 5)])


@pytest.mark.parametrize(
    ("timers", "expected"),
    [
        ({"k": ["a"], "time": [None]}, r"no time for key \{'k': 'a'\}"),
        ({"k": ["z"], "time": [9]}, r"timers for key \{'k': 'z'\}, which none of the rows has"),
        ({"k": ["a"], "when": [9]}, r"timers has columns \['k', 'when'\]"),
        ({"k": ["a"], "time": [9], "domain": ["day"]}, r"has the domain 'day', must be one of"),
    ],
)
def test_timers_that_cannot_be_are_errors(timers, expected):
    def setting(rows, state, context):
        table = pa.table(timers)
        if "time" in timers:
            place = table.column_names.index("time")
            times = table["time"].cast(pa.int64()).cast(TIME_TYPE)
            table = table.set_column(place, "time", times)
        return Result(state=state, timers=table)

    stage = TimedStage(spec_of(setting, emitting))
    with pytest.raises(ProcessError, match=expected):
        stage.batch([("a", 1, 2)])


def test_a_key_that_is_deleted_has_no_timers_and_cannot_be_given_one():
    def deleting(rows, state, context):
        return Result(delete=[True] * state.num_rows)

    stage = TimedStage(spec_of(counting, deleting))
    stage.batch([("a", 1, 4), ("a", 1, 8)])
    stage.batch([("c", 6, 99)])
    assert set(stage.state()) == {"c"}

    def both(rows, state, context):
        return replace(
            deleting(rows, state, context), timers=pa.table({"k": rows["k"], "time": rows["ts"]})
        )

    stage = TimedStage(spec_of(both, emitting))
    with pytest.raises(ProcessError, match=r"deletes key .* and sets a timer for it"):
        stage.batch([("a", 1, 4)])


def test_timers_are_deleted_by_name_and_time_and_deleting_none_does_nothing():
    def cancelling(rows, state, context):
        if context.time_ms:
            gone = pa.table({"k": ["a", "a"], "time": pa.array([4, 5]).cast(TIME_TYPE)})
            return Result(delete_timers=gone)
        return counting(rows, state, context)

    stage = TimedStage(spec_of(cancelling, emitting))
    stage.batch([("a", 1, 4), ("a", 1, 6)])
    stage.batch([("a", 2, 0)], now_ms=1)
    assert stage.fired([("c", 20, 99)]) == [("a", 6, "", 2)]


def test_a_stage_without_timers_ends_with_rows_in_the_same_batch():
    """Its sources end at the barrier, and there is nothing to fire."""
    given = spec_of(lambda rows, state, context: Result(state=state), None)
    stage = TimedStage(replace(given, state=STATE))
    stage.batch([("a", 1, 4)], barrier=1, ended=True)
    assert stage.time.stage.status is WatermarkStatus.ENDED
    assert set(stage.state()) == {"a"}


def test_what_waits_when_all_sources_end_fires_but_not_what_is_set_meanwhile():
    def again(rows, state, context):
        times = rows["time"].cast(pa.int64()).to_numpy()
        timers = pa.table({"k": rows["k"], "time": pa.array(times + 10).cast(TIME_TYPE)})
        return replace(emitting(rows, state, context), timers=timers)

    stage = TimedStage(spec_of(counting, again))
    fired = stage.fired([("a", 1, 25), ("b", 1, 4)], barrier=1, ended=True)
    assert [at for _, at, _, _ in fired] == [25, 4]
    assert stage.time.stage.value == 0
    assert stage.fired(barrier=2) == []


def test_a_timer_fires_before_the_barrier_that_says_so():
    """Its rows and its change are of the epoch of the barrier behind which the watermark stands."""
    stage = TimedStage(spec_of(counting, emitting))
    stage.batch([("a", 1, 4)])
    out = stage.batch([("c", 9, 99)], barrier=1)
    (row,) = [p for p in out if p.kind is PageKind.DATA]
    assert row.checkpoint_id == 1
    barrier = next(p for p in out if p.kind is PageKind.BARRIER)
    assert b'"value": 8' in barrier.payload


def test_trap_15_the_batch_of_a_barrier_fires_processing_timers_behind_the_snapshot():
    def waiting(rows, state, context):
        times = pa.array([(context.time_ms + 5) * 1_000] * rows.num_rows).cast(TIME_TYPE)
        domain = pa.array(["processing"] * rows.num_rows)
        return Result(
            state=state, timers=pa.table({"k": rows["k"], "time": times, "domain": domain})
        )

    stage = TimedStage(spec_of(waiting, emitting))
    assert stage.fired([("a", 1, 4)], now_ms=100) == []
    assert stage.fired([], now_ms=104) == []
    out = stage.batch([], barrier=1, now_ms=105)
    (row,) = [p for p in out if p.kind is PageKind.DATA]
    assert row.checkpoint_id == 2


def test_trap_16_a_key_group_without_a_due_timer_is_not_read(monkeypatch):
    stage = TimedStage(spec_of(counting, emitting))
    stage.batch([(f"k{n}", 1, 1_000 + n) for n in range(100)])
    kept = in_range(stage.stored, "")
    assert min(k.event_timer for k in kept.values()) == 1_000
    assert all(k.processing_timer == NEVER for k in kept.values())
    loaded = []
    reading = firing.load
    monkeypatch.setattr(firing, "load", lambda *a: loaded.append(a) or reading(*a))
    stage.batch([("k0", 900, 5_000)])
    assert len(loaded) == 1


def test_trap_13_a_clock_that_goes_back_fires_nothing_early_or_twice():
    def waiting(rows, state, context):
        times = pa.array([105_000] * rows.num_rows).cast(TIME_TYPE)
        domain = pa.array(["processing"] * rows.num_rows)
        table = pa.table({"k": rows["k"], "time": times, "domain": domain})
        return Result(state=state, timers=table)

    stage = TimedStage(spec_of(waiting, emitting))
    stage.batch([("a", 1, 4)], now_ms=100)
    assert stage.fired([], now_ms=90, barrier=1) == []
    assert stage.fired([], now_ms=106, barrier=2) == [("a", 105_000, "", None)]
    assert stage.fired([], now_ms=99, barrier=3) == []
    assert stage.fired([], now_ms=120, barrier=4) == []


def untimed(domain):
    """A stage whose source has no event time; its function sets a timer of that domain."""

    def setting(rows, state, context):
        times = rows["v"].cast(TIME_TYPE)
        domains = pa.array([domain] * rows.num_rows)
        timers = pa.table({"k": rows["k"], "time": times, "domain": domains})
        return Result(state=state, timers=timers)

    given = InputSpec("rows", ROWS, True)
    state = pa.schema([*STATE, *timer_fields()])
    spec = StageSpec("windows", (given,), KEYS, state, OUTPUT, {"rows": setting}, GROUPS, emitting)
    return TimedStage(spec)


def test_a_stage_without_event_time_sets_no_timers_in_it():
    """They would wait for ever; those in processing time are as ever."""
    with pytest.raises(ResultError) as caught:
        untimed("event").batch([("a", 1, 4)])
    for words in ["'windows'", "{'k': 'a'}", "no input of the stage has event time", "event_time="]:
        assert words in str(caught.value)
    stage = untimed("processing")
    stage.batch([("a", 1, 4_000)], now_ms=1)
    assert stage.fired([], now_ms=5, barrier=1) == [("a", 4_000, "", None)]


@pytest.mark.parametrize("form", [pa.table, pd.DataFrame])
def test_times_of_timers_are_timestamps(form):
    """A number might be seconds, milliseconds or anything."""

    def setting(rows, state, context):
        timers = form({"k": rows["k"].to_pylist(), "time": rows["v"].to_pylist()})
        return Result(state=state, timers=timers)

    stage = TimedStage(spec_of(setting, emitting))
    with pytest.raises(ResultError, match='"time" of type int64, but a timestamp is expected'):
        stage.batch([("a", 1, 4)])


def test_functions_on_pandas_frames_set_timers_too():
    def setting(rows, state, context):
        state["n"] = rows.groupby("k").size().reindex(state["k"]).to_numpy()
        timers = rows[["k"]].assign(time=pd.to_datetime(rows["v"], unit="us", utc=True))
        return Result(state=state, timers=timers)

    def firing(rows, state, context):
        output = rows[["k", "name"]].assign(at=rows["time"].astype("int64"), n=state["n"])
        return Result(output=output, delete=[True] * len(state))

    stage = TimedStage(spec_of(on_pandas(setting), on_pandas(firing)))
    stage.batch([("a", 1, 4), ("b", 1, 9)])
    ((key, at, name, n),) = stage.fired([("c", 6, 99)])
    assert (key, name, n) == ("a", "", 1)
    assert at in (4, 4_000)  # microseconds, or nanoseconds of pandas
    assert set(stage.state()) == {"b", "c"}
