"""What a job has stored, and what retention says to do about it.

Rules of this file: records only. :mod:`absflow.protocol.retention.plan` decides about them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from absflow.protocol.lineage import Compacted
from absflow.protocol.tiers import TierPolicy

__all__ = [
    "Action",
    "Channel",
    "Compact",
    "Completed",
    "DeleteEpochs",
    "DeleteManifest",
    "DeleteSets",
    "DropChannels",
    "DropPositions",
    "DropWorkingDirectory",
    "InFlight",
    "Inventory",
    "Pending",
    "RetentionPolicy",
    "Sink",
    "sentence",
]


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The settings that retention decides by.

    Attributes:
        retained: completed checkpoints to keep, savepoints not counted; at least 1.
        tiers: when sets are compacted.
    """

    retained: int = 1
    tiers: TierPolicy = field(default_factory=TierPolicy)


@dataclass(frozen=True, slots=True)
class InFlight:
    """Rows that belong to an overtaken checkpoint n but lie in a channel: those of epochs <= n.

    Attributes:
        stage: the stage whose channel it is.
        attempt: the attempt whose channel it is.
        epoch: the lowest epoch that the consumer had not wholly processed at its snapshot.
    """

    stage: str
    attempt: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Completed:
    """What retention needs of a COMPLETED fact.

    Attributes:
        checkpoint_id: the checkpoint.
        attempt: the attempt that took it.
        lineages: the lineage of every stage, as in the manifest.
        in_flight: what it holds by reference; empty if it is aligned.
        keys: the live keys of every stage, as in the manifest.
    """

    checkpoint_id: int
    attempt: int
    lineages: Mapping[str, tuple[int, ...]]
    in_flight: tuple[InFlight, ...] = ()
    keys: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pending:
    """A triggered checkpoint of the current attempt without a terminal fact."""

    checkpoint_id: int
    base_id: int
    in_flight: tuple[InFlight, ...] = ()


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel table.

    Attributes:
        stage: the stage that writes it.
        attempt: the attempt it belongs to.
        epochs: the epochs of which it has rows.
        committed: epochs up to this one lie behind the committed batches of every consuming stage,
            and of the writing one too, which compares a replayed batch with the rows it finds.
            Of no meaning in an attempt that is over.
    """

    stage: str
    attempt: int
    epochs: frozenset[int] = frozenset()
    committed: int = 0


@dataclass(frozen=True, slots=True)
class Sink:
    """A sink that publishes the rows of ``stage``'s channel when a checkpoint has completed.

    Attributes:
        name: the sink.
        stage: the stage it belongs to.
        published: the newest checkpoint it has published of each attempt of which it published
            any. It publishes in the order of ids, with a checkpoint all that led to it.
    """

    name: str
    stage: str
    published: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inventory:
    """All that there is. Pending ids are read first: one that completes meanwhile stays known.

    Attributes:
        attempts: for every attempt that was started, the checkpoint it was restored from (0:
            none); the newest is the current one.
        ready: the current attempt is READY; else it is being restored.
        completed: every COMPLETED fact, deleted checkpoints included.
        savepoints: ids of those that a person asked for.
        written: ids of the written savepoints: their attempt does not go on from
            them, unless it was restored from one.
        deleted: ids with a DELETED fact.
        compacted: every COMPACTED fact.
        pending: what the current attempt has pending.
        ended_id: the newest id with a terminal fact; 0 if there is none.
        sets: ids of the sets in the state history of each stage.
        rows: how many rows each of them has, as far as the logs say.
        channels: every channel table.
        sinks: the sinks that publish on completion.
        working: attempts that have a working directory.
        positions: attempts with files that the positions in their checkpoints need.
    """

    attempts: Mapping[int, int]
    ready: bool = True
    completed: tuple[Completed, ...] = ()
    savepoints: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    deleted: frozenset[int] = frozenset()
    compacted: tuple[Compacted, ...] = ()
    pending: tuple[Pending, ...] = ()
    ended_id: int = 0
    sets: Mapping[str, frozenset[int]] = field(default_factory=dict)
    rows: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    channels: tuple[Channel, ...] = ()
    sinks: tuple[Sink, ...] = ()
    working: frozenset[int] = frozenset()
    positions: frozenset[int] = frozenset()

    @property
    def attempt(self) -> int:
        """The current attempt; 0 if the job was never started."""
        return max(self.attempts, default=0)

    @property
    def restored(self) -> int:
        """The checkpoint that the current attempt was restored from; 0 if none."""
        return self.attempts.get(self.attempt, 0)


@dataclass(frozen=True, slots=True)
class DeleteManifest:
    """Commit the DELETED fact of the checkpoint."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Compact:
    """Write the set, unless it is there, then commit the fact."""

    fact: Compacted


@dataclass(frozen=True, slots=True)
class DeleteSets:
    """Delete these sets from the state history of ``stage``."""

    stage: str
    set_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeleteEpochs:
    """Delete the rows of epochs <= ``upto`` from a channel."""

    stage: str
    attempt: int
    upto: int


@dataclass(frozen=True, slots=True)
class DropChannels:
    """Remove all channel tables of an attempt that is over."""

    attempt: int


@dataclass(frozen=True, slots=True)
class DropWorkingDirectory:
    """Remove the working directory of an attempt that is over."""

    attempt: int


@dataclass(frozen=True, slots=True)
class DropPositions:
    """Remove what the positions of an attempt's checkpoints needed."""

    attempt: int


Action = (
    DeleteManifest
    | Compact
    | DeleteSets
    | DeleteEpochs
    | DropChannels
    | DropWorkingDirectory
    | DropPositions
)


def sentence(action: Action) -> str:
    """An action of retention in words."""
    match action:
        case DeleteManifest(n):
            return f"delete checkpoint {n}"
        case Compact(fact):
            return f"compact sets {', '.join(map(str, fact.replaces))} of stage {fact.stage}"
        case DeleteSets(stage, ids):
            return f"delete sets {', '.join(map(str, ids))} of stage {stage}"
        case DeleteEpochs(stage, attempt, upto):
            return f"delete epochs up to {upto} of channel {stage}, attempt {attempt}"
        case DropChannels(attempt):
            return f"delete the channels of attempt {attempt}"
        case DropWorkingDirectory(attempt):
            return f"delete the working directory of attempt {attempt}"
        case DropPositions(attempt):
            return f"delete the positions of attempt {attempt}"
