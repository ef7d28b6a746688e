"""One line of the log for each thing that happens, with its fields beside the words.

Each line goes to the logger ``absflow.job``. Its fields are the dict ``record.absflow``, for
handlers of one's own; with ``spark.absflow.log.format`` json all lines of absflow's are JSON.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from absflow.facts.records import CheckpointRecord, sentence_of
from absflow.protocol.checkpoints import Status, own_reports
from absflow.protocol.coordinator.messages import Unexpected
from absflow.telemetry.happenings import (
    BatchRan,
    CheckpointEnded,
    Finalising,
    Happening,
    InputEnded,
    JobEnded,
    JobFinished,
    JobStarted,
    JobStopping,
    Overtaking,
    PublicationFailed,
    Published,
    QueryFailed,
    QueryRestarted,
    ReportDiscarded,
    RequestRefused,
    Restored,
    SnapshotFound,
    StageDone,
    Triggered,
)

__all__ = ["EVENTS", "FORMATS", "JsonFormatter", "Line", "lines_of", "log", "set_format"]

_LOG = logging.getLogger("absflow.job")
FORMATS = ("text", "json")
# Why a stage's report is of no use, and that this does no harm.
_USELESS = {
    Unexpected.LATE: "came when that had ended, as behind a start, which runs a micro-batch again; "
    "nothing is lost, the next one has what it had",
    Unexpected.DUPLICATE: "came twice, as when a micro-batch runs again; it counts once",
    Unexpected.UNKNOWN: "is of none that this driver waits for; nothing is lost",
}
# The events of lines, and at which level each is said.
EVENTS = {
    "job.started": logging.INFO,
    "job.stopping": logging.INFO,
    "job.finished": logging.INFO,
    "job.ended": logging.INFO,
    "checkpoint.triggered": logging.INFO,
    "checkpoint.overtaking": logging.INFO,
    "checkpoint.finalising": logging.DEBUG,
    "checkpoint.completed": logging.INFO,
    "checkpoint.late_rows": logging.WARNING,
    "checkpoint.aborted": logging.INFO,
    "stage.reported": logging.DEBUG,
    "stage.durable": logging.DEBUG,
    "stage.discarded": logging.INFO,
    "input.ended": logging.INFO,
    "request.refused": logging.INFO,
    "restore.done": logging.INFO,
    "query.died": logging.WARNING,
    "query.restarted": logging.INFO,
    "publication.done": logging.INFO,
    "publication.failed": logging.WARNING,
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log.

    Attributes:
        event: which of :data:`EVENTS` it is.
        words: for people.
        fields: for programs, as JSON has values.
    """

    event: str
    words: str
    fields: Mapping[str, Any]


def log(happening: Happening, job: str = "", attempt: int = 0) -> None:
    """Say what has happened in an attempt of a job."""
    of = {"job": job, "attempt": attempt} if job else {}
    for line in lines_of(happening, job):
        fields = {"event": line.event, **of, **line.fields}
        _LOG.log(EVENTS[line.event], "%s", line.words, extra={"absflow": fields})


def lines_of(happening: Happening, job: str = "") -> Iterator[Line]:
    """The lines that it is worth: one as a rule."""
    fields: dict[str, Any]
    match happening:
        case CheckpointEnded(record):
            yield _ended(record, happening)
            if late := [*_late(record)]:
                yield _late_line(record, dict(late))
        case Triggered(n, kind, base_id, request):
            fields = {"checkpoint_id": n, "kind": kind.value, "base_id": base_id}
            fields |= {"request": request} if request else {}
            words = f"{kind.value.lower()} {n} triggered"
            yield Line("checkpoint.triggered", words, fields)
        case Overtaking(n):
            words = f"checkpoint {n} overtakes the rows in flight"
            yield Line("checkpoint.overtaking", words, {"checkpoint_id": n})
        case Finalising(n, kind):
            words = f"{kind.value.lower()} {n} is being finalised: all stages are durable"
            yield Line("checkpoint.finalising", words, {"checkpoint_id": n})
        case StageDone() | SnapshotFound() | ReportDiscarded() | InputEnded():
            yield _of_stage(happening)
        case QueryFailed() | QueryRestarted() | Published() | PublicationFailed():
            yield _of_thread(happening)
        case RequestRefused(request, why):
            fields = {"request": request, "why": why}
            yield Line("request.refused", f"a request for a savepoint is refused: {why}", fields)
        case BatchRan():
            pass  # Spark says more of it, and there are many
        case _:
            yield _of_job(happening, job)


def _of_job(
    happening: JobStarted | JobEnded | JobStopping | JobFinished | Restored, job: str
) -> Line:
    fields: dict[str, Any]
    match happening:
        case JobStarted(root, attempt, incarnation, newest):
            fields = {"root": root, "incarnation": incarnation, "checkpoint_id": newest}
            where = f"goes on from checkpoint {newest}" if newest else "no checkpoint yet"
            words = f"job {job!r} started on {root}: attempt {attempt}, driver {incarnation}, "
            words += where
            return Line("job.started", words, fields)
        case JobEnded(failure, fenced):
            words = f"job {job!r} ended" + (f": {failure}" if failure else "")
            return Line("job.ended", words, {"failure": failure or None, "fenced": fenced})
        case JobStopping():
            return Line("job.stopping", f"job {job!r} is stopping: no more checkpoints", {})
        case JobFinished(n):
            words = f"all input of job {job!r} is in checkpoint {n}"
            return Line("job.finished", words, {"checkpoint_id": n})
        case Restored(origin, _, keys, steps):
            took_ms = happening.ended_ms - happening.begun_ms
            fields = {"origin": origin, "keys": keys, "duration_ms": took_ms}
            fields["steps"] = [
                {"step": s.name, "stages": [*s.stages], "duration_ms": s.ended_ms - s.begun_ms}
                for s in steps
            ]
            words = f"restored {origin} in {took_ms:,} ms: {keys:,} keys"
            return Line("restore.done", words, fields)


