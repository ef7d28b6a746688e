"""Timers of functions of one row: what they may ask for, and that it is what tables would say."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest
from arrow_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from timed_cases import GROUPS, KEYS, ROWS, TimedStage

from absflow.columnar.event_time import RootTime
from absflow.columnar.forms import per_row, per_row_timers
from absflow.columnar.pages import TIME_TYPE
from absflow.columnar.process import Result
from absflow.columnar.row_timers import Timer
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.columnar.timers import timer_fields
from absflow.errors import ProcessError, ResultError

STATE = pa.schema([("n", pa.int64())])
OUTPUT = pa.schema(
    [("k", pa.string()), ("at", pa.int64()), ("name", pa.string()), ("n", pa.int64())]
)
TIME = RootTime("ts", 0, late="process")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def at(us):
    return EPOCH + timedelta(microseconds=us)


def us(time):
    return (time - EPOCH) // timedelta(microseconds=1)


def stage_of(process, on_timer):
    given_rows = InputSpec("rows", ROWS, True, event_time=TIME, timed=True)
    state = pa.schema([*STATE, *timer_fields()])
    return TimedStage(
        StageSpec("s", (given_rows,), KEYS, state, OUTPUT, {"rows": process}, GROUPS, on_timer)
    )


def by_row(process, on_timer=lambda timer, state: (state, None)):
    return stage_of(per_row(process), per_row_timers(on_timer))


def count(state, row, context):
    """Counts the rows, and sets a timer at the value of each that is not over yet."""
    _, _, value = row
    if context.watermark is None or at(value) > context.watermark:
        context.timers.set(at(value), "odd" if value % 2 else "")
    return ((state[0] if state else 0) + 1,), None


def again(timer, state, context):
    """Says what it has, and sets another timer if it is one without a name."""
    if not timer.name:
        context.timers.set(timer.time + timedelta(microseconds=7), "more")
    return (state[0] * 2,), [(*timer.key, us(timer.time), timer.name, state[0])]


def count_tables(rows, state, context):
    seen = np.bincount(context.key_of_row, minlength=state.num_rows)
    now = state.set_column(1, "n", pa.array(state["n"].fill_null(0).to_numpy() + seen))
    values = rows["v"].to_numpy()
    reached = -1 if context.watermark is None else us(context.watermark)
    names = pa.array(["odd" if v % 2 else "" for v in values.tolist()])
    timers = pa.table({"k": rows["k"], "time": rows["v"].cast(TIME_TYPE), "name": names})
    return Result(state=now, timers=timers.filter(pa.array(values > reached)))


def again_tables(rows, state, context):
    times, numbers = rows["time"].cast(pa.int64()), state["n"]
    later = pa.array(times.to_numpy() + 7).cast(TIME_TYPE)
    more = pa.table({"k": rows["k"], "time": later, "name": ["more"] * rows.num_rows})
    named = np.array([bool(name) for name in rows["name"].to_pylist()])
    return Result(
        pa.table([rows["k"], times, rows["name"], numbers], schema=OUTPUT),
        state=state.set_column(1, "n", pa.array(numbers.to_numpy() * 2)),
        timers=more.filter(pa.array(~named)),
    )


ARRIVALS = st.tuples(st.sampled_from("abcd"), st.integers(0, 9), st.integers(0, 60))
BATCHES = st.lists(st.lists(ARRIVALS, max_size=6), min_size=1, max_size=6)


@examples(60)
@given(BATCHES)
def test_both_forms_give_the_same(batches):
    """Outputs, states and timers, over random rows and watermarks."""
    one = by_row(count, again)
    other = stage_of(count_tables, again_tables)
    moved = 0
    for drawn in batches:
        rows = [(k, moved + ts, moved + v) for k, ts, v in drawn]
        assert one.fired(rows) == other.fired(rows)
        assert one.state() == other.state()
        moved += 10


class Model:
    """A stage as a loop over rows and timers, with a dict."""

    def __init__(self):
        self.state, self.timers, self.newest = {}, {}, None

    @property
    def watermark(self):
        return None if self.newest is None else self.newest - 1

    def called(self, key, made, context):
        state, emitted = made
        if state is None:
            self.state.pop(key, None)
            self.timers.pop(key, None)
        else:
            self.state[key] = state
        return emitted or []

    def batch(self, rows, now_ms):
        emitted, reached = [], self.watermark
        for row in sorted(rows, key=lambda r: r[0]):  # stable: keys do not see each other
            made = mixed(self.state.get(row[0]), row, Asked(self, row[0], reached, now_ms))
            emitted += self.called(row[0], made, None)
        self.newest = max([ts for _, ts, _ in rows] + [self.newest or 0]) if rows else self.newest
        for domain, upto in (("event", self.watermark), ("processing", now_ms * 1_000)):
            for key in sorted(self.timers):
                while due := self.due(key, domain, upto):
                    self.timers[key].discard(due)
                    timer = Timer((key,), at(due[1]), due[2], domain)
                    asked = Asked(self, key, reached, now_ms)
                    emitted += self.called(key, over(timer, self.state[key], asked), None)
        return sorted(emitted)

    def due(self, key, domain, upto):
        mine = [t for t in self.timers.get(key, ()) if t[0] == domain]
        return min((t for t in mine if upto is not None and t[1] <= upto), default=None)


class Asked:
    """The context of a call of the model."""

    def __init__(self, model, key, reached, now_ms):
        self.model, self.key, self.time_ms, self.timers = model, key, now_ms, self
        self.watermark = None if reached is None else at(reached)

    def set(self, time, name="", domain="event"):
        self.model.timers.setdefault(self.key, set()).add((domain, us(time), name))

    def delete(self, time, name="", domain="event"):
        self.model.timers.get(self.key, set()).discard((domain, us(time), name))

    def waiting(self):
        mine = sorted(self.model.timers.get(self.key, ()))
        return [Timer((self.key,), at(t), name, domain) for domain, t, name in mine]


def mixed(state, row, context):
    """Does one of six things, as the value says."""
    _, _, value = row
    kind, time = value % 6, at(value // 6 * 6 + 6)
    n = (state[0] if state else 0) + 1
    if kind == 0:
        return None, None
    if kind == 1:
        context.timers.delete(time)
    elif kind == 2:
        time = at(context.time_ms * 1_000 + value)
        context.timers.set(time, "p", "processing")
    elif context.watermark is None or time > context.watermark:
        context.timers.set(time, str(kind))
    waits = [(us(t.time), t.name, t.domain) for t in context.timers.waiting()]
    return (n,), [(row[0], -1, str(waits), n)]


def over(timer, state, context):
    """Says what it has; one of ten forgets its key, one sets another at its own time."""
    said = [(*timer.key, us(timer.time), timer.name, state[0])]
    if us(timer.time) % 10 == 0:
        return None, said
    if timer.name == "4":
        context.timers.set(timer.time, "5")
    return (state[0] + 100,), said


@examples(100)
@given(BATCHES)
def test_it_is_a_loop_over_rows_and_timers(batches):
    """However the rows are cut into calls; keys that are forgotten and come back, too."""
    stage, model, moved = by_row(mixed, over), Model(), 0
    for number, drawn in enumerate(batches):
        rows = [(k, moved + ts, moved + v) for k, ts, v in drawn]
        assert stage.fired(rows, now_ms=number, woken=True) == model.batch(rows, number)
        found = {key: (row["n"],) for key, row in stage.state().items()}
        assert found == model.state
        moved += 6


def test_a_key_that_is_forgotten_and_comes_back_in_one_call_has_no_timers():
    """Also if the function never asks for the context, as across two calls."""

    def process(state, row):
        return (None if row[2] < 0 else ((state or (0,))[0] + 1,)), None

    stage = stage_of(count_tables, per_row_timers(again))
    stage.batch([("a", 1, 50)])
    stage.spec = replace(stage.spec, process={"rows": per_row(process)})
    stage.batch([("a", 2, -1), ("a", 2, 1)])
    assert stage.fired([("b", 90, 95)]) == []
    assert stage.state()["a"]["n"] == 1


def test_trap_10_a_timer_that_is_set_again_at_its_own_time_fires_again():
    """As often as its function does so: not lost, as by Spark's Python worker."""

    def thrice(timer, state, context):
        if state[0] < 3:
            context.timers.set(timer.time, timer.name)
        assert timer not in context.timers.waiting() or state[0] < 3
        return (state[0] + 1,), [(*timer.key, us(timer.time), timer.name, state[0])]

    stage = by_row(count, thrice)
    stage.batch([("a", 1, 20)])
    assert stage.fired([("b", 30, 99)]) == [("a", 20, "", n) for n in (1, 2, 3)]


