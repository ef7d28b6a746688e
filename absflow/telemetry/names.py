"""Every metric: what it is called where, its unit, and what it is.

Names are OpenTelemetry's and Prometheus' own, made from one another: dots and underscores, a unit
as suffix, and ``_total`` behind a counter. No label is an id, a key or a key group, of which there
are ever more. (docs/monitoring.md lists all; a test compares.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["ATTRIBUTES", "BUCKETS", "METRICS", "Metric", "MetricKind", "Sample"]


class MetricKind(Enum):
    """What a metric's values are."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Attributes:
        name: Prometheus' name; of a counter without ``_total``.
        otel: OpenTelemetry's name.
        unit: as OpenTelemetry writes it (UCUM).
        words: what it is.
        labels: the names of its labels in Prometheus.
        kind: what its values are.
        live: only a running driver has it; the others are in the tables, too.
    """

    name: str
    otel: str
    unit: str
    words: str
    labels: tuple[str, ...] = ()
    kind: MetricKind = MetricKind.GAUGE
    live: bool = False

    @property
    def shown(self) -> str:
        """The name that is written in a query of Prometheus."""
        return self.name + ("_total" if self.kind is MetricKind.COUNTER else "")


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric; labels that a sample does not have are left out."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


# What labels are called as attributes.
ATTRIBUTES = {
    "stage": "absflow.stage",
    "input": "absflow.input",
    "sink": "absflow.sink",
    "kind": "absflow.checkpoint.kind",
    "mode": "absflow.checkpoint.mode",
    "error_type": "error.type",
    "outcome": "outcome",
    "phase": "phase",
    "scope": "scope",
    "direction": "direction",
    "reason": "reason",
    "step": "step",
}
# Of histograms, in seconds.
BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0, 1800.0),
)
_STAGE, _CHANNEL, _SINK = ("stage",), ("stage", "input"), ("sink",)
_COUNTER, _HISTOGRAM = MetricKind.COUNTER, MetricKind.HISTOGRAM
_ALL = (
    Metric(
        "absflow_driver_running",
        "absflow.driver.running",
        "1",
        "1 if the newest driver runs, or may; 0 if it has ended",
    ),
    Metric(
        "absflow_attempt",
        "absflow.attempt",
        "1",
        "the attempt that the job is in; a restore begins another one",
    ),
    Metric(
        "absflow_checkpoint_interval_seconds",
        "absflow.checkpoint.interval",
        "s",
        "from one trigger to the next (`checkpoint.interval`)",
        live=True,
    ),
    Metric(
        "absflow_checkpoint",
        "absflow.checkpoint.count",
        "{checkpoint}",
        "checkpoints that ended so; from a driver, since its start",
        ("outcome", "kind", "error_type"),
        _COUNTER,
    ),
    Metric(
        "absflow_checkpoint_pending",
        "absflow.checkpoint.pending",
        "{checkpoint}",
        "checkpoints under way",
    ),
    Metric(
        "absflow_checkpoint_aborted_since",
        "absflow.checkpoint.aborted_since",
        "{checkpoint}",
        "checkpoints aborted since the last completed one",
    ),
    Metric(
        "absflow_checkpoint_last_completed_id",
        "absflow.checkpoint.last_completed.id",
        "1",
        "the newest completed checkpoint",
    ),
    Metric(
        "absflow_checkpoint_last_completed_timestamp_seconds",
        "absflow.checkpoint.last_completed.time",
        "s",
        "when it completed, seconds since 1970",
    ),
    Metric(
        "absflow_checkpoint_last_completed_duration_seconds",
        "absflow.checkpoint.last_completed.duration",
        "s",
        "from its trigger on",
    ),
    Metric(
        "absflow_checkpoint_duration_seconds",
        "absflow.checkpoint.duration",
        "s",
        "from the trigger to the completion, of each that has completed",
        ("kind", "mode"),
        _HISTOGRAM,
        live=True,
    ),
    Metric(
        "absflow_checkpoint_phase_seconds",
        "absflow.checkpoint.last_completed.phase",
        "s",
        "how long each phase of it was",
        ("stage", "phase"),
    ),
    Metric(
        "absflow_checkpoint_phase_duration_seconds",
        "absflow.checkpoint.phase.duration",
        "s",
        "how long each phase was, of each that has completed; `finalise` is of no stage",
        ("stage", "phase"),
        _HISTOGRAM,
        live=True,
    ),
    Metric(
        "absflow_checkpoint_size_bytes",
        "absflow.checkpoint.size",
        "By",
        "bytes of state: `changed`, which it wrote, and `total`, which a restore reads",
        ("stage", "scope"),
    ),
    Metric(
        "absflow_checkpoint_in_flight_rows",
        "absflow.checkpoint.in_flight",
        "{row}",
        "rows that it overtook",
        _STAGE,
    ),
    Metric(
        "absflow_checkpoint_late_rows",
        "absflow.checkpoint.late",
        "{row}",
        "rows that came late between it and the one before",
        _STAGE,
    ),
    Metric(
        "absflow_alignment_held_bytes",
        "absflow.alignment.held",
        "By",
        "most bytes held back while it aligned",
        _STAGE,
    ),
    Metric("absflow_state_keys", "absflow.state.keys", "{key}", "keys with state", _STAGE),
    Metric(
        "absflow_state_size_bytes",
        "absflow.state.size",
        "By",
        "bytes of state, as Arrow counts them",
        _STAGE,
    ),
    Metric(
        "absflow_stage_busy_ratio",
        "absflow.stage.busy",
        "1",
        "share of the last minute in micro-batches",
        _STAGE,
    ),
    Metric(
        "absflow_stage_backpressured_ratio",
        "absflow.stage.backpressured",
        "1",
        "share of it that waited for consumers",
        _STAGE,
    ),
    Metric(
        "absflow_stage_rows",
        "absflow.stage.rows",
        "{row}",
        "rows that its query has read (`in`), and that it has emitted, by its reports (`out`)",
        ("stage", "direction"),
        _COUNTER,
        live=True,
    ),
    Metric(
        "absflow_stage_batch_duration_seconds",
        "absflow.stage.batch.duration",
        "s",
        "how long its micro-batches took; those of a chain are of its first stage",
        _STAGE,
        _HISTOGRAM,
        live=True,
    ),
    Metric(
        "absflow_channel_backlog_rows",
        "absflow.channel.backlog.rows",
        "{row}",
        "rows not read yet",
        _CHANNEL,
    ),
    Metric(
        "absflow_channel_backlog_bytes",
        "absflow.channel.backlog.size",
        "By",
        "bytes of their files",
        _CHANNEL,
    ),
    Metric(
        "absflow_channel_backlog_age_seconds",
        "absflow.channel.backlog.age",
        "s",
        "how long the oldest waited",
        _CHANNEL,
    ),
    Metric(
        "absflow_watermark_timestamp_seconds",
        "absflow.watermark.time",
        "s",
        "how far event time has come, seconds since 1970",
        _STAGE,
    ),
    Metric(
        "absflow_watermark_lag_seconds",
        "absflow.watermark.lag",
        "s",
        "how far it is behind the clock",
        _STAGE,
        live=True,
    ),
    Metric(
        "absflow_watermark_drift_seconds",
        "absflow.watermark.drift",
        "s",
        "how far an input is ahead of it, at the newest completed checkpoint",
        _CHANNEL,
    ),
    Metric(
        "absflow_late_rows",
        "absflow.late.rows",
        "{row}",
        "late rows since the query's start: `behind` the watermark of an input, or `emitted` so",
        ("stage", "reason"),
        _COUNTER,
        live=True,
    ),
    Metric(
        "absflow_sink_published_id",
        "absflow.sink.published.id",
        "1",
        "the newest checkpoint that an on-checkpoint sink has",
        _SINK,
    ),
    Metric(
        "absflow_sink_published_lag_seconds",
        "absflow.sink.published.lag",
        "s",
        "how long the oldest checkpoint that it does not have has waited",
        _SINK,
        live=True,
    ),
    Metric(
        "absflow_sink_waiting",
        "absflow.sink.waiting",
        "{checkpoint}",
        "completed checkpoints that it does not have",
        _SINK,
        live=True,
    ),
    Metric(
        "absflow_sink_failures",
        "absflow.sink.failures",
        "{try}",
        "tries to publish the oldest of them that have failed",
        _SINK,
        live=True,
    ),
    Metric(
        "absflow_sink_publication_duration_seconds",
        "absflow.sink.publication.duration",
        "s",
        "how long publications took, failed tries and all",
        _SINK,
        _HISTOGRAM,
        live=True,
    ),
    Metric(
        "absflow_restore",
        "absflow.restore.count",
        "{restore}",
        "restores that this driver has made",
        (),
        _COUNTER,
        live=True,
    ),
    Metric(
        "absflow_restore_duration_seconds",
        "absflow.restore.duration",
        "s",
        "how long each step of a restore was",
        ("step",),
        _HISTOGRAM,
        live=True,
    ),
    Metric(
        "absflow_restart",
        "absflow.restart.count",
        "{restart}",
        "how often its query has died and was started again",
        _STAGE,
        _COUNTER,
        live=True,
    ),
    Metric(
        "absflow_fence",
        "absflow.fence.count",
        "{fence}",
        "1 once a newer driver has taken over",
        (),
        _COUNTER,
        live=True,
    ),
    Metric(
        "absflow_retention_failing",
        "absflow.retention.failing",
        "1",
        "things that retention failed at when it tried last",
    ),
    Metric(
        "absflow_retention_failures",
        "absflow.retention.failures",
        "{try}",
        "tries of retention that have failed",
        (),
        _COUNTER,
        live=True,
    ),
    Metric(
        "absflow_thread_busy_ratio",
        "absflow.thread.busy",
        "1",
        "share of the last minute that the job's own thread was busy",
        live=True,
    ),
    Metric(
        "absflow_thread_waiting",
        "absflow.thread.waiting",
        "{event}",
        "events that wait for it",
        live=True,
    ),
)
METRICS = {metric.name: metric for metric in _ALL}
