"""What the coordinator is told, what it asks for, and what it is configured with.

Rules of this file: records only. :mod:`absflow.protocol.coordinator` is the machine they belong to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from absflow.protocol.alignment import Barrier
from absflow.protocol.checkpoints import FailureReason, Manifest, StageReport

__all__ = [
    "Action",
    "CheckpointFailed",
    "CompletionWritten",
    "DiscardReport",
    "Event",
    "FailJob",
    "FinishJob",
    "HistoryFound",
    "InputExhausted",
    "Policy",
    "RootInput",
    "StageReported",
    "StopJob",
    "StopRequested",
    "Tick",
    "Topology",
    "TriggerWritten",
    "Unexpected",
    "WriteAbort",
    "WriteBarrier",
    "WriteCompletion",
    "WriteEnd",
]


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that the coordinator decides by; times in ms."""

    interval_ms: int = 10_000
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    max_concurrent: int = 1
    tolerable_failed: int = 0


@dataclass(frozen=True, slots=True, order=True)
class RootInput:
    """An input of ``stage`` that reads a source."""

    stage: str
    name: str


@dataclass(frozen=True, slots=True)
class Topology:
    """The graph as the coordinator needs it.

    Attributes:
        upstream: for every stage, in topological order, the stages whose channels it reads.
        roots: every root input of the job.
    """

    upstream: Mapping[str, tuple[str, ...]]
    roots: frozenset[RootInput]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has come to ``now_ms``."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class TriggerWritten:
    """The barrier row is in the log of the ``barriers`` table."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class StageReported:
    """A stage has snapshotted and forwarded, and its commits are done."""

    report: StageReport


@dataclass(frozen=True, slots=True)
class HistoryFound:
    """A stage's snapshot was found in the log of its history table (or it had no change)."""

    checkpoint_id: int
    stage: str
    async_ms: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """Something that the checkpoint needs has failed; ``cause`` is for people."""

    checkpoint_id: int
    reason: FailureReason
    cause: str = ""


@dataclass(frozen=True, slots=True)
class CompletionWritten:
    """The manifest is in the log of the ``checkpoints`` table."""

    checkpoint_id: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class InputExhausted:
    """A bounded source has nothing left to read."""

    root: RootInput


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The job is to stop: pending checkpoints are given up and none is triggered any more."""


Event = (
    Tick
    | TriggerWritten
    | StageReported
    | HistoryFound
    | CheckpointFailed
    | CompletionWritten
    | InputExhausted
    | StopRequested
)


@dataclass(frozen=True, slots=True)
class WriteBarrier:
    """Append the barrier row; answer with TriggerWritten or CheckpointFailed."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class WriteCompletion:
    """Commit the manifest; answer with CompletionWritten or CheckpointFailed(FINALIZE_FAILED)."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class WriteAbort:
    """Append the ABORTED fact, and the ABORT row that releases blocked inputs."""

    barrier: Barrier
    reason: FailureReason
    cause: str = ""


@dataclass(frozen=True, slots=True)
class WriteEnd:
    """Append the END row of a root input."""

    root: RootInput


class Unexpected(Enum):
    """Why a report was of no use; the names follow Flink's answers to a late acknowledge."""

    DUPLICATE = "duplicate"
    LATE = "late"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DiscardReport:
    """A report or find that came for nothing; its set is an orphan."""

    checkpoint_id: int
    stage: str
    why: Unexpected


@dataclass(frozen=True, slots=True)
class FailJob:
    """More counted failures in a row than are tolerated."""

    failures: int
    cause: str


@dataclass(frozen=True, slots=True)
class FinishJob:
    """All input has been read and is in checkpoint ``checkpoint_id``."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class StopJob:
    """Nothing is pending any more: the queries may be stopped."""


Action = (
    WriteBarrier
    | WriteCompletion
    | WriteAbort
    | WriteEnd
    | DiscardReport
    | FailJob
    | FinishJob
    | StopJob
)
