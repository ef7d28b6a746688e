"""What has come to its end as a tree of spans."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from absflow.facts.records import CheckpointRecord, timestamp
from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import (
    FailureReason,
    Kind,
    Manifest,
    StageManifest,
    StageReport,
    Status,
)
from absflow.protocol.coordinator.messages import WriteAbort
from absflow.protocol.coordinator.pending import Pending
from absflow.telemetry.coordinator import aborted, completed
from absflow.telemetry.happenings import BatchRan, Published, Restored, Step, Steps
from absflow.telemetry.spans import Span, span_of

LEFT = StageReport(
    "left", 7, 3, start_delay_ms=5, alignment_ms=10, sync_ms=20, commit_ms=30, async_ms=40
)
RIGHT = replace(LEFT, stage="right", alignment_ms=100)


def tree(span: Span) -> object:
    """Names and times."""
    return (span.name, span.begin_ms, span.end_ms, [tree(child) for child in span.children])


def test_a_checkpoint_has_its_stages_and_these_their_phases() -> None:
    """One behind another from the trigger on; a stage that had ended has no span."""
    older = replace(LEFT, stage="ended", checkpoint_id=5)
    stages = tuple(StageManifest(report, (7,)) for report in (LEFT, RIGHT, older))
    manifest = Manifest(7, 6, 1_000, stages, Kind.SAVEPOINT)
    pending = Pending(Barrier(7, 6, 6, 1_000), 0, frozenset({"left", "right"}), overtaken=True)
    span = span_of(completed(manifest, pending, 2, 1_300, (1_250, 1_310)))
    assert span is not None
    assert tree(span) == (
        "checkpoint",
        1_000,
        1_310,
        [
            (
                "stage",
                1_000,
                1_105,
                [
                    ("start_delay", 1_000, 1_005, []),
                    ("alignment", 1_005, 1_015, []),
                    ("sync", 1_015, 1_035, []),
                    ("commit", 1_035, 1_065, []),
                    ("async", 1_065, 1_105, []),
                ],
            ),
            (
                "stage",
                1_000,
                1_195,
                [
                    ("start_delay", 1_000, 1_005, []),
                    ("alignment", 1_005, 1_105, []),
                    ("sync", 1_105, 1_125, []),
                    ("commit", 1_125, 1_155, []),
                    ("async", 1_155, 1_195, []),
                ],
            ),
            ("finalise", 1_250, 1_310, []),
        ],
    )
    assert span.attributes == {
        "absflow.checkpoint.id": 7,
        "absflow.checkpoint.base": 6,
        "absflow.checkpoint.kind": "savepoint",
        "absflow.checkpoint.mode": "overtaken",
        "absflow.checkpoint.outcome": "completed",
    }
    assert [child.attributes.get("absflow.stage") for child in span.children] == [
        "left",
        "right",
        None,
    ]
    assert span.error == ""


def test_an_aborted_checkpoint_has_what_its_stages_had_said() -> None:
    """And why it was aborted; of one that an earlier driver has left nothing is known."""
    action = WriteAbort(Barrier(7, 6, 6, 1_000), FailureReason.EXPIRED, "no report from right")
    waiting = frozenset({"left", "right"})
    pending = Pending(action.barrier, 0, waiting, reports={"left": LEFT})
    span = span_of(aborted(action, pending, 2, 1_500))
    assert span is not None
    assert (span.begin_ms, span.end_ms, span.error) == (1_000, 1_500, "no report from right")
    assert [child.attributes["absflow.stage"] for child in span.children] == ["left"]
    assert span.attributes["error.type"] == "EXPIRED"
    assert span.attributes["absflow.checkpoint.outcome"] == "aborted"
    lost = WriteAbort(Barrier(7), FailureReason.DRIVER_RESTART, release=False)
    span = span_of(aborted(lost, None, 2, 1_500))
    assert span is not None
    assert (span.children, span.error) == ((), "DRIVER_RESTART")


def test_a_clock_that_was_set_back_gives_no_negative_span() -> None:
    """Times of the wall clock come from two moments."""
    record = CheckpointRecord(7, Status.COMPLETED, 1, 0, timestamp(9_000), timestamp(1_000))
    done = completed(Manifest(7, 0, 9_000, ()), None, 1, 1_000, (900, 1_000))
    for span in (span_of(done), span_of(replace(done, record=record))):
        assert span is not None
        assert all(each.begin_ms <= each.end_ms for each in (span, *span.children))
    times = iter([50, 20, 30, 60])
    steps = Steps(lambda: next(times))
    for name in ("plan", "read"):
        with steps.of(name):
            pass
    assert [(s.begun_ms, s.ended_ms) for s in steps.done] == [(50, 50), (30, 60)]


def test_a_restore_has_its_steps_and_a_publication_its_wait() -> None:
    steps = (Step("plan", 10, 20), Step("read", 30, 50, ("left",)), Step("sinks", 60, 90))
    span = span_of(Restored("file:/job#7", 2, 12, steps))
    assert span is not None
    assert tree(span) == (
        "restore",
        10,
        90,
        [("plan", 10, 20, []), ("read", 30, 50, []), ("sinks", 60, 90, [])],
    )
    assert span.attributes == {"absflow.restore.origin": "file:/job#7", "absflow.state.keys": 12}
    assert span.children[1].attributes == {"absflow.stage": ["left"]}
    published = span_of(Published("out", 7, 5, 2, 100, 1_000, 1_250, failures=1))
    assert published is not None
    assert tree(published) == (
        "publish",
        900,
        1_250,
        [("wait", 900, 1_000, []), ("write", 1_000, 1_250, [])],
    )
    assert all(a.end_ms == b.begin_ms for a, b in pairwise(published.children))
    assert published.attributes["absflow.publication.failures"] == 1
    assert span_of(BatchRan("left", 5)) is None
