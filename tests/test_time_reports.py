"""The reports of a micro-batch of a stage with event time, sorted."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from absflow.columnar.event_time import RootTime, TimeReport
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.errors import ProtocolViolation
from absflow.protocol import event_time
from absflow.protocol.event_time import EventTime
from absflow.protocol.watermarks import StageTime
from absflow.spark.batch.outcome import split_reports

ROWS = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", tz="UTC"))])


def spec_of(source: str) -> StageSpec:
    given = InputSpec(source, ROWS, root=True, event_time=RootTime("ts", 0), timed=True)
    return StageSpec("s", (given,), ROWS, ROWS, ROWS, {}, key_groups=2)


def report(source: str, newest: int) -> str:
    time = event_time.start([source], {source: 0})
    time = event_time.observed(time, {source: 1}, {source: {"": newest}})
    return TimeReport(time, {3: time.stage}, {source: 2}, {source: [""]}).payload().decode()


@pytest.mark.parametrize("source", ["rows", "alignment", "time"])
def test_reports_are_sorted_whatever_a_source_is_called(source: str) -> None:
    control = json.dumps({"alignment": "{}", "arrived": [[source, 1, 0]], "snapshots": []})
    said = report(source, 9)
    reports = [(0, said), (0, control), (1, said), (1, control)]
    found, time, left = split_reports(spec_of(source), reports)
    assert found == [(0, control), (1, control)]
    assert time == TimeReport.from_payload(said)
    assert not left
    assert split_reports(spec_of(source), [(0, control)]) == ([(0, control)], None, False)
    waits = [(0, control), (0, json.dumps({"timers_left": True}))]
    assert split_reports(spec_of(source), waits) == ([(0, control)], None, True)


def test_what_is_of_one_range_is_added_up() -> None:
    """Rows that it has emitted late, and what waits; all else is the same in every range."""
    said = TimeReport.from_payload(report("rows", 9))
    own = ((2, {3: 7, 0: 8}), (0, {}), (5, {0: 6}))
    of_each = [replace(said, late_emitted=n, pending=p).payload().decode() for n, p in own]
    _, time, _ = split_reports(spec_of("rows"), list(enumerate(of_each)))
    assert time == replace(said, late_emitted=7, pending={3: 7, 0: 6})


def test_what_is_said_stays_behind_what_waits() -> None:
    """At each checkpoint and behind the batch; and takes nothing back."""
    moved = StageTime({}, value=20, output=20)
    said = TimeReport(EventTime(moved), {3: moved, 4: moved}, pending={3: 12, 4: 18, 0: 19})
    held = said.held_back(StageTime({}, value=10, output=10))
    assert [held.at[n].output for n in (3, 4)] == [11, 17]
    assert held.time.stage == replace(moved, output=18)
    assert not held.time.stage.settled
    again = said.held_back(StageTime({}, value=20, output=15))
    assert [again.at[n].output for n in (3, 4)] == [15, 17]
    assert replace(said, pending={}).held_back(moved) == replace(said, pending={})


def test_ranges_that_come_to_different_times_are_an_error() -> None:
    with pytest.raises(ProtocolViolation, match="its key-group ranges came to 2 event times"):
        split_reports(spec_of("rows"), [(0, report("rows", 9)), (1, report("rows", 8))])
