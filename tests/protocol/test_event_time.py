"""Event time as a stage hands it on: what counts, what is kept, what a restore begins with."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from absflow.protocol import event_time, watermarks
from absflow.protocol.event_time import EventTime
from absflow.protocol.source_time import SourceTime
from absflow.protocol.watermarks import InputTime, StageTime, Watermark, WatermarkStatus

ACTIVE, IDLE, ENDED = WatermarkStatus
TIMES = st.none() | st.integers(-(2**62), 2**62)
NAMES = st.sampled_from("abc")
MARKS = st.builds(Watermark, st.integers(1, 9), TIMES, st.sampled_from(WatermarkStatus))
INPUTS = st.builds(
    InputTime, TIMES, st.sampled_from(WatermarkStatus), st.lists(MARKS, max_size=3).map(tuple)
)
SOURCES = st.builds(
    SourceTime,
    st.integers(0, 10**12),
    st.dictionaries(st.text(max_size=3), TIMES, max_size=3),
    st.frozensets(st.text(max_size=3), max_size=2),
)
QUIET = st.dictionaries(NAMES, st.dictionaries(st.text(max_size=3), st.integers(0, 9)))
EVENT_TIMES = st.builds(
    EventTime,
    st.builds(StageTime, st.dictionaries(NAMES, INPUTS, min_size=1), TIMES, TIMES),
    st.dictionaries(NAMES, SOURCES),
    QUIET,
)


@given(EVENT_TIMES)
def test_what_is_written_is_read_again(time: EventTime) -> None:
    text = event_time.to_json(time)
    assert event_time.from_json(text) == time
    assert "\n" not in text
    assert event_time.to_json(event_time.from_json(text)) == text


def started(*partitions: str, delay: int = 10) -> EventTime:
    """A stage with a source, some of whose partitions are known, and a channel."""
    time = event_time.start(["rows", "channel"], {"rows": delay})
    return event_time.with_partitions(time, {"rows": partitions})


def waiting_on(time: EventTime) -> list[tuple[int, int | None, WatermarkStatus]]:
    """What waits on the source."""
    return [(w.epoch, w.value, w.status) for w in time.stage.inputs["rows"].waiting]


def test_trap_4_a_partition_that_has_brought_nothing_counts() -> None:
    time = event_time.observed(started("0", "1"), {"rows": 1}, {"rows": {"0": 100}})
    assert waiting_on(time) == []
    time = event_time.observed(time, {"rows": 1}, {"rows": {"1": 50}})
    assert waiting_on(time) == [(1, 39, ACTIVE)]


def test_trap_4_a_source_of_which_no_partition_is_known_holds_the_stage() -> None:
    time = event_time.observed(started(), {"rows": 1}, {})
    stage = watermarks.admit(
        event_time.brings(time.stage, "channel", Watermark(1, 99)), {"rows": None, "channel": None}
    )
    assert stage.value is None
    assert stage.inputs["rows"].status is ACTIVE


def test_a_barriers_own_watermark_counts_behind_one_of_a_later_epoch() -> None:
    """The rows of n and n + 1 may be read before barrier n is."""
    stage = event_time.brings(watermarks.start(["a"]), "a", Watermark(2, 50))
    stage = event_time.brings(stage, "a", Watermark(1, 40))
    assert watermarks.admit(stage, {"a": 1}).value == 40
    assert watermarks.admit(stage, {"a": 2}).value == 50


def test_what_says_nothing_new_does_not_wait() -> None:
    stage = event_time.brings(watermarks.start(["a"]), "a", Watermark(1, 50))
    assert event_time.brings(stage, "a", Watermark(2, 50)) is stage
    assert event_time.brings(stage, "a", Watermark(1, 49)) is stage
    assert event_time.brings(stage, "a", Watermark(1, 49, IDLE)) is not stage


def test_an_input_that_has_ended_stays_so_until_it_brings_a_row() -> None:
    """A barrier has said that it has nothing left; only a row says otherwise."""
    time = event_time.observed(started("0"), {"rows": 1}, {"rows": {"0": 100}})
    time = replace(time, stage=event_time.brings(time.stage, "rows", Watermark(1, None, ENDED)))
    assert event_time.observed(time, {"rows": 2}, {}) == time
    more = event_time.observed(time, {"rows": 2}, {"rows": {"0": 101}})
    assert waiting_on(more)[-1] == (2, 90, ACTIVE)


def quiet(time: EventTime, waited_ms: int, *brought: str, idle_ms: int = 50) -> EventTime:
    return event_time.counted_idle(time, waited_ms, {"rows": brought}, {"rows": idle_ms})


def test_trap_2_a_partition_without_a_row_for_long_holds_nobody_back() -> None:
    time = event_time.observed(started("0", "1"), {"rows": 1}, {"rows": {"0": 100}})
    time = quiet(quiet(time, 30, "0"), 30, "0")
    assert time.sources["rows"].idle == {"1"}
    time = event_time.observed(time, {"rows": 1}, {})
    assert waiting_on(time) == [(1, 89, ACTIVE)]


def test_trap_3_only_time_in_which_the_query_waited_for_rows_makes_a_partition_idle() -> None:
    """A batch that took hours, or a driver that was down, makes no partition idle."""
    time = quiet(started("0"), 49)
    assert time.sources["rows"].idle == frozenset()
    assert quiet(replace(time, quiet_ms={}), 49).sources["rows"].idle == frozenset()
    assert quiet(time, 1).sources["rows"].idle == {"0"}


def test_a_partition_that_comes_back_counts_at_once() -> None:
    time = quiet(started("0", "1"), 99, "0")
    assert time.sources["rows"].idle == {"1"}
    time = event_time.observed(time, {"rows": 1}, {"rows": {"0": 100, "1": 7}})
    assert time.sources["rows"].idle == frozenset()
    assert waiting_on(time) == [(1, -4, ACTIVE)]


def test_a_source_that_may_not_be_idle_is_none() -> None:
    time = started("0")
    assert event_time.counted_idle(time, 10**9, {}, {}) is time


def at_checkpoint() -> EventTime:
    """A stage that has come to 30, of which the channel's sender had come to 50."""
    time = event_time.observed(started("0"), {"rows": 1}, {"rows": {"0": 41}})
    stage = event_time.brings(time.stage, "channel", Watermark(1, 45))
    stage = watermarks.admit(stage, {"rows": 1, "channel": 1})
    return replace(time, stage=watermarks.fired(stage, None))