def test_trap_10_a_timer_that_sets_itself_for_ever_is_an_error(monkeypatch):
    monkeypatch.setattr("absflow.columnar.firing.MAX_ROUNDS", 20)

    def endless(timer, state, context):
        context.timers.set(timer.time, timer.name)
        return state, None

    stage = by_row(count, endless)
    stage.batch([("a", 1, 4)])
    with pytest.raises(ProcessError, match=r"20 event timers of key \{'k': 'a'\} were due in one"):
        stage.batch([("c", 1_000, 2_000)])


def test_processing_timers_wait_for_the_time_of_the_batch():
    def wait(state, row, context):
        due = at(context.time_ms * 1_000) + timedelta(milliseconds=5)
        context.timers.set(due, domain="processing")
        return (1,), None

    def said(timer, state, context):
        assert (timer.domain, context.domain) == ("processing", "processing")
        return None, [(*timer.key, us(timer.time), timer.name, state[0])]

    stage = by_row(wait, said)
    assert stage.fired([("a", 1, 4)], now_ms=100) == []
    assert stage.fired([], now_ms=105, barrier=1) == [("a", 105_000, "", 1)]
    assert stage.state() == {}


WRONG = {
    r"sets a timer for the event time 1970-01-01T00:00:00.000005\+00:00, but its key has come to "
    r"1970-01-01T00:00:00.000999\+00:00; a timer must be set for later": (at(5),),
    "asks for a timer at 5, but a datetime with a time zone is expected": (5,),
    "asks for a timer at datetime.datetime.*but a datetime with a": (datetime(2026, 1, 1),),
    "with the name 3, but a str is expected": (at(2_000), 3),
    r"of the domain 'day', must be one of \['event', 'processing'\]": (at(2_000), "", "day"),
}  # fmt: skip


