"""The values of the metrics: at a checkpoint, and what a driver has counted since its start.

Rules of this file: no clock, no I/O, and nobody who listens.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from absflow.drawing.words import PHASES
from absflow.facts.records import CheckpointRecord
from absflow.protocol.checkpoints import (
    Kind,
    StageManifest,
    StageReport,
    Status,
    own_reports,
)
from absflow.protocol.event_time import EventTime, to_datetime
from absflow.protocol.load import Load
from absflow.telemetry.happenings import (
    BatchRan,
    CheckpointEnded,
    Happening,
    JobEnded,
    Published,
    QueryRestarted,
    Restored,
    StageDone,
)
from absflow.telemetry.names import Sample

__all__ = ["Tally", "measured", "newest", "of_checkpoint", "of_load"]

_Key = tuple[str, tuple[tuple[str, str], ...]]


def newest(samples: Iterable[Sample]) -> list[Sample]:
    """One sample for each metric and its labels: the last."""
    return [*{_key(sample): sample for sample in samples}.values()]


def _key(sample: Sample) -> _Key:
    return sample.name, tuple(sorted(sample.labels.items()))


def of_checkpoint(last: CheckpointRecord | None) -> Iterator[Sample]:
    """What the newest completed checkpoint says; nothing if there is none."""
    if last is None or last.ended_at is None:
        return
    name = "absflow_checkpoint_last_completed"
    yield Sample(f"{name}_id", last.checkpoint_id)
    yield Sample(f"{name}_timestamp_seconds", last.ended_at.timestamp())
    yield Sample(f"{name}_duration_seconds", (last.duration_ms or 0) / 1000)
    for report in own_reports(last.checkpoint_id, last.stages):
        yield from _of_report(report)
    for stage in last.stages:
        yield from _of_stage(stage, last.checkpoint_id)


def _of_report(report: StageReport) -> Iterator[Sample]:
    of = {"stage": report.stage}
    for phase, seconds in _phases(report):
        yield Sample("absflow_checkpoint_phase_seconds", seconds, {**of, "phase": phase})
    changed = {**of, "scope": "changed"}
    yield Sample("absflow_checkpoint_size_bytes", report.bytes_changed, changed)
    yield Sample("absflow_alignment_held_bytes", report.held_bytes, of)
    yield Sample("absflow_checkpoint_late_rows", report.late_rows, of)


def _phases(report: StageReport) -> Iterator[tuple[str, float]]:
    for name in PHASES:
        yield name.removesuffix("_ms"), getattr(report, name) / 1000


def _of_stage(stage: StageManifest, checkpoint_id: int) -> Iterator[Sample]:
    report = stage.report
    of = {"stage": report.stage}
    yield Sample("absflow_state_keys", report.keys_total, of)
    yield Sample("absflow_state_size_bytes", report.bytes_total, of)
    yield Sample("absflow_checkpoint_size_bytes", report.bytes_total, {**of, "scope": "total"})
    in_flight = sum(state.rows for state in stage.in_flight)
    yield Sample("absflow_checkpoint_in_flight_rows", in_flight, of)
    if report.time is not None:
        yield from _of_time(report.stage, report.time)
    if stage.load is not None and report.checkpoint_id == checkpoint_id:
        yield from of_load(report.stage, stage.load)


def _of_time(stage: str, time: EventTime) -> Iterator[Sample]:
    reached = to_datetime(time.stage.value)
    if reached is None or time.stage.value is None:
        return
    yield Sample("absflow_watermark_timestamp_seconds", reached.timestamp(), {"stage": stage})
    for name, given in time.stage.inputs.items():
        if given.value is not None:
            ahead_s = (given.value - time.stage.value) / 1_000_000
            of = {"stage": stage, "input": name}
            yield Sample("absflow_watermark_drift_seconds", ahead_s, of)


def of_load(stage: str, load: Load) -> Iterator[Sample]:
    """What a stage has been doing, and what it has not read."""
    of = {"stage": stage}
    yield Sample("absflow_stage_busy_ratio", load.busy, of)
    yield Sample("absflow_stage_backpressured_ratio", load.backpressured, of)
    for backlog in load.backlogs or ():
        both = {**of, "input": backlog.input}
        yield Sample("absflow_channel_backlog_rows", backlog.rows, both)
        yield Sample("absflow_channel_backlog_bytes", backlog.bytes, both)
        yield Sample("absflow_channel_backlog_age_seconds", backlog.age_ms / 1000, both)


def measured(happening: Happening) -> Iterator[Sample]:
    """What a happening adds to histograms."""
    match happening:
        case CheckpointEnded(record) if record.status is Status.COMPLETED:
            mode = "overtaken" if happening.overtaken else "aligned"
            of = {"kind": record.kind.value.lower(), "mode": mode}
            seconds = (record.duration_ms or 0) / 1000
            yield Sample("absflow_checkpoint_duration_seconds", seconds, of)
            name = "absflow_checkpoint_phase_duration_seconds"
            for report in own_reports(record.checkpoint_id, record.stages):
                for phase, took_s in _phases(report):
                    yield Sample(name, took_s, {"stage": report.stage, "phase": phase})
            took_s = max(0, happening.finalised_ms - happening.finalising_ms) / 1000
            yield Sample(name, took_s, {"phase": "finalise"})
        case BatchRan(stage, took_ms):
            of = {"stage": stage}
            yield Sample("absflow_stage_batch_duration_seconds", took_ms / 1000, of)
        case Published(sink):
            seconds = (happening.ended_ms - happening.begun_ms) / 1000
            yield Sample("absflow_sink_publication_duration_seconds", seconds, {"sink": sink})
        case Restored(steps=steps):
            for step in steps:
                seconds = (step.ended_ms - step.begun_ms) / 1000
                yield Sample("absflow_restore_duration_seconds", seconds, {"step": step.name})
        case _:
            return


def _counted(happening: Happening) -> Iterator[Sample]:
    """What a happening adds to counters."""
    match happening:
        case CheckpointEnded(record):
            of = {"outcome": record.status.value.lower(), "kind": record.kind.value.lower()}
            of |= {"error_type": record.reason} if record.reason else {}
            yield Sample("absflow_checkpoint", 1, of)
        case StageDone(report):
            of = {"stage": report.stage, "direction": "out"}
            yield Sample("absflow_stage_rows", report.rows_out or 0, of)
        case QueryRestarted(stages):
            yield from (Sample("absflow_restart", 1, {"stage": stage}) for stage in stages)
        case Restored():
            yield Sample("absflow_restore", 1)
        case JobEnded(fenced=True):
            yield Sample("absflow_fence", 1)
        case _:
            return


class Tally:
    """What a driver has counted; any thread may add and look."""

    def __init__(self, stages: Iterable[str]) -> None:
        """Nothing yet, and that is said: a counter that begins at 1 shows no increase."""
        done = {"outcome": Status.COMPLETED.value.lower(), "kind": Kind.CHECKPOINT.value.lower()}
        zeros = [Sample("absflow_checkpoint", 0, done), Sample("absflow_restore", 0)]
        zeros += [Sample("absflow_restart", 0, {"stage": stage}) for stage in stages]
        self._lock = threading.Lock()
        self._counts = {_key(sample): sample for sample in [*zeros, Sample("absflow_fence", 0)]}
        self._aborted = 0
        self._last: CheckpointRecord | None = None

    def add(self, happening: Happening) -> None:
        """Count what has happened."""
        with self._lock:
            for more in _counted(happening):
                before = self._counts.get(_key(more), Sample(more.name, 0))
                value = before.value + more.value
                self._counts[_key(more)] = Sample(more.name, value, more.labels)
            if not isinstance(happening, CheckpointEnded):
                return
            record, last = happening.record, self._last
            if record.status is not Status.COMPLETED:
                self._aborted += 1
            elif last is None or record.checkpoint_id > last.checkpoint_id:
                self._last, self._aborted = record, 0

    def samples(self) -> list[Sample]:
        """The counts, and what the newest checkpoint that completed under this driver says."""
        with self._lock:
            counts, last, aborted = [*self._counts.values()], self._last, self._aborted
        since = Sample("absflow_checkpoint_aborted_since", aborted)
        return [*counts, since, *of_checkpoint(last)]
