"""What a driver says of checkpoints, and which rows it counts; no JVM."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from absflow.columnar.spec import InputSpec, StageSpec
from absflow.protocol.alignment_state import Alignment, Barrier, InputState
from absflow.protocol.checkpoints import FailureReason, Kind, Manifest, StageManifest, StageReport
from absflow.protocol.coordinator.messages import RootInput, Unexpected, WriteAbort
from absflow.spark.batch.outcome import StageOutcome, channel_control_rows
from absflow.spark.control.effects import CoordinatorEffects
from absflow.spark.start.ranges import kept_ranges
from absflow.telemetry import happenings
from absflow.telemetry.coordinator import aborted, completed
from absflow.telemetry.happenings import ReportDiscarded
from absflow.telemetry.lines import EVENTS, Line, lines_of, log

ROWS = pa.schema([("k", pa.string())])


def ended(manifest: Manifest, now_ms: int) -> list[Line]:
    """What is said of a checkpoint that has completed now."""
    return [*lines_of(completed(manifest, None, 1, now_ms, (now_ms, now_ms)))]


def test_a_completed_checkpoint_is_a_line() -> None:
    """Of what it wrote itself: a stage that ended before has its older part in the manifest."""
    mine = StageReport("x", 7, 3, rows_changed=1200, bytes_changed=34_000)
    other = StageReport("y", 7, 2, rows_changed=34, bytes_changed=567)
    older = StageReport("z", 5, 1, rows_changed=9, bytes_changed=99)
    stages = tuple(
        StageManifest(report, (report.checkpoint_id,)) for report in (mine, other, older)
    )
    manifest = Manifest(7, 6, 10_000, stages, Kind.SAVEPOINT)
    line = "savepoint 7 completed in 1,234 ms: 1,234 keys changed, 34,567 bytes"
    (said,) = ended(manifest, 11_234)
    assert said.words == line
    assert said.fields["rows_changed"] == 1_234
    assert said.fields["duration_ms"] == 1_234


def test_late_rows_are_told_with_the_checkpoint() -> None:
    """Of the stages that had some since their snapshot before; nothing is said of none."""
    none, some = StageReport("x", 7, 3), StageReport("y", 7, 3, late_rows=1200)
    older = StageReport("z", 5, 1, late_rows=9)
    stages = tuple(StageManifest(report, ()) for report in (none, some, older))
    _, late = ended(Manifest(7, 6, 0, stages), 1)
    assert late.words == (
        "late rows before checkpoint 7: 1,200 in stage 'y'; "
        'those of sources with late="table" are in late/SOURCE'
    )
    assert late.fields == {"checkpoint_id": 7, "rows": {"y": 1_200}}
    assert len(ended(Manifest(7, 6, 0, stages[:1]), 1)) == 1


@pytest.mark.parametrize(
    ("ranges", "key_groups", "partitions", "said"),
    [(2, 4, 2, False), (2, 4, 3, True), (4, 4, 3, True), (4, 4, 200, False), (2, 4, 200, True)],
)
def test_a_number_of_partitions_that_is_not_heeded_is_told(
    ranges: int, key_groups: int, partitions: int, said: bool
) -> None:
    """More than there are key groups are of no use, then as now."""
    line = kept_ranges(7, ranges, key_groups, partitions)
    due = (
        f"spark.sql.shuffle.partitions is {partitions}, but attempt 7 was begun with {ranges} "
        "tasks for each micro-batch of a stage, and keeps them until a restore, as from the latest "
        "checkpoint"
    )
    assert line == (due if said else "")


def test_barriers_and_ends_of_channels_are_control_rows() -> None:
    """Those of root inputs come by a table of their own, and an overtaking one has no input."""
    inputs = (InputSpec("source", ROWS, True), *(InputSpec(n, ROWS, False) for n in ("a", "b")))
    spec = StageSpec("x", inputs, ROWS, pa.schema([]), ROWS, {}, 4)
    before = Alignment({given.name: InputState() for given in inputs})
    after = Alignment(
        {**before.inputs, "b": InputState(ended=True), "source": InputState(ended=True)}
    )
    arrived = (("", 3, 0), ("a", 1, 0), ("a", 2, 0), ("source", 1, 0))
    outcome = StageOutcome(after, arrived, frozenset(), {}, {}, {}, {})
    assert channel_control_rows(spec, before, outcome) == 3
    assert (
        channel_control_rows(spec, after, StageOutcome(after, (), frozenset(), {}, {}, {}, {})) == 0
    )


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (
            WriteAbort(Barrier(4), FailureReason.EXPIRED, "no report from x"),
            "checkpoint 4 aborted: EXPIRED: not every stage reported within its timeout "
            "(no report from x)",
        ),
        (
            WriteAbort(Barrier(4), FailureReason.SNAPSHOT_FAILED, "disk full\n\tat org.Java"),
            "checkpoint 4 aborted: SNAPSHOT_FAILED: a stage's state history could not be appended "
            "(disk full)",
        ),
    ],
)
def test_what_becomes_of_a_checkpoint_is_a_line(
    caplog: pytest.LogCaptureFixture, action: Any, line: str
) -> None:
    """At INFO, with its harm or that there is none."""
    caplog.set_level(logging.INFO, logger="absflow")
    tables: Any = SimpleNamespace(write_abort=lambda *_: None)
    CoordinatorEffects(tables, SimpleNamespace(), 2).begin((action,))  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records] == [line]


def test_a_report_that_is_of_no_use_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """With its harm: none. Its fields are beside the words, for handlers that want them."""
    caplog.set_level(logging.INFO, logger="absflow")
    log(ReportDiscarded(4, "x", Unexpected.LATE), "flights", 2)
    (record,) = caplog.records
    assert record.getMessage() == (
        "the report of stage x for checkpoint 4 came when that had ended, as behind a start, "
        "which runs a micro-batch again; nothing is lost, "
        "the next one has what it had"
    )
    assert record.absflow == {  # type: ignore[attr-defined]
        "event": "stage.discarded",
        "job": "flights",
        "attempt": 2,
        "checkpoint_id": 4,
        "stage": "x",
        "why": "late",
    }


def test_every_happening_has_its_line_and_every_line_its_fields() -> None:
    """As JSON has values; in one line each, whatever an error says."""
    report = StageReport("x", 7, 3, late_rows=2)
    manifest = Manifest(7, 6, 10_000, (StageManifest(report, (7,)),))
    abort = WriteAbort(Barrier(8), FailureReason.EXPIRED, "no report from x\n\tat org.Java")
    said = (
        happenings.JobStarted("file:/job", 1, 2, 6),
        happenings.Restored("file:/job#6", 2, 12, (happenings.Step("read", 0, 500, ("x",)),)),
        happenings.Triggered(7, Kind.SAVEPOINT, 0, "request-1"),
        happenings.Overtaking(7),
        happenings.StageDone(report),
        happenings.SnapshotFound(7, "x", 12),
        happenings.Finalising(7, Kind.CHECKPOINT),
        completed(manifest, None, 1, 11_000, (10_900, 11_010)),
        aborted(abort, None, 1, 12_000),
        happenings.ReportDiscarded(7, "x", Unexpected.DUPLICATE),
        happenings.RequestRefused("request-2", "the job is stopping"),
        happenings.InputEnded(RootInput("x", "source")),
        happenings.QueryFailed(("x", "y"), "stages 'x', 'y'", 100, "it broke"),
        happenings.QueryRestarted(("x", "y"), "stages 'x', 'y'"),
        happenings.PublicationFailed("out", 7, 1_000, "no route"),
        happenings.Published("out", 7, 6, 1, 5, 11_100, 11_300, 1),
        happenings.JobStopping(),
        happenings.JobFinished(7),
        happenings.JobEnded("it broke"),
    )
    lines = [line for each in said for line in lines_of(each, "flights")]
    assert {line.event for line in lines} == EVENTS.keys()
    assert [line.words for line in lines if "\n" in line.words] == []
    assert all(json.loads(json.dumps(line.fields)) == line.fields for line in lines)
    restored = next(line for line in lines if line.event == "restore.done")
    assert restored.words == "restored file:/job#6 in 500 ms: 12 keys"
    assert [*lines_of(happenings.BatchRan("x", 5))] == []
