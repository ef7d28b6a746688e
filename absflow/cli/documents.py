"""Records as JSON documents: times ISO 8601, decimals as strings, binary in base64."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from absflow.cli.records import DeletionRecord, RetentionRecord, StateRecord
from absflow.facts.listing import HistoryRecord
from absflow.facts.records import CheckpointRecord, stage_row
from absflow.facts.stages import sentence_of
from absflow.protocol.checkpoints import StageManifest, Status, own_reports
from absflow.protocol.retention.failures import Failure
from absflow.protocol.retention.inventory import sentence

__all__ = [
    "cell",
    "checkpoint",
    "deletion",
    "failure_sentence",
    "failures",
    "history",
    "no_plan",
    "plain",
    "retention",
    "short",
    "state",
    "summary",
    "text",
]

Document = dict[str, Any]
_NESTED_WIDTH = 60


def summary(record: HistoryRecord) -> Document:
    """How many ended how, and how long a completed one takes."""
    return {
        **{s.value.lower(): record.counts.get(s, 0) for s in Status},
        "median_duration_ms": record.median_duration_ms,
    }


def history(record: HistoryRecord) -> Document:
    """Checkpoints in short; the summary is of all."""
    return {"summary": summary(record), "checkpoints": [short(r) for r in record.shown]}


def checkpoint(record: CheckpointRecord) -> Document:
    """One checkpoint with the reports of its stages."""
    return {
        **short(record),
        "versions": dict(record.versions),
        "stages": [_stage(s) for s in record.stages],
    }


def state(record: StateRecord, limit: int | None) -> Document:
    """The first ``limit`` keys of a state; None for all."""
    rows = record.rows if limit is None else record.rows.slice(0, limit)
    return {
        "stage": record.columns.stage,
        "checkpoint_id": record.checkpoint_id,
        "key": list(record.columns.key),
        "keys": record.rows.num_rows,
        "state": [plain(row) for row in rows.to_pylist()],
    }


def retention(record: RetentionRecord) -> Document:
    """A plan of retention."""
    return {
        "actions": [sentence(action) for action in record.actions],
        "stays": list(record.reasons),
        "failing": failures(record.failing),
    }


def failures(failing: Sequence[Failure]) -> list[Document]:
    """What of retention failed."""
    return [
        {
            "what": failure.what,
            "error": failure.error,
            "at": plain(_time(failure.at_ms)),
            "since": plain(_time(failure.since_ms)),
            "in_a_row": failure.in_a_row,
        }
        for failure in failing
    ]


def no_plan(problem: str) -> Document:
    """A plan that restores nothing, as a driver says it of a checkpoint that is not there."""
    return {"restores": False, "problems": [problem]}


def deletion(record: DeletionRecord, answer: str) -> Document:
    """A deletion, and what has become of it."""
    return {
        "checkpoints": [short(checkpoint) for checkpoint in record.checkpoints],
        "frees": [sentence(action) for action in record.frees],
        "bytes": record.bytes,
        "answer": answer,
    }


def failure_sentence(failure: Failure) -> str:
    """What of retention fails, in words."""
    times = "once" if failure.in_a_row == 1 else f"{failure.in_a_row} times in a row"
    at, since = (f"{_time(ms):%Y-%m-%d %H:%M:%S} UTC" for ms in (failure.at_ms, failure.since_ms))
    when = f"at {at}" if failure.in_a_row == 1 else f"since {since}, last at {at}"
    return f"{failure.what}, {times}, {when}: {failure.error}"


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, tz=timezone.utc)


def text(document: Document) -> str:
    """The document as JSON."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """A value of any column as JSON has it; NaN and the infinities, which it has not, as text."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case bytes():
            return base64.b64encode(value).decode()
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case Sequence():
            return [plain(item) for item in value]
    return str(value)


def cell(value: Any) -> str:
    """A value of any column as a table shows it; a long list, map or struct is cut."""
    shown = plain(value)
    if shown is None or isinstance(shown, str):
        return "NULL" if shown is None else shown
    whole = json.dumps(shown, ensure_ascii=False)
    nested = isinstance(shown, list | dict) and len(whole) > _NESTED_WIDTH
    return f"{whole[: _NESTED_WIDTH - 1]}…" if nested else whole


def short(record: CheckpointRecord) -> Document:
    """One checkpoint without its stages."""
    own = own_reports(record.checkpoint_id, record.stages)
    return {
        "checkpoint_id": record.checkpoint_id,
        "type": record.kind.value,
        "status": record.status.value,
        "abandoned": record.abandoned,
        "reason": record.reason,
        "sentence": sentence_of(record.reason),
        "cause": record.cause,
        "attempt": record.attempt,
        "base_id": record.base_id,
        "triggered_at": plain(record.triggered_at),
        "ended_at": plain(record.ended_at),
        "duration_ms": record.duration_ms,
        "rows_changed": record.rows_changed if own else None,
        "bytes_changed": record.bytes_changed if own else None,
    }


def _stage(stage: StageManifest) -> Document:
    report = asdict(replace(stage.report, time=None))
    del report["time"]
    report["snapshot_id"] = report.pop("checkpoint_id")
    row = stage_row(stage)
    names = ("in_flight", "busy", "backpressured", "backlogs", "watermark")
    others = {name: plain(row[name]) for name in names}
    return {**report, **others, "lineage": list(stage.lineage)}
