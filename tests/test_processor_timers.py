"""Timers of Spark's StatefulProcessor classes, by Spark's rules. No JVM."""

from __future__ import annotations

from typing import Any

import pytest
from processor_stage import INT, Stage
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import Row

from absflow.errors import ProcessError

PROCESSING, EVENT = "processingtime", "eventtime"


class Timed(StatefulProcessor):
    """Does for rows, and for timers, what it is given to do."""

    def __init__(self, rows: Any, expired: Any = None) -> None:
        self.rows, self.expired = rows, expired

    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", INT)

    def handleInputRows(self, key, rows, timerValues):
        self.rows(self, [row.v for row in rows], timerValues)
        yield Row(k=key[0], what=f"rows {list(self.handle.listTimers())}")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        time = expiredTimerInfo.getExpiryTimeInMs()
        if self.expired is not None:
            self.expired(self, time)
        yield Row(k=key[0], what=f"fired {time} {list(self.handle.listTimers())}")


def sets(processor, values, _times):
    """Each value is a time to set, or to delete if it is negative."""
    for value in values:
        if value < 0:
            processor.handle.deleteTimer(-value)
        else:
            processor.handle.registerTimer(value)


def rows(key, *values, at=0):
    return [(key, at, value) for value in values]


def test_a_timer_fires_once_when_the_batch_has_come_to_its_time():
    stage = Stage(Timed(sets), PROCESSING)
    assert stage.batch(*rows("a", 1_100), *rows("b", 1_200), now_ms=1_000) == [
        ("a", "rows [1100]"),
        ("b", "rows [1200]"),
    ]
    assert stage.batch(now_ms=1_099) == []
    assert stage.batch(now_ms=1_100) == [("a", "fired 1100 [1100]")]
    assert stage.batch(now_ms=1_101) == []
    assert stage.batch(now_ms=9_999) == [("b", "fired 1200 [1200]")]


def test_a_timer_fires_when_sparks_watermark_has_come_to_its_time():
    """Spark's is the greatest time there was: at 1,100 a timer of 1,100 fires (Spark 4.2 does)."""
    stage = Stage(Timed(sets), EVENT)
    stage.batch(*rows("a", 1_100, at=1_000))
    assert stage.batch(*rows("b", at=1_099)) == []
    assert stage.texts(("b", 1_099, 2_000)) == ["rows [2000]"]
    assert stage.batch(("b", 1_100, 2_000)) == [("b", "rows [2000]"), ("a", "fired 1100 [1100]")]


def test_to_set_a_timer_twice_is_to_set_it_once_and_what_is_deleted_does_not_fire():
    stage = Stage(Timed(sets), PROCESSING)
    assert stage.texts(*rows("a", 1_100, 1_100, 1_050, 1_200, -1_050, -7), now_ms=1_000) == [
        "rows [1100, 1200]"
    ]
    assert stage.texts(*rows("a", 1_100, -1_200), now_ms=1_050) == ["rows [1100]"]
    assert stage.texts(*rows("a", -1_100, 1_100, 1_200, -1_200), now_ms=1_060) == ["rows [1100]"]
    assert stage.texts(now_ms=5_000) == ["fired 1100 [1100]"]
    assert stage.rows_of_state() == []


def test_timers_of_a_key_fire_in_the_order_of_their_times():
    stage = Stage(Timed(sets), PROCESSING)
    stage.batch(*rows("a", 1_300, 1_100, 1_200), now_ms=1_000)
    assert stage.texts(now_ms=1_250) == ["fired 1100 [1100, 1200, 1300]", "fired 1200 [1200, 1300]"]
    assert stage.texts(now_ms=2_000) == ["fired 1300 [1300]"]


def test_a_key_without_state_has_timers_and_goes_with_the_last():
    stage = Stage(Timed(sets), PROCESSING)
    stage.batch(*rows("a", 1_100), now_ms=1_000)
    (row,) = stage.rows_of_state()
    assert (row["k"], row["count"]) == ("a", None)
    stage.batch(*rows("a", -1_100), now_ms=1_010)
    assert stage.rows_of_state() == []


