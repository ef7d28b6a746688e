"""From rows of the tables of facts to records, and back.

Every reader takes rows as mappings, so that Spark, deltalake and tests can give them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from datetime import datetime, timezone
from typing import Any

from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import (
    AttemptFact,
    ChannelState,
    FactKind,
    Kind,
    Manifest,
    SetDigest,
    StageManifest,
    StageReport,
)
from absflow.protocol.known import Trigger
from absflow.protocol.lineage import Compacted
from absflow.protocol.load import Backlog, Load
from absflow.protocol.recovery.attempts import Attempt, Origin
from absflow.protocol.recovery.savepoint_writer import WrittenSavepoint

__all__ = [
    "attempts_of",
    "compacted_of",
    "deleted_of",
    "details_of",
    "manifest_of",
    "millis",
    "stage_of",
    "stage_row",
    "timestamp",
    "trigger_of",
    "written_savepoints",
]


def written_savepoints(rows: Iterable[Mapping[str, Any]]) -> dict[int, WrittenSavepoint]:
    """The written savepoints in rows of ``checkpoints``, by id."""
    return {
        row["checkpoint_id"]: WrittenSavepoint(row["derived_from"], row["incarnation"])
        for row in rows
        if row["derived_from"] is not None
    }


def attempts_of(rows: Iterable[Mapping[str, Any]]) -> list[Attempt]:
    """The attempts in rows of the ``attempts`` table, by number."""
    rows = list(rows)
    facts = {(row["attempt"], row["kind"]) for row in rows}
    started = [row for row in rows if row["kind"] == AttemptFact.STARTED]
    return [
        Attempt(
            row["attempt"],
            _origin(row["restored_from"]),
            (row["attempt"], AttemptFact.READY.value) in facts,
            row["incarnation"],
            (row["attempt"], AttemptFact.RESTORED.value) in facts,
            (row["attempt"], AttemptFact.FAILED.value) in facts,
        )
        for row in sorted(started, key=lambda row: int(row["attempt"]))
    ]


def _origin(text: str | None) -> Origin | None:
    if text is None:
        return None
    root, _, checkpoint_id = text.rpartition("#")
    return Origin(root, int(checkpoint_id))


def compacted_of(rows: Iterable[Mapping[str, Any]]) -> tuple[Compacted, ...]:
    """The COMPACTED facts in rows of ``checkpoints``."""
    return tuple(_compacted(row) for row in rows if row["kind"] == FactKind.COMPACTED.value)


def _compacted(row: Mapping[str, Any]) -> Compacted:
    digest = None
    if row.get("set_digest") is not None:  # who only wants lineages does not read it
        digest = SetDigest(row["set_id"], row["set_rows"], row["set_digest"])
    replaces = tuple(row["replaces"])
    return Compacted(row["checkpoint_id"], row["stage"], row["set_id"], replaces, digest)


def deleted_of(rows: Iterable[Mapping[str, Any]]) -> frozenset[int]:
    """The ids with a DELETED fact in rows of ``checkpoints``."""
    return frozenset(r["checkpoint_id"] for r in rows if r["kind"] == FactKind.DELETED.value)


def trigger_of(row: Mapping[str, Any]) -> Trigger:
    """The trigger in a row of ``barriers`` that is no END."""
    barrier = Barrier(
        row["checkpoint_id"], row["base_id"], row["completed_id"], millis(row["triggered_at"])
    )
    return Trigger(barrier, row["attempt"], Kind(row["kind"]), row["request"] or "")


def manifest_of(row: Mapping[str, Any]) -> Manifest:
    """The manifest in a COMPLETED row of ``checkpoints``."""
    return Manifest(
        row["checkpoint_id"],
        row["base_id"],
        millis(row["triggered_at"]),
        tuple(map(stage_of, row["stages"])),
        Kind(row["type"] or Kind.CHECKPOINT.value),
        row["request"] or "",
        row["derived_from"],
    )


_REPORT = [field.name for field in fields(StageReport)]
_LOAD = [field.name for field in fields(Load)]


def stage_row(stage: StageManifest) -> dict[str, Any]:
    """The value of one element of ``stages``."""
    row = asdict(stage.report)
    row["positions"] = list(stage.report.positions.items())
    row["lineage"] = list(stage.lineage)
    row["in_flight"] = [
        {name: value for name, value in asdict(state).items() if name != "stage"}
        for state in stage.in_flight
    ]
    row["sets"] = [asdict(each) for each in stage.sets]
    return row | (asdict(stage.load) if stage.load else dict.fromkeys(_LOAD))


def stage_of(row: Mapping[str, Any]) -> StageManifest:
    """The inverse of :func:`stage_row`; columns that it does not know are left alone."""
    in_flight = tuple(
        ChannelState(row["stage"], **{**state, "files": tuple(state["files"])})
        for state in row["in_flight"] or []
    )
    known = {name: row[name] for name in _REPORT}
    known["positions"] = dict(row["positions"] or [])
    known["in_flight"] = {state.input: state.position for state in in_flight}
    load = None
    if row.get("busy") is not None:  # a table of an earlier version has no such column
        rows = row["backlogs"]
        backlogs = None if rows is None else tuple(Backlog(**each) for each in rows)
        load = Load(row["busy"], row["backpressured"], backlogs)
    sets = tuple(SetDigest(**each) for each in row.get("sets") or ())
    return StageManifest(StageReport(**known), tuple(row["lineage"]), in_flight, load, sets)


def timestamp(time_ms: int) -> datetime:
    """``time_ms`` (ms since 1970) as an aware datetime in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, tz=timezone.utc)


def millis(time: datetime) -> int:
    """The inverse of :func:`timestamp`."""
    return round(time.timestamp() * 1000)


def details_of(rows: Iterable[Mapping[str, Any]], attempt: int, kind: str) -> dict[str, Any] | None:
    """What a fact of this kind says of an attempt; None if there is no such fact."""
    for row in rows:
        if row["attempt"] == attempt and row["kind"] == kind:
            return dict(json.loads(row["details"]))
    return None
