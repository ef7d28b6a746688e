"""What the commands show, as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa

from absflow.facts.records import CheckpointRecord
from absflow.protocol.checkpoints import StageColumns
from absflow.protocol.recovery.attempts import Origin
from absflow.protocol.retention.failures import Failure
from absflow.protocol.retention.inventory import Action

__all__ = [
    "DeletionRecord",
    "RetentionRecord",
    "StateRecord",
    "StatusRecord",
]


@dataclass(frozen=True, slots=True)
class StatusRecord:
    """How a job is.

    Attributes:
        root: its storage root.
        incarnation: the newest driver.
        end: how that has ended: ended, failed or gone; empty if it runs, or may.
        attempt: the one that the job is in.
        origin: the checkpoint that the attempt was restored from, if any.
        last: the newest completed checkpoint, which `latest` means; None without any.
        pending: the checkpoints under way.
        aborted: those since ``last``, as far as they are among the newest hundred.
        failing: what of retention failed when the driver tried it last.
        sinks: of each on-checkpoint sink the newest checkpoint that it has noted as published.
    """

    root: str
    incarnation: int
    end: str
    attempt: int
    origin: Origin | None
    last: CheckpointRecord | None
    pending: tuple[CheckpointRecord, ...]
    aborted: tuple[CheckpointRecord, ...]
    failing: tuple[Failure, ...]
    sinks: Mapping[str, int]

    @property
    def completed_id(self) -> int:
        """The newest completed checkpoint; 0 without any."""
        return self.last.checkpoint_id if self.last else 0

    def age_ms(self, now: datetime) -> float | None:
        """How long ago the last one completed; None without any."""
        if self.last is None or self.last.ended_at is None:
            return None
        return (now - self.last.ended_at) / timedelta(milliseconds=1)


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
        failing: what failed when the driver tried it last.
    """

    actions: tuple[Action, ...]
    reasons: tuple[str, ...]
    failing: tuple[Failure, ...] = ()


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
