"""From rows of the tables of facts to records, and back.

Every reader takes rows as mappings, so that Spark, deltalake and tests can give them. Rows do not
leave this package: a test of the repository sees to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from typing import Any

from absflow.drawing import words
from absflow.drawing.checkpoint import checkpoint_html
from absflow.drawing.pictures import Bar
from absflow.drawing.shapes import Box
from absflow.protocol import event_time
from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import (
    AttemptFact,
    ChannelState,
    FactKind,
    FailureReason,
    Kind,
    Manifest,
    SetDigest,
    StageManifest,
    StageReport,
    Status,
    own_reports,
)
from absflow.protocol.known import Trigger
from absflow.protocol.lineage import Compacted
from absflow.protocol.load import Backlog, Load
from absflow.protocol.recovery.attempts import Attempt, Origin
from absflow.protocol.recovery.savepoint_writer import WrittenSavepoint

__all__ = [
    "AttemptRecord",
    "CheckpointRecord",
    "Ready",
    "attempt_record",
    "attempts_of",
    "checkpoint_record",
    "compacted_of",
    "deleted_of",
    "details_of",
    "manifest_of",
    "millis",
    "ready_of",
    "request_row",
    "sentence_of",
    "stage_of",
    "stage_row",
    "timestamp",
    "trigger_of",
    "written_savepoints",
]


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """A row of ``attempts``.

    Attributes:
        attempt: the attempt that it is a fact of; of a written savepoint none (``NO_ATTEMPT``).
        incarnation: the driver that wrote it.
        kind: the fact; None for one that this version does not know.
        origin: of a STARTED fact, the checkpoint that the attempt was restored from, if any.
        text: the details, a JSON object; None if there are none.
    """

    attempt: int
    incarnation: int
    kind: AttemptFact | None
    origin: Origin | None = None
    text: str | None = None

    @property
    def details(self) -> dict[str, Any]:
        """What the fact says; empty if it says nothing more."""
        return dict(json.loads(self.text or "{}"))


@dataclass(frozen=True, slots=True)
class Ready:
    """What a READY fact says.

    Attributes:
        control: the versions of ``barriers`` and ``overtakes`` from which the stages read.
        full: the attempt's first snapshots are full ones.
        sinks: place and version of each sink when the attempt began.
        published: the newest checkpoint that each on-checkpoint sink held then; 0 for none.
        on_checkpoint: the stage of each of these.
        times: of each stage with event time what it begins with, as
            :func:`absflow.protocol.event_time.to_json` has it.
    """

    control: tuple[int, int] = (0, 0)
    full: bool = False
    sinks: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, int] = field(default_factory=dict)
    on_checkpoint: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One triggered checkpoint, with its terminal fact if it has one.

    Attributes:
        checkpoint_id: its id.
        status: derived from the facts.
        attempt: the attempt in which it was triggered.
        base_id: what its snapshots are relative to; 0 means that they are full.
        triggered_at: when.
        ended_at: when it was completed or aborted; None if pending.
        duration_ms: between the two.
        reason: code of the reason why it was aborted.
        cause: what was seen then.
        stages: the manifest; empty unless completed.
        versions: of absflow, pyspark and delta-spark.
        kind: whether the clock or a person asked for it.
        abandoned: a restore to an older one has left it beside the branch.
    """

    checkpoint_id: int
    status: Status
    attempt: int
    base_id: int
    triggered_at: datetime
    ended_at: datetime | None = None
    duration_ms: int | None = None
    reason: str | None = None
    cause: str | None = None
    stages: tuple[StageManifest, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    kind: Kind = Kind.CHECKPOINT
    abandoned: bool = False

    @property
    def title(self) -> str:
        """What people call it."""
        return f"{self.kind.value.lower()} {self.checkpoint_id}"

    @property
    def rows_changed(self) -> int:
        """Of all stages that took part: keys that their snapshots have."""
        return sum(r.rows_changed for r in own_reports(self.checkpoint_id, self.stages))

    @property
    def bytes_changed(self) -> int:
        """Of all stages that took part: the size of their snapshots."""
        return sum(r.bytes_changed for r in own_reports(self.checkpoint_id, self.stages))

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """What is said of it as a whole on a page: names and values."""
        beside = ", abandoned by a restore" if self.abandoned else ""
        pairs = [
            ("status", self.status.value + beside),
            ("attempt", str(self.attempt)),
            ("triggered", f"{words.time(self.triggered_at)} UTC"),
        ]
        if self.ended_at is not None:
            pairs.append(("ended", f"{words.time(self.ended_at)} UTC"))
            pairs.append(("duration", words.duration(self.duration_ms)))
        pairs.append(("base", f"checkpoint {self.base_id}" if self.base_id else "none: full"))
        if self.reason:
            pairs.append(("why", sentence_of(self.reason) or self.reason))
        if self.cause:
            pairs.append(("seen", self.cause))
        return tuple(pairs)

    @property
    def line(self) -> str:
        """What is said of it in one line."""
        ended = self.duration_ms is not None
        took = f", {words.duration(self.duration_ms)}" if ended else ""
        why = f": {sentence_of(self.reason)}" if self.reason else ""
        left = ", abandoned by a restore" if self.abandoned else ""
        return f"{self.title}, {self.status.value}{took}{left}{why}"

    def bar(self, box: Box, *, restored: bool = False) -> Bar:
        """What a strip shows of it; ``restored`` if an attempt begins with it."""
        return Bar(
            box,
            self.checkpoint_id,
            "abandoned" if self.abandoned else self.status.value.lower(),
            self.kind is Kind.SAVEPOINT,
            any(stage.in_flight for stage in self.stages),
            restored,
            self.line,
        )

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        stages = [stage.shown(self.checkpoint_id) for stage in self.stages]
        return checkpoint_html(self.title, self.facts, stages, self.duration_ms)


def sentence_of(code: str | None) -> str | None:
    """What people read for a reason's code; None for a code of another version."""
    return next((r.sentence for r in FailureReason if r.code == code), None)


def written_savepoints(rows: Iterable[Mapping[str, Any]]) -> dict[int, WrittenSavepoint]:
    """The written savepoints in rows of ``checkpoints``, by id."""
    return {
        row["checkpoint_id"]: WrittenSavepoint(row["derived_from"], row["incarnation"])
        for row in rows
        if row["derived_from"] is not None
    }


def attempt_record(row: Mapping[str, Any], root: str) -> AttemptRecord:
    """The record of a row of ``attempts``.

    Args:
        row: the row.
        root: the storage root that the table lies under, as its reader names it.
    """
    known = {kind.value: kind for kind in AttemptFact}
    origin = row.get("restored_from")
    return AttemptRecord(
        row["attempt"],
        row["incarnation"],
        known.get(row["kind"]),
        None if origin is None else Origin.read(origin, root),
        row.get("details"),
    )


def attempts_of(records: Iterable[AttemptRecord]) -> list[Attempt]:
    """The attempts in the facts of the ``attempts`` table, by number."""
    records = list(records)
    facts = {(record.attempt, record.kind) for record in records}
    started = [record for record in records if record.kind is AttemptFact.STARTED]
    return [
        Attempt(
            record.attempt,
            record.origin,
            (record.attempt, AttemptFact.READY) in facts,
            record.incarnation,
            (record.attempt, AttemptFact.RESTORED) in facts,
            (record.attempt, AttemptFact.FAILED) in facts,
        )
        for record in sorted(started, key=lambda record: record.attempt)
    ]


def details_of(
    records: Iterable[AttemptRecord], attempt: int, kind: AttemptFact
) -> dict[str, Any] | None:
    """What a fact of this kind says of an attempt; None if there is no such fact."""
    found = (r.details for r in records if r.attempt == attempt and r.kind is kind)
    return next(found, None)


def ready_of(records: Iterable[AttemptRecord], attempt: int) -> Ready | None:
    """What the READY fact of an attempt says; None if there is none."""
    details = details_of(records, attempt, AttemptFact.READY)
    return None if details is None else _ready(details)


def _ready(details: Mapping[str, Any]) -> Ready:
    """The details of a READY fact; of a written savepoint it says less."""
    control = details.get("control", (0, 0))
    return Ready(**{**details, "control": (control[0], control[1])})


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


def checkpoint_record(row: Mapping[str, Any]) -> CheckpointRecord:
    """The checkpoint of a row of ``checkpoints`` that is a terminal fact."""
    return CheckpointRecord(
        checkpoint_id=row["checkpoint_id"],
        status=Status(row["kind"]),
        attempt=row["attempt"],
        base_id=row["base_id"],
        triggered_at=row["triggered_at"],
        ended_at=row["ended_at"],
        duration_ms=row["duration_ms"],
        reason=row["reason"],
        cause=row["cause"],
        stages=tuple(map(stage_of, row["stages"] or [])),
        versions=dict(row["versions"] or []),
        kind=Kind(row["type"] or Kind.CHECKPOINT.value),
    )


def request_row(request: str, time_ms: int, **wanted: Any) -> dict[str, Any]:
    """A row of ``requests``.

    Args:
        request: names it.
        time_ms: when it was made.
        wanted: ``delete``, the checkpoints that are to go; or ``incarnation``, the driver that is
            to take a savepoint, with ``stop``, ``drain`` and ``fire_timers``.
    """
    return {"request": request, "requested_at": timestamp(time_ms), **wanted}


_TIMES = {"time", "expired_upto"}
_REPORT = [each.name for each in fields(StageReport) if each.name not in _TIMES]
# A null is what was not measured; of `rows_out` alone it says something.
_MEASURED = {each.name for each in fields(StageReport) if each.default == 0} - {"rows_out"}
_LOAD = [each.name for each in fields(Load)]


def stage_row(stage: StageManifest) -> dict[str, Any]:
    """The value of one element of ``stages``."""
    time = stage.report.time
    row = {name: getattr(stage.report, name) for name in _REPORT}
    row["watermark"] = None if time is None else event_time.to_datetime(time.stage.value)
    row["expired_upto"] = event_time.to_datetime(stage.report.expired_upto)
    row["event_time"] = None if time is None else event_time.to_json(time)
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
        ChannelState(row["stage"], **{**state, "files": tuple(state["files"] or ())})
        for state in row["in_flight"] or []
    )
    known: dict[str, Any] = {
        n: row.get(n) for n in _REPORT if n not in _MEASURED or row.get(n) is not None
    }
    if row.get("event_time") is not None:
        known["time"] = event_time.from_json(row["event_time"])
    if row.get("expired_upto") is not None:
        known["expired_upto"] = event_time.from_datetime(row["expired_upto"])
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
