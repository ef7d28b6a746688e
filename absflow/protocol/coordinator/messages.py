"""The events that the coordinator gets, what it asks for, and what it is configured with.

Rules of this file: records only. They belong to :mod:`absflow.protocol.coordinator.machine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import (
    FailureReason,
    Kind,
    Manifest,
    SetDigest,
    StageReport,
)
from absflow.protocol.lineage import Compacted
from absflow.protocol.tiers import FEW_ROWS, TierPolicy

__all__ = [
    "FULL_BYTES_PER_TASK",
    "Action",
    "CheckpointFailed",
    "CompletionWritten",
    "DiscardReport",
    "Event",
    "FailJob",
    "FinishJob",
    "HeldTooMuch",
    "HistoryFound",
    "InputExhausted",
    "LineageCompacted",
    "Policy",
    "RefuseRequest",
    "RootInput",
    "SavepointRequested",
    "StageReported",
    "StopJob",
    "StopRequested",
    "Tick",
    "Topology",
    "TriggerWritten",
    "Triggered",
    "Unexpected",
    "WriteAbort",
    "WriteBarrier",
    "WriteCompletion",
    "WriteEnd",
    "WriteOvertake",
]

# A state of so many bytes for each task that holds a part of it is snapshotted whole, before a
# compaction is due: its micro-batch takes some seconds longer.
FULL_BYTES_PER_TASK = 512 << 20


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that the coordinator decides by; times in ms.

    ``aligned_timeout_ms`` is how long a checkpoint's barriers may take to align before they
    overtake what is in flight: 0 for not at all, None for as long as it takes. A checkpoint behind
    one that brought at least ``full_from_rows`` rows, and most of the state, is full; and so is one
    behind which, by ``tiers``, so many rows and most of the state would be compacted, if it has at
    most ``full_upto_bytes``.
    """

    interval_ms: int = 10_000
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    max_concurrent: int = 1
    tolerable_failed: int = 0
    savepoint_timeout_ms: int = 3_600_000
    aligned_timeout_ms: int | None = None
    full_from_rows: int = FEW_ROWS
    tiers: TierPolicy = field(default_factory=TierPolicy)
    full_upto_bytes: int = FULL_BYTES_PER_TASK


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
        bounded: all of them end.
    """

    upstream: Mapping[str, tuple[str, ...]]
    roots: frozenset[RootInput]
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class Triggered:
    """A trigger as the ``barriers`` table has it.

    Attributes:
        barrier: what travels.
        kind: CHECKPOINT or SAVEPOINT.
        request: the request that a savepoint answers.
        ours: it was triggered in the attempt that runs now, so its stages may wait for it.
        exhausted: the root inputs that had nothing left then; for event time they end with it.
    """

    barrier: Barrier
    kind: Kind = Kind.CHECKPOINT
    request: str = ""
    ours: bool = True
    exhausted: frozenset[RootInput] = frozenset()


@dataclass(frozen=True, slots=True)
class Tick:
    """Time goes on.

    Attributes:
        now_ms: the steady clock, which nobody sets: what is due is decided by it.
        at_ms: the wall clock, ms since 1970 (UTC): for people, in the tables.
    """

    now_ms: int
    at_ms: int


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
    """A stage's snapshot was found in the log of its history table (or it had no change).

    ``digest`` is of the set that it wrote; None if it wrote none.
    """

    checkpoint_id: int
    stage: str
    async_ms: int = 0
    digest: SetDigest | None = None


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """Something that the checkpoint needs has failed; ``cause`` is for people."""

    checkpoint_id: int
    reason: FailureReason
    cause: str = ""


@dataclass(frozen=True, slots=True)
class HeldTooMuch:
    """A stage holds more rows than it may, for want of barriers of the checkpoint."""

    checkpoint_id: int
    cause: str = ""


@dataclass(frozen=True, slots=True)
class CompletionWritten:
    """The manifest is in the log of the ``checkpoints`` table.

    Attributes:
        checkpoint_id: of the checkpoint.
        now_ms: the steady clock.
        in_flight: how many rows its channel state has, and how many of its stages are unsettled
            (:func:`absflow.protocol.watermarks.unsettled`). Nothing ends with it if there are any.
    """

    checkpoint_id: int
    now_ms: int
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class InputExhausted:
    """A bounded source has nothing left to read."""

    root: RootInput


@dataclass(frozen=True, slots=True)
class SavepointRequested:
    """A person wants a savepoint; may be repeated until the request has its answer.

    The answer is the terminal fact that carries ``request``, or a RefuseRequest.

    Attributes:
        request: names the request; never used twice, never empty.
        now_ms: the steady clock.
        at_ms: the wall clock.
        stop: the job is to stop once the savepoint has completed.
    """

    request: str
    now_ms: int
    at_ms: int
    stop: bool = False


@dataclass(frozen=True, slots=True)
class LineageCompacted:
    """Retention has written a set in the place of several; later manifests name that one."""

    fact: Compacted


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The job is to stop: pending checkpoints are given up and none is triggered any more."""


Event = (
    Tick
    | TriggerWritten
    | StageReported
    | HistoryFound
    | CheckpointFailed
    | HeldTooMuch
    | CompletionWritten
    | InputExhausted
    | SavepointRequested
    | LineageCompacted
    | StopRequested
)


@dataclass(frozen=True, slots=True)
class WriteBarrier:
    """Append the barrier row; answer with TriggerWritten or CheckpointFailed."""

    barrier: Barrier
    kind: Kind = Kind.CHECKPOINT
    request: str = ""


@dataclass(frozen=True, slots=True)
class WriteCompletion:
    """Commit the manifest; answer with CompletionWritten or CheckpointFailed(FINALIZE_FAILED)."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class WriteAbort:
    """Append the ABORTED fact, and before it the ABORT row that releases blocked inputs.

    Without ``release`` no ABORT row: nothing of the attempt that triggered it runs any more.
    """

    barrier: Barrier
    reason: FailureReason
    cause: str = ""
    kind: Kind = Kind.CHECKPOINT
    request: str = ""
    release: bool = True


@dataclass(frozen=True, slots=True)
class WriteOvertake:
    """Append the OVERTAKE row, which every stage reads; answer only CheckpointFailed."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    """No savepoint can be triggered for this request; its answer, for no fact will carry it."""

    request: str
    why: str


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
    | WriteOvertake
    | RefuseRequest
    | WriteEnd
    | DiscardReport
    | FailJob
    | FinishJob
    | StopJob
)