def test_state_that_a_timer_clears_is_gone():
    def counts(processor, values, _times):
        before = processor.count.get()
        processor.count.update((len(values) + (before[0] if before else 0),))
        processor.handle.registerTimer(1_100)

    def clears(processor, time):
        assert processor.count.get() == (2,)
        processor.count.clear()

    stage = Stage(Timed(counts, clears), PROCESSING)
    stage.batch(*rows("a", 1, 1), now_ms=1_000)
    assert stage.texts(now_ms=2_000) == ["fired 1100 [1100]"]
    assert stage.rows_of_state() == []


def test_a_timer_that_its_own_handler_sets_again_is_lost_as_in_spark():
    """One that it sets for later is not, nor is it lost that the handler deletes itself."""

    def again(processor, time):
        processor.handle.deleteTimer(time)
        processor.handle.registerTimer(time)
        if time < 1_300:
            processor.handle.registerTimer(time + 100)

    stage = Stage(Timed(sets, again), PROCESSING)
    stage.batch(*rows("a", 1_100), now_ms=1_000)
    assert stage.texts(now_ms=1_150) == ["fired 1100 [1100, 1200]"]
    assert stage.texts(now_ms=1_150) == []
    assert stage.texts(now_ms=1_250) == ["fired 1200 [1200, 1300]"]
    assert stage.texts(now_ms=1_350) == ["fired 1300 [1300]"]
    assert stage.rows_of_state() == []


@pytest.mark.parametrize("mode", [PROCESSING, EVENT])
def test_a_timer_that_is_set_for_a_time_that_has_come_fires_at_once(mode):
    """Behind the rows of its key; Spark fires it behind all rows of the micro-batch."""
    stage = Stage(Timed(sets), mode)
    stage.batch(*rows("a", 9_000, at=1_000), now_ms=1_000)
    assert stage.texts(*rows("a", 999, 998, at=1_000), now_ms=1_000) == [
        "rows [998, 999, 9000]",
        "fired 998 [998, 999, 9000]",
        "fired 999 [999, 9000]",
    ]


def test_a_handler_may_set_a_timer_for_before_the_one_that_fires():
    def before(processor, time):
        if time > 1_090:
            processor.handle.registerTimer(time - 10)

    stage = Stage(Timed(sets, before), PROCESSING)
    stage.batch(*rows("a", 1_110), now_ms=1_000)
    assert [text.split()[1] for text in stage.texts(now_ms=2_000)] == ["1110", "1100", "1090"]


def test_a_handler_that_sets_a_due_timer_for_ever_is_stopped():
    def before(processor, time):
        processor.handle.registerTimer(time - 1)

    stage = Stage(Timed(sets, before), PROCESSING)
    stage.batch(*rows("a", 1_000_000), now_ms=1_000)
    with pytest.raises(ProcessError, match="10000 timers fired that were set for times up to"):
        stage.batch(now_ms=2_000_000)


def test_the_times_that_a_processor_is_given_are_sparks():
    seen = []

    def looks(_processor, _values, times):
        seen.append((times.getCurrentProcessingTimeInMs(), times.getCurrentWatermarkInMs()))

    stage = Stage(Timed(looks), EVENT)
    stage.batch(("a", 5_000, 0), now_ms=70)
    stage.batch(("a", 6_000, 0), now_ms=80)
    assert seen == [(70, 0), (80, 5_000)]
    Stage(Timed(looks), PROCESSING).batch(("a", 5_000, 0), now_ms=90)
    assert seen[-1] == (90, 0)


def test_a_timer_is_a_whole_number_of_milliseconds():
    stage = Stage(Timed(lambda self, *_: self.handle.registerTimer(1.5)), PROCESSING)
    with pytest.raises(ProcessError, match="'float' object cannot be interpreted as an integer"):
        stage.batch(("a", 0, 0))


def test_an_error_of_a_handler_names_the_method_and_the_key():
    def fails(processor, time):
        if time == 1_200:
            raise RuntimeError("broken")

    stage = Stage(Timed(sets, fails), PROCESSING)
    stage.batch(*rows("a", 1_100), *rows("b", 1_200), now_ms=1_000)
    with pytest.raises(ProcessError, match=r"on_timer, .*raised RuntimeError: broken") as raised:
        stage.batch(now_ms=2_000)
    assert "{'k': 'b'}" in str(raised.value)
    assert "in handleExpiredTimer" in str(raised.value)
