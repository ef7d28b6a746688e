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
    found, time = split_reports(spec_of(source), [(0, said), (0, control), (1, said), (1, control)])
    assert found == [(0, control), (1, control)]
    assert time == TimeReport.from_payload(said)
    assert split_reports(spec_of(source), [(0, control)]) == ([(0, control)], None)


def test_what_is_of_one_range_is_added_up() -> None:
    """Rows that it has emitted late; all else is the same in every range that reports."""
    said = TimeReport.from_payload(report("rows", 9))
    of_each = [replace(said, late_emitted=n).payload().decode() for n in (2, 0, 5)]
    _, time = split_reports(spec_of("rows"), list(enumerate(of_each)))
    assert time == replace(said, late_emitted=7)


def test_ranges_that_come_to_different_times_are_an_error() -> None:
    with pytest.raises(ProtocolViolation, match="its key-group ranges came to 2 event times"):
        split_reports(spec_of("rows"), [(0, report("rows", 9)), (1, report("rows", 8))])
