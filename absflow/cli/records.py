"""What the commands show, as records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from absflow.facts.records import stage_of
from absflow.protocol.checkpoints import (
    Kind,
    StageColumns,
    StageManifest,
    Status,
)
from absflow.protocol.retention.inventory import Action

__all__ = [
    "CheckpointRecord",
    "DeletionRecord",
    "RetentionRecord",
    "StateRecord",
    "ended_record",
    "pending_record",
]


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


@dataclass(frozen=True, slots=True)
class StateRecord:
    """State of a stage at a checkpoint.

    Attributes:
        checkpoint_id: the checkpoint.
        columns: names of key and state columns.
        rows: one row per key, sorted by key.
    """

    checkpoint_id: int
    columns: StageColumns
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class RetentionRecord:
    """A plan of retention.

    Attributes:
        actions: what it would do, in this order.
        reasons: for each thing that stays, a line that says why.
    """

    actions: tuple[Action, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeletionRecord:
    """A deletion that somebody wants.

    Attributes:
        checkpoints: what is to be deleted.
        refused: why it cannot be; empty if it can.
        frees: what nothing else needs, as actions of retention.
        bytes: how large the files of the sets among it are.
    """

    checkpoints: tuple[CheckpointRecord, ...]
    refused: str
    frees: tuple[Action, ...]
    bytes: int


def ended_record(row: Mapping[str, Any], deleted: Collection[int]) -> CheckpointRecord:
    """A checkpoint with a terminal fact."""
    gone = row["checkpoint_id"] in deleted
    stages = map(stage_of, [] if gone else row["stages"] or [])
    return CheckpointRecord(
        checkpoint_id=row["checkpoint_id"],
        status=Status.DELETED if gone else Status(row["kind"]),
        attempt=row["attempt"],
        base_id=row["base_id"],
        triggered_at=row["triggered_at"],
        ended_at=row["ended_at"],
        duration_ms=row["duration_ms"],
        reason=row["reason"],
        cause=row["cause"],
        stages=tuple(stages),
        versions=dict(row["versions"] or []),
        kind=Kind(row["type"] or Kind.CHECKPOINT.value),
    )


def pending_record(row: Mapping[str, Any]) -> CheckpointRecord:
    """A checkpoint without a terminal fact."""
    return CheckpointRecord(
        checkpoint_id=row["checkpoint_id"],
        status=Status.PENDING,
        attempt=row["attempt"],
        base_id=row["base_id"],
        triggered_at=row["triggered_at"],
    )
