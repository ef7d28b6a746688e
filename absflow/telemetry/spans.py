"""A checkpoint, a restore or a publication as a tree of spans, made when it is over.

Rules of this file: plain functions over records; no clock, no I/O, and nobody who listens. A stage
says how long each of its phases was and not when, so they stand one behind another from the
trigger on; what lies between the last of them and the end is the wait for other stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from absflow.drawing.words import PHASES
from absflow.facts.records import CheckpointRecord, millis
from absflow.protocol.checkpoints import StageReport, Status
from absflow.telemetry.happenings import CheckpointEnded, Happening, Published, Restored
from absflow.telemetry.names import ATTRIBUTES

__all__ = ["Span", "span_of"]

Value = str | int | bool | list[str]


@dataclass(frozen=True, slots=True)
class Span:
    """A span; times in ms since 1970.

    Attributes:
        name: what it is a span of.
        begin_ms: its beginning.
        end_ms: its end; not before.
        attributes: by OpenTelemetry's names.
        children: inside of it.
        error: why it failed; empty if it did not.
    """

    name: str
    begin_ms: int
    end_ms: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    children: tuple[Span, ...] = ()
    error: str = ""


def span_of(happening: Happening) -> Span | None:
    """The span of what has come to its end; None for all else."""
    match happening:
        case CheckpointEnded():
            return _checkpoint(happening)
        case Restored():
            return _restore(happening)
        case Published():
            return _publication(happening)
        case _:
            return None


def _checkpoint(ended: CheckpointEnded) -> Span:
    record = ended.record
    begin_ms = millis(record.triggered_at)
    # The time in the fact is that before its commit.
    end_ms = max(begin_ms, millis(record.ended_at or record.triggered_at), ended.finalised_ms)
    aborted = record.status is Status.ABORTED
    children = [_stage(report, begin_ms) for report in ended.reports]
    if not aborted:
        since_ms = min(max(begin_ms, ended.finalising_ms), end_ms)
        children.append(Span("finalise", since_ms, end_ms))
    return Span(
        "checkpoint",
        begin_ms,
        end_ms,
        dict(_said(record, ended)),
        tuple(children),
        error=(record.cause or record.reason or "") if aborted else "",
    )


def _said(record: CheckpointRecord, ended: CheckpointEnded) -> Iterator[tuple[str, Value]]:
    yield "absflow.checkpoint.id", record.checkpoint_id
    yield "absflow.checkpoint.base", record.base_id
    yield ATTRIBUTES["kind"], record.kind.value.lower()
    yield ATTRIBUTES["mode"], "overtaken" if ended.overtaken else "aligned"
    yield "absflow.checkpoint.outcome", record.status.value.lower()
    if record.reason:
        yield ATTRIBUTES["error_type"], record.reason


def _stage(report: StageReport, triggered_ms: int) -> Span:
    phases: list[Span] = []
    at_ms = triggered_ms
    for name in PHASES:
        end_ms = at_ms + getattr(report, name)
        phases.append(Span(name.removesuffix("_ms"), at_ms, end_ms))
        at_ms = end_ms
    said: dict[str, Value] = {
        ATTRIBUTES["stage"]: report.stage,
        "absflow.batch.id": report.batch_id,
        "absflow.state.rows_changed": report.rows_changed,
        "absflow.state.bytes_changed": report.bytes_changed,
        "absflow.alignment.held_bytes": report.held_bytes,
    }
    return Span("stage", triggered_ms, at_ms, said, tuple(phases))


def _restore(restored: Restored) -> Span:
    steps = (
        Span(
            step.name,
            step.begun_ms,
            step.ended_ms,
            {ATTRIBUTES["stage"]: [*step.stages]} if step.stages else {},
        )
        for step in restored.steps
    )
    said: dict[str, Value] = {
        "absflow.restore.origin": restored.origin,
        "absflow.state.keys": restored.keys,
    }
    return Span("restore", restored.begun_ms, restored.ended_ms, said, tuple(steps))


def _publication(published: Published) -> Span:
    """It begins when the checkpoint has completed; the wait for the sink is its first child."""
    begin_ms = published.begun_ms - published.waited_ms
    said: dict[str, Value] = {
        ATTRIBUTES["sink"]: published.sink,
        "absflow.checkpoint.id": published.checkpoint_id,
        "absflow.publication.after": published.after,
        "absflow.publication.failures": published.failures,
    }
    children = (
        Span("wait", begin_ms, published.begun_ms),
        Span("write", published.begun_ms, max(published.begun_ms, published.ended_ms)),
    )
    return Span("publish", begin_ms, children[-1].end_ms, said, children)
