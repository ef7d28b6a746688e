"""What a checkpoint is: immutable records, the closed list of failures, and derived status.

Rules of this file: records only, each one a row (or part of a row) of a table of the job; nothing
here changes anything. A checkpoint exists if and only if its COMPLETED fact does: its status is
derived from facts (:func:`status_of`), never stored beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from absflow.drawing import words
from absflow.drawing.checkpoint import ShownStage, checkpoint_html
from absflow.drawing.words import PHASES
from absflow.protocol.event_time import EventTime, to_datetime
from absflow.protocol.load import Load

__all__ = [
    "ChannelState",
    "Fact",
    "FactKind",
    "FailureReason",
    "Kind",
    "Manifest",
    "SetDigest",
    "StageColumns",
    "StageManifest",
    "StageReport",
    "Status",
    "own_reports",
    "own_stages",
    "status_of",
]


class Kind(Enum):
    """What asked for the barrier row: the clock, a person, or the end of an input."""

    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"
    END = "END"


class FailureReason(Enum):
    """Every way in which a checkpoint can end without completing.

    ``counted`` says whether it counts towards ``checkpoint.tolerable-failed``; the counted ones
    follow Flink's ``CheckpointFailureManager``. ``sentence`` is what people read.
    """

    EXPIRED = ("EXPIRED", True, "not every stage reported within its timeout")
    TRIGGER_FAILED = ("TRIGGER_FAILED", True, "the barrier row could not be written")
    SNAPSHOT_FAILED = ("SNAPSHOT_FAILED", True, "a stage's state history could not be appended")
    FINALIZE_FAILED = ("FINALIZE_FAILED", True, "the manifest could not be committed")
    HELD_TOO_MUCH = ("HELD_TOO_MUCH", True, "alignment held more than alignment.max-held")
    DECLINED = ("DECLINED", False, "a stage met a later barrier before it could align this one")
    SUBSUMED = ("SUBSUMED", False, "a later checkpoint completed first")
    DRIVER_RESTART = ("DRIVER_RESTART", False, "the driver ended while it was pending")
    JOB_STOPPED = ("JOB_STOPPED", False, "the job was stopped while it was pending")

    def __init__(self, code: str, counted: bool, sentence: str) -> None:
        """See the class."""
        self.code = code
        self.counted = counted
        self.sentence = sentence


class Status(Enum):
    """Where a checkpoint stands, derived by :func:`status_of`."""

    PENDING = "PENDING"
    COMPLETED = "COMPLETED"
    ABORTED = "ABORTED"
    DELETED = "DELETED"


class FactKind(Enum):
    """The facts of the ``checkpoints`` table: how a checkpoint ended, and what came of it then.

    COMPLETED and ABORTED are terminal. COMPACTED and DELETED may follow a completion; they are
    explained in :mod:`absflow.protocol.retention.plan`.
    """

    COMPLETED = "COMPLETED"
    ABORTED = "ABORTED"
    COMPACTED = "COMPACTED"
    DELETED = "DELETED"


# The kinds of the facts that end a checkpoint, as rows have them.
TERMINAL = frozenset({FactKind.COMPLETED.value, FactKind.ABORTED.value})


class AttemptFact(str, Enum):
    """The facts of the ``attempts`` table.

    STARTED opens an attempt and describes its stages; DRIVER is a later driver that goes on with
    it; RESTORED says that the state of a restored one is in, and comes before its sinks are put
    back; READY says that all it needs is there; ENDED and FAILED say how a driver ended. WRITTEN is
    of no attempt: :mod:`absflow.protocol.recovery.savepoint_writer`.
    """

    STARTED = "STARTED"
    DRIVER = "DRIVER"
    RESTORED = "RESTORED"
    READY = "READY"
    ENDED = "ENDED"
    FAILED = "FAILED"
    WRITTEN = "WRITTEN"


@dataclass(frozen=True, slots=True)
class StageReport:
    """What one stage says of its snapshot, once its channel and sinks have committed.

    Attributes:
        stage: the stage's name.
        checkpoint_id: the checkpoint it snapshotted.
        batch_id: the micro-batch that snapshotted it.
        positions: end offset per root input, as Spark writes it in its offset log.
        in_flight: the channels that the snapshot overtook, each with how far it had been read, as
            Spark writes it. Rows behind that with an epoch up to the checkpoint are its channel
            state.
        rows_changed: upserts and tombstones in the snapshot; 0 means that no set was written.
        bytes_changed: bytes of those rows as Arrow.
        keys_total: live keys of the stage after the snapshot.
        bytes_total: bytes of all state of the stage as Arrow.
        rows_out: rows emitted since the snapshot before; None if they go over a direct edge.
        held_rows: most rows held at once while the stage aligned.
        held_bytes: their bytes.
        start_delay_ms: trigger to the micro-batch that brought the first barrier (>= 0).
        alignment_ms: first barrier to the micro-batch that brought the last.
        sync_ms: the part of the snapshot inside the micro-batch.
        commit_ms: commits to channel and sinks in that micro-batch.
        async_ms: the append to the state history beside the stream, known when it is found; 0 for a
            small snapshot, which its micro-batch appends.
        late_rows: rows of its root inputs that came late since the snapshot before.
        late_emitted: rows that it has emitted behind its own watermark since then.
        early_rows: rows from behind the checkpoint that its state has already, so that a restore
            reads them once more; None of a checkpoint that is exactly once.
        expired_upto: state that was touched last up to then had expired there, microseconds since
            1970 (UTC); None if none had.
        time: its event time there; None if it has none.
    """

    stage: str
    checkpoint_id: int
    batch_id: int
    positions: Mapping[str, str] = field(default_factory=dict)
    in_flight: Mapping[str, str] = field(default_factory=dict)
    rows_changed: int = 0
    bytes_changed: int = 0
    keys_total: int = 0
    bytes_total: int = 0
    rows_out: int | None = 0
    held_rows: int = 0
    held_bytes: int = 0
    start_delay_ms: int = 0
    alignment_ms: int = 0
    sync_ms: int = 0
    commit_ms: int = 0
    async_ms: int = 0
    late_rows: int = 0
    late_emitted: int = 0
    early_rows: int | None = None
    expired_upto: int | None = None
    time: EventTime | None = None


@dataclass(frozen=True, slots=True)
class ChannelState:
    """Rows that a checkpoint has overtaken in one channel, by reference (Chandy and Lamport 1985).

    They are the rows with an epoch up to the checkpoint that are either in one of ``files`` or at
    ``from_seq`` or behind it in the order of the channel.

    Attributes:
        stage: the stage that has yet to read them.
        input: the stage whose channel it is.
        attempt: whose channel it is.
        position: how far it had been read, as Spark writes it; for people.
        epoch: the lowest epoch among them.
        from_seq: the first ``_seq`` behind the commit that was being read.
        files: the unread files of that commit, as its log names them.
        rows: how many rows.
        bytes: the sizes of their files.
    """

    stage: str
    input: str
    attempt: int
    position: str
    epoch: int
    from_seq: int
    files: tuple[str, ...]
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SetDigest:
    """What is said of the rows of a set, so that a reader sees that they are the same.

    Attributes:
        set_id: the set.
        rows: how many rows it has.
        digest: the sum of their hashes (:mod:`absflow.columnar.digest`).
    """

    set_id: int
    rows: int
    digest: int


@dataclass(frozen=True, slots=True)
class StageManifest:
    """One stage in a manifest.

    Attributes:
        report: what the stage said.
        lineage: the sets that make up its state, oldest first.
        in_flight: rows that are on their way to it; known when the checkpoint completes.
        load: how busy it was then, and how far behind; None if the job did not take it.
        sets: the digest of each set of the lineage; of those that an earlier version wrote, none.
    """

    report: StageReport
    lineage: tuple[int, ...]
    in_flight: tuple[ChannelState, ...] = ()
    load: Load | None = None
    sets: tuple[SetDigest, ...] = ()

    def shown(self, checkpoint_id: int) -> ShownStage:
        """What a notebook shows of it in a checkpoint."""
        report = self.report
        reached = None if report.time is None else to_datetime(report.time.stage.value)
        return ShownStage(
            report.stage,
            report.checkpoint_id == checkpoint_id,
            {name: getattr(report, name) for name in PHASES},
            report.rows_changed,
            report.keys_total,
            report.bytes_changed,
            report.bytes_total,
            sum(state.rows for state in self.in_flight),
            report.late_rows,
            "" if reached is None else words.time(reached),
            len(self.lineage),
            report.positions,
        )


def own_reports(checkpoint_id: int, stages: Iterable[StageManifest]) -> list[StageReport]:
    """The reports of this very checkpoint; a stage that had ended repeats an older one."""
    return [stage.report for stage in own_stages(checkpoint_id, stages)]


def own_stages(checkpoint_id: int, stages: Iterable[StageManifest]) -> list[StageManifest]:
    """Of a manifest's stages those that have :func:`own_reports`."""
    return [stage for stage in stages if stage.report.checkpoint_id == checkpoint_id]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record that makes a checkpoint exist; written by one commit and never changed.

    ``request`` is the request that a savepoint answers; a checkpoint of the clock answers none.
    ``derived_from`` is the checkpoint that a written savepoint was made from, 0 if
    from nothing; None for what the job itself has taken.
    """

    checkpoint_id: int
    base_id: int
    triggered_ms: int
    stages: tuple[StageManifest, ...]
    kind: Kind = Kind.CHECKPOINT
    request: str = ""
    derived_from: int | None = None

    def stage(self, name: str) -> StageManifest | None:
        """The part of ``name``, None if the stage is not in this checkpoint."""
        return next((s for s in self.stages if s.report.stage == name), None)

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        triggered = to_datetime(self.triggered_ms * 1_000)
        assert triggered is not None
        pairs = [
            ("triggered", f"{words.time(triggered)} UTC"),
            ("base", f"checkpoint {self.base_id}" if self.base_id else "none: full"),
        ]
        if self.derived_from is not None:
            made = f"checkpoint {self.derived_from}" if self.derived_from else "nothing"
            pairs.append(("written from", made))
        title = f"manifest of {self.kind.value.lower()} {self.checkpoint_id}"
        stages = [stage.shown(self.checkpoint_id) for stage in self.stages]
        return checkpoint_html(title, pairs, stages, None)


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about one checkpoint; a terminal one answers ``request`` if it was a savepoint."""

    checkpoint_id: int
    kind: FactKind
    reason: FailureReason | None = None
    request: str = ""


def status_of(checkpoint_id: int, facts: Iterable[Fact]) -> Status:
    """The status of a triggered checkpoint; of terminal facts the first wins.

    DELETED takes a completion back: the checkpoint cannot be read or restored any more.

    >>> status_of(1, [])
    <Status.PENDING: 'PENDING'>
    """
    kinds = [fact.kind for fact in facts if fact.checkpoint_id == checkpoint_id]
    if FactKind.DELETED in kinds:
        return Status.DELETED
    for kind in kinds:
        if kind in (FactKind.COMPLETED, FactKind.ABORTED):
            return Status(kind.value)
    return Status.PENDING


@dataclass(frozen=True, slots=True)
class StageColumns:
    """The columns of a stage's state history behind absflow's own.

    Attributes:
        stage: the stage's name.
        key: names of the key columns; empty for a forwarding stage, which keeps nothing.
        state: names of the state columns.
        table: the name of the table.
        key_groups: how many key groups it has; 0 if that is not said.
    """

    stage: str
    key: tuple[str, ...]
    state: tuple[str, ...]
    table: str
    key_groups: int = 0