@pytest.mark.parametrize("said", WRONG)
def test_what_cannot_be_is_refused_in_the_line_that_asks_for_it(said):
    """With stage, key and what to do."""

    def asks(state, row, context):
        if row[0] == "b":
            context.timers.set(*WRONG[said])
        return (1,), None

    stage = by_row(asks)
    stage.batch([("a", 1_000, 0)])
    with pytest.raises(ResultError, match=f"(?s)stage 's', input 'rows'.*{said}.*key .'k': 'b'"):
        stage.batch([("a", 1_000, 0), ("b", 1_000, 0)])


def test_a_timer_before_the_one_that_fires_is_refused():
    def backwards(timer, state, context):
        context.timers.set(timer.time - timedelta(microseconds=1))
        return state, None

    stage = by_row(count, backwards)
    stage.batch([("a", 1, 20)])
    with pytest.raises(ResultError, match=r"stage 's', on_timer.*sets a timer for the event time"):
        stage.batch([("b", 30, 99)])


def test_a_row_that_forgets_its_key_sets_no_timer():
    def both(state, row, context):
        context.timers.set(at(row[2]))
        return None, None

    with pytest.raises(ResultError, match=r"forgets its key and sets a timer.*'k': 'a'"):
        by_row(both).batch([("a", 1, 5)])


def test_without_on_timer_no_timer_can_be_set():
    stage = by_row(count)
    stage.spec = replace(stage.spec, state=STATE, on_timer=None)
    with pytest.raises(ResultError, match=r"has no function for them; declare stage\(\.\.\., on_t"):
        stage.batch([("a", 1, 5)])
