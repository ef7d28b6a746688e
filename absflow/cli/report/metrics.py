"""What the tables say, for Prometheus: names and units as its users have them.

All of it is of durable facts, so it is there without a driver, too, and a job that is dead is seen
by a checkpoint that gets older. (docs/operations.md lists them; a test compares.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.exposition import generate_latest

from absflow.cli.records import PHASES, StatusRecord
from absflow.facts.listing import HistoryRecord
from absflow.facts.records import CheckpointRecord
from absflow.protocol.checkpoints import StageManifest, StageReport, Status, own_reports
from absflow.protocol.event_time import to_datetime

__all__ = ["CONTENT_TYPE", "METRICS", "metrics"]

# The name of each, the names of its labels, and what it is.
METRICS = {
    "absflow_driver_running": ((), "1 if the newest driver runs, or may; 0 if it has ended"),
    "absflow_attempt": ((), "the attempt that the job is in; a restore begins another one"),
    "absflow_checkpoint": (("outcome",), "checkpoints that ended so"),
    "absflow_checkpoint_pending": ((), "checkpoints under way"),
    "absflow_checkpoint_aborted_since": ((), "checkpoints aborted since the last completed one"),
    "absflow_checkpoint_last_completed_id": ((), "the newest completed checkpoint"),
    "absflow_checkpoint_last_completed_timestamp_seconds": ((), "when it completed"),
    "absflow_checkpoint_last_completed_duration_seconds": ((), "from its trigger on"),
    "absflow_checkpoint_phase_seconds": (("stage", "phase"), "how long each phase of it was"),
    "absflow_checkpoint_changed_bytes": (("stage",), "bytes of state that it wrote"),
    "absflow_checkpoint_in_flight_rows": (("stage",), "rows that it overtook"),
    "absflow_alignment_held_bytes": (("stage",), "most bytes held back while it aligned"),
    "absflow_state_keys": (("stage",), "keys with state"),
    "absflow_state_bytes": (("stage",), "bytes of state, as Arrow counts them"),
    "absflow_stage_busy_ratio": (("stage",), "share of the minute before it in micro-batches"),
    "absflow_stage_backpressured_ratio": (("stage",), "share that waited for consumers"),
    "absflow_channel_backlog_rows": (("stage", "input"), "rows not read yet"),
    "absflow_channel_backlog_bytes": (("stage", "input"), "bytes of their files"),
    "absflow_channel_backlog_age_seconds": (("stage", "input"), "how long the oldest waited"),
    "absflow_watermark_timestamp_seconds": (("stage",), "how far event time has come"),
    "absflow_late_rows": (("stage",), "rows that came late between it and the one before"),
    "absflow_sink_published_id": (
        ("sink",),
        "the newest checkpoint that an on-checkpoint sink has",
    ),
    "absflow_retention_failing": ((), "things that retention failed at when it tried last"),
}

Value = tuple[tuple[str, ...], float]


def metrics(status: StatusRecord, history: HistoryRecord) -> bytes:
    """All of them in Prometheus' text format.

    Args:
        status: how the job is.
        history: its counts are looked at.
    """
    registry = CollectorRegistry()
    registry.register(_Metrics(status, history))
    return bytes(generate_latest(registry))


class _Metrics:
    """A collector, as the library calls it."""

    def __init__(self, status: StatusRecord, history: HistoryRecord) -> None:
        self._values: dict[str, list[Value]] = {}
        for name, labels, value in (*_of_job(status, history), *_of_last(status.last)):
            self._values.setdefault(name, []).append((labels, value))

    def collect(self) -> Iterator[Any]:
        for name, (labels, words) in METRICS.items():
            kind = CounterMetricFamily if name == "absflow_checkpoint" else GaugeMetricFamily
            family = kind(name, words, labels=labels)
            for of, value in self._values.get(name, []):
                family.add_metric(of, value)
            yield family


_Found = Iterator[tuple[str, tuple[str, ...], float]]


def _of_job(status: StatusRecord, history: HistoryRecord) -> _Found:
    yield "absflow_driver_running", (), float(not status.end)
    yield "absflow_attempt", (), status.attempt
    completed = history.counts.get(Status.COMPLETED, 0) + history.counts.get(Status.DELETED, 0)
    yield "absflow_checkpoint", ("completed",), completed
    yield "absflow_checkpoint", ("aborted",), history.counts.get(Status.ABORTED, 0)
    yield "absflow_checkpoint_pending", (), len(status.pending)
    yield "absflow_checkpoint_aborted_since", (), len(status.aborted)
    yield "absflow_retention_failing", (), len(status.failing)
    for sink, published in status.sinks.items():
        yield "absflow_sink_published_id", (sink,), published


def _of_last(last: CheckpointRecord | None) -> _Found:
    if last is None or last.ended_at is None:
        return
    name = "absflow_checkpoint_last_completed"
    yield f"{name}_id", (), last.checkpoint_id
    yield f"{name}_timestamp_seconds", (), last.ended_at.timestamp()
    yield f"{name}_duration_seconds", (), (last.duration_ms or 0) / 1000
    for report in own_reports(last.checkpoint_id, last.stages):
        yield from _of_report(report)
    for stage in last.stages:
        yield from _of_stage(stage, last.checkpoint_id)


def _of_report(report: StageReport) -> _Found:
    of = (report.stage,)
    for field, phase in PHASES.items():
        yield "absflow_checkpoint_phase_seconds", (*of, phase), getattr(report, field) / 1000
    yield "absflow_checkpoint_changed_bytes", of, report.bytes_changed
    yield "absflow_alignment_held_bytes", of, report.held_bytes
    yield "absflow_late_rows", of, report.late_rows


def _of_stage(stage: StageManifest, checkpoint_id: int) -> _Found:
    report, of = stage.report, (stage.report.stage,)
    yield "absflow_state_keys", of, report.keys_total
    yield "absflow_state_bytes", of, report.bytes_total
    yield "absflow_checkpoint_in_flight_rows", of, sum(state.rows for state in stage.in_flight)
    reached = None if report.time is None else to_datetime(report.time.stage.value)
    if reached is not None:
        yield "absflow_watermark_timestamp_seconds", of, reached.timestamp()
    load = stage.load
    if load is None or report.checkpoint_id != checkpoint_id:
        return
    yield "absflow_stage_busy_ratio", of, load.busy
    yield "absflow_stage_backpressured_ratio", of, load.backpressured
    for backlog in load.backlogs or ():
        both = (*of, backlog.input)
        yield "absflow_channel_backlog_rows", both, backlog.rows
        yield "absflow_channel_backlog_bytes", both, backlog.bytes
        yield "absflow_channel_backlog_age_seconds", both, backlog.age_ms / 1000