def test_a_restore_begins_with_what_the_checkpoint_has() -> None:
    """And what the sender had said last is behind the rows in flight."""
    at = at_checkpoint()
    assert at.stage.value == 30
    sender = EventTime(StageTime({"x": InputTime(50)}, 50, 50))
    made = event_time.restored(started(delay=7), at, 5, {"channel": sender})
    assert made.stage.value == 30
    assert made.sources["rows"] == SourceTime(7, {"0": 41})
    assert made.stage.inputs["channel"].waiting == (Watermark(5, 50),)


def test_a_restore_takes_the_delay_that_is_declared_now() -> None:
    """What was written before stages had one has none; it goes into the manifest, too."""
    begun = event_time.start(["rows", "channel"], {"rows": 10}, delay=5)
    made = event_time.restored(begun, at_checkpoint(), 5, {})
    assert (made.stage.delay, made.stage.output) == (5, 30)
    assert event_time.from_json(event_time.to_json(made)) == made
    old = event_time.to_json(at_checkpoint()).replace('"delay":0,"inputs"', '"inputs"')
    assert event_time.from_json(old) == at_checkpoint()
    assert old != event_time.to_json(at_checkpoint())


def test_trap_21_a_new_input_holds_the_stage_where_it_is_and_never_takes_it_back() -> None:
    at = at_checkpoint()
    begun = event_time.start(["rows", "channel", "new"], {"rows": 10, "new": 0})
    made = event_time.restored(begun, at, 5, {})
    moved = event_time.brings(made.stage, "rows", Watermark(6, 99))
    moved = event_time.brings(moved, "channel", Watermark(6, 99))
    moved = event_time.brings(moved, "new", Watermark(6, 3))
    assert watermarks.admit(moved, dict.fromkeys(moved.inputs)).value == 30
    # Its old rows are behind the watermark: they are late, and counted, where they are packed.
    assert made.reached("new") == 30


def test_a_stage_that_had_no_event_time_begins_with_none() -> None:
    begun = started()
    assert event_time.restored(begun, None, 5, {}) is begun