def _of_stage(happening: StageDone | SnapshotFound | ReportDiscarded | InputEnded) -> Line:
    fields: dict[str, Any]
    match happening:
        case StageDone(r):
            words = (
                f"stage {r.stage} has snapshotted checkpoint {r.checkpoint_id}: "
                f"{r.rows_changed:,} keys changed, {r.bytes_changed:,} bytes"
            )
            fields = {"checkpoint_id": r.checkpoint_id, "stage": r.stage, "batch_id": r.batch_id}
            fields |= {"rows_changed": r.rows_changed, "bytes_changed": r.bytes_changed}
            fields |= {"start_delay_ms": r.start_delay_ms, "alignment_ms": r.alignment_ms}
            fields |= {"sync_ms": r.sync_ms, "commit_ms": r.commit_ms}
            return Line("stage.reported", words, fields)
        case SnapshotFound(n, stage, async_ms):
            words = f"the snapshot of stage {stage} for checkpoint {n} is durable"
            fields = {"checkpoint_id": n, "stage": stage, "async_ms": async_ms}
            return Line("stage.durable", words, fields)
        case ReportDiscarded(n, stage, why):
            words = f"the report of stage {stage} for checkpoint {n} {_USELESS[why]}"
            fields = {"checkpoint_id": n, "stage": stage, "why": why.value}
            return Line("stage.discarded", words, fields)
        case InputEnded(root):
            words = f"input {root.name} of stage {root.stage} has ended"
            return Line("input.ended", words, {"stage": root.stage, "input": root.name})


def _of_thread(happening: QueryFailed | QueryRestarted | Published | PublicationFailed) -> Line:
    fields: dict[str, Any]
    match happening:
        case QueryFailed(stages, title, delay_ms, why):
            fields = {"stages": [*stages], "delay_ms": delay_ms, "why": why}
            return Line("query.died", f"{title} died, restart in {delay_ms} ms: {why}", fields)
        case QueryRestarted(stages, title):
            return Line("query.restarted", f"{title} restarted", {"stages": [*stages]})
        case Published(sink, n):
            took_ms = happening.ended_ms - happening.begun_ms
            fields = {"sink": sink, "checkpoint_id": n, "after": happening.after}
            fields |= {"duration_ms": took_ms, "waited_ms": happening.waited_ms}
            fields |= {"failures": happening.failures}
            return Line("publication.done", f"checkpoint {n} published to sink {sink}", fields)
        case PublicationFailed(sink, n, wait_ms, why):
            fields = {"sink": sink, "checkpoint_id": n, "delay_ms": wait_ms, "why": why}
            words = (
                f"checkpoint {n} could not be published to sink {sink}, and is tried again in "
                f"{wait_ms} ms: {why}"
            )
            return Line("publication.failed", words, fields)


def _ended(record: CheckpointRecord, happening: CheckpointEnded) -> Line:
    """Of what the checkpoint wrote itself: a stage that had ended repeats an older report."""
    fields: dict[str, Any] = {"checkpoint_id": record.checkpoint_id}
    fields |= {"kind": record.kind.value}
    fields |= {"base_id": record.base_id, "duration_ms": record.duration_ms}
    fields |= {"overtaken": happening.overtaken}
    if record.status is Status.COMPLETED:
        keys, size = record.rows_changed, record.bytes_changed
        fields |= {"rows_changed": keys, "bytes_changed": size}
        words = f"completed in {record.duration_ms:,} ms: {keys:,} keys changed, {size:,} bytes"
        return Line("checkpoint.completed", f"{record.title} {words}", fields)
    reason = record.reason or ""
    cause = (record.cause or "").partition("\n")[0]  # it may be an error of Java's
    words = f"{record.title} aborted: {reason}: {sentence_of(reason)}"
    words += f" ({cause})" if cause else ""
    return Line("checkpoint.aborted", words, fields | {"reason": reason, "cause": cause or None})


def _late(record: CheckpointRecord) -> Iterator[tuple[str, int]]:
    """The stages with rows that came late since the checkpoint before, and how many."""
    for report in own_reports(record.checkpoint_id, record.stages):
        if report.late_rows:
            yield report.stage, report.late_rows


def _late_line(record: CheckpointRecord, late: Mapping[str, int]) -> Line:
    n = record.checkpoint_id
    counts = ", ".join(f"{rows:,} in stage {stage!r}" for stage, rows in late.items())
    words = f'late rows before checkpoint {n}: {counts}; those of sources with late="table" are in '
    return Line("checkpoint.late_rows", f"{words}late/SOURCE", {"checkpoint_id": n, "rows": late})


class JsonFormatter(logging.Formatter):
    """A record as one JSON object in one line: time, level, logger and message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = datetime.fromtimestamp(record.created, tz=timezone.utc)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "absflow", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def set_format(name: str) -> None:
    """How the lines of absflow's are said from here on, in the whole process.

    Args:
        name: ``json``: as JSON to stderr and nowhere else, at INFO unless the logger ``absflow``
            has a level. ``text``: as the program has set up logging.
    """
    logger = logging.getLogger("absflow")
    ours = [h for h in logger.handlers if isinstance(h.formatter, JsonFormatter)]
    if name == "json" and not ours:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
        logger.addHandler(handler)
        logger.propagate = False
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    elif name == "text" and ours:
        for each in ours:
            logger.removeHandler(each)
        logger.propagate = True
