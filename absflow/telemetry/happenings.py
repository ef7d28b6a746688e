"""What happens in a driver that somebody may want to know of.

Rules of this file: records only. The driver makes one where it happens and hands it to a
:data:`Say`; log lines, metrics and spans follow from it. Times are the wall clock's, ms since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from absflow.facts.records import CheckpointRecord
from absflow.protocol.checkpoints import Kind, StageReport
from absflow.protocol.coordinator.messages import RootInput, Unexpected

__all__ = [
    "BatchRan",
    "CheckpointEnded",
    "Finalising",
    "Happening",
    "InputEnded",
    "JobEnded",
    "JobFinished",
    "JobStarted",
    "JobStopping",
    "Overtaking",
    "PublicationFailed",
    "Published",
    "QueryFailed",
    "QueryRestarted",
    "ReportDiscarded",
    "RequestRefused",
    "Restored",
    "Say",
    "SnapshotFound",
    "StageDone",
    "Step",
    "Steps",
    "Triggered",
]


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A driver runs.

    Attributes:
        root: the storage root.
        attempt: the job's attempt.
        incarnation: the driver's number.
        newest: the newest completed checkpoint; 0 if there is none.
    """

    root: str
    attempt: int
    incarnation: int
    newest: int


@dataclass(frozen=True, slots=True)
class JobEnded:
    """It has ended.

    Attributes:
        failure: why; empty if it did not fail.
        fenced: a newer driver took over.
    """

    failure: str = ""
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class JobStopping:
    """No checkpoint is triggered any more."""


@dataclass(frozen=True, slots=True)
class JobFinished:
    """All input has been read, and is in this checkpoint."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Triggered:
    """The barrier of a checkpoint is written; ``base_id`` is 0 for a full one."""

    checkpoint_id: int
    kind: Kind
    base_id: int
    request: str = ""


@dataclass(frozen=True, slots=True)
class StageDone:
    """A stage has snapshotted."""

    report: StageReport


@dataclass(frozen=True, slots=True)
class SnapshotFound:
    """A stage's snapshot is in its state history."""

    checkpoint_id: int
    stage: str
    async_ms: int


@dataclass(frozen=True, slots=True)
class Overtaking:
    """Barriers do not wait to be aligned any more."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Finalising:
    """All stages are durable; the manifest is being made."""

    checkpoint_id: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class CheckpointEnded:
    """A checkpoint has completed, or was aborted; its terminal fact is written.

    Attributes:
        record: as the tables have it.
        reports: what its stages have said, also of one that was aborted.
        overtaken: its barriers have overtaken rows.
        finalising_ms: when all stages were durable; 0 if they never were.
        finalised_ms: when the manifest was committed.
    """

    record: CheckpointRecord
    reports: tuple[StageReport, ...] = ()
    overtaken: bool = False
    finalising_ms: int = 0
    finalised_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReportDiscarded:
    """A stage's report came for nothing."""

    checkpoint_id: int
    stage: str
    why: Unexpected


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """Somebody wanted a savepoint, and none can be triggered."""

    request: str
    why: str


@dataclass(frozen=True, slots=True)
class InputEnded:
    """A bounded input is in a checkpoint to its end, and ends for good."""

    root: RootInput


@dataclass(frozen=True, slots=True)
class BatchRan:
    """A micro-batch of a query is committed; ``stage`` is the query's first."""

    stage: str
    took_ms: int


@dataclass(frozen=True, slots=True)
class QueryFailed:
    """A query has died and will be started again.

    Attributes:
        stages: its stages.
        title: what it is called in a message.
        delay_ms: until it is started.
        words: why.
    """

    stages: tuple[str, ...]
    title: str
    delay_ms: int
    words: str


@dataclass(frozen=True, slots=True)
class QueryRestarted:
    """It runs again."""

    stages: tuple[str, ...]
    title: str


@dataclass(frozen=True, slots=True)
class Published:
    """A sink has the rows of a checkpoint.

    Attributes:
        sink: its name.
        checkpoint_id: the checkpoint.
        after: the checkpoint that it had before.
        attempt: the attempt whose rows these are.
        waited_ms: so long the publication had waited when it was begun.
        begun_ms: when it was tried first.
        ended_ms: when it was there.
        failures: so many tries have failed.
    """

    sink: str
    checkpoint_id: int
    after: int
    attempt: int
    waited_ms: int
    begun_ms: int
    ended_ms: int
    failures: int = 0


@dataclass(frozen=True, slots=True)
class PublicationFailed:
    """A try to publish has failed; the next comes in ``wait_ms``."""

    sink: str
    checkpoint_id: int
    wait_ms: int
    words: str


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a restore; ``stages`` are those that it is for, empty if it is for all."""

    name: str
    begun_ms: int
    ended_ms: int
    stages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Restored:
    """An attempt has begun with a checkpoint.

    Attributes:
        origin: the checkpoint, as ``root#id``.
        attempt: the attempt.
        keys: so many were restored.
        steps: what took how long, in the order of time.
    """

    origin: str
    attempt: int
    keys: int
    steps: tuple[Step, ...]

    @property
    def begun_ms(self) -> int:
        """When the first step began."""
        return min(step.begun_ms for step in self.steps)

    @property
    def ended_ms(self) -> int:
        """When the last one was done."""
        return max(step.ended_ms for step in self.steps)


Happening = (
    JobStarted
    | JobEnded
    | JobStopping
    | JobFinished
    | Triggered
    | StageDone
    | SnapshotFound
    | Overtaking
    | Finalising
    | CheckpointEnded
    | ReportDiscarded
    | RequestRefused
    | InputEnded
    | BatchRan
    | QueryFailed
    | QueryRestarted
    | Published
    | PublicationFailed
    | Restored
)
# Takes what happens; must neither block nor raise.
Say = Callable[[Happening], None]


@dataclass
class Steps:
    """Measures the steps of a restore.

    Attributes:
        now_ms: the wall clock.
        done: the steps that are done.
    """

    now_ms: Callable[[], int]
    done: list[Step] = field(default_factory=list)

    @contextmanager
    def of(self, name: str, *stages: str) -> Iterator[None]:
        """The block is a step; one that fails is none."""
        begun_ms = self.now_ms()
        yield
        # The wall clock may be set meanwhile.
        self.done.append(Step(name, begun_ms, max(begun_ms, self.now_ms()), stages))
