"""Rows that a stage emits behind its own watermark are counted; a delay puts that back."""

import json

import pyarrow as pa
import pytest
from arrow_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from timed_cases import GROUPS, KEYS, ROWS, TimedStage

from absflow.columnar.event_time import RootTime, TimeReport
from absflow.columnar.pages import TIME_TYPE, PageKind
from absflow.columnar.process import Result
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.columnar.timers import timer_fields
from absflow.errors import ResultError
from absflow.protocol.watermarks import WatermarkStatus

OUTPUT = pa.schema([("k", pa.string()), ("at", TIME_TYPE)])
STATE = pa.schema([("n", pa.int64()), *timer_fields()])


def older(rows, state, context):
    """Emits each row with its value as its time, and sets a timer there if it is not over."""
    at = rows["v"].cast(TIME_TYPE)
    there = pa.array([1] * state.num_rows)
    timers = pa.table({"k": rows["k"], "time": at})
    if context.watermark is not None:
        later = [time > context.watermark for time in at.to_pylist()]
        timers = timers.filter(pa.array(later))
    output = pa.table([rows["k"], at], schema=OUTPUT)
    return Result(output, state=state.set_column(1, "n", there), timers=timers)


def own_time(rows, state, context):
    """Emits a row as old as the timer."""
    return Result(pa.table([rows["k"], rows["time"]], schema=OUTPUT))


class LateStage(TimedStage):
    """A stage of late="process", which says how many rows it has emitted late."""

    def __init__(self, process=older, delay=0, output_time="at"):
        time = RootTime("ts", 0, late="process")
        rows = InputSpec("rows", ROWS, True, event_time=time, timed=True)
        super().__init__(
            StageSpec(
                "s", (rows,), KEYS, STATE, OUTPUT, {"rows": process}, GROUPS, own_time,
                output_time=output_time, watermark_delay=delay,
            )
        )  # fmt: skip
        self.late = 0

    def batch(self, *args, **kwargs):
        out = super().batch(*args, **kwargs)
        for page in out:
            if page.kind is PageKind.REPORT and b'"alignment"' not in page.payload:
                self.late += TimeReport.from_payload(page.payload.decode()).late_emitted
        return out


ARRIVALS = st.tuples(st.sampled_from("abcd"), st.integers(0, 99), st.integers(0, 120))
BATCHES = st.lists(st.tuples(st.lists(ARRIVALS, max_size=5), st.booleans()), min_size=1, max_size=6)


@examples(80)
@given(BATCHES, st.sampled_from([0, 7, 40]))
def test_what_is_not_behind_what_was_said_is_late(batches, delay):
    """Whatever the delay: by the rows alone, and never what timers emit."""
    stage, due, newest, number = LateStage(delay=delay), 0, None, 0
    for rows, barrier in batches:
        said = None if newest is None else newest - 1 - delay
        due += sum(said is not None and v <= said for _, _, v in rows)
        times = [ts for _, ts, _ in rows] + ([] if newest is None else [newest])
        newest = max(times, default=None)
        number += barrier
        out = stage.batch(rows, barrier=number if barrier else 0)
        assert stage.late == due
        reached = None if newest is None else newest - 1 - delay
        assert stage.time.stage.output == reached
        for page in out:
            if page.kind in (PageKind.BARRIER, PageKind.WATERMARK):
                assert json.loads(page.payload)["value"] == reached


def test_a_batch_that_moves_no_time_counts_too():
    """Rows of the very time that the watermark waits for, in a key group without other news."""
    stage = LateStage()
    stage.batch([("a", 50, 60)])
    before = stage.time
    stage.batch([("a", 50, 49), ("b", 50, 50), ("c", 50, 3)])
    assert (stage.late, stage.time) == (2, before)
    assert LateStage(output_time=None).batch([("a", 50, 1), ("b", 60, 1)])


def test_rows_of_the_last_timers_may_be_as_old_as_these():
    stage = LateStage()
    stage.batch([("a", 50, 60), ("b", 50, 80)])
    stage.batch(barrier=1, ended=True)
    assert stage.time.stage.status is WatermarkStatus.ENDED
    assert stage.late == 0


def test_a_row_without_a_time_is_refused():
    def without(rows, state, context):
        return Result(pa.table([rows["k"], pa.nulls(rows.num_rows, TIME_TYPE)], schema=OUTPUT))

    with pytest.raises(ResultError, match="output has no time in column 'at'"):
        LateStage(without).batch([("a", 50, 60)])
