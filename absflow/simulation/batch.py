"""What a simulated stage keeps between micro-batches, what one brings, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from absflow.protocol.alignment import AbortArrived, Action, OvertakeArrived
from absflow.protocol.alignment_state import Alignment, Barrier
from absflow.protocol.source_time import SourceTime
from absflow.protocol.watermarks import StageTime
from absflow.simulation.expiry import Ttl
from absflow.simulation.items import Fired, Item, Output, Sent, SentWatermark, Value
from absflow.simulation.job import Row

__all__ = ["Batch", "Entry", "Held", "Memory", "Outcome", "Snapshot"]


@dataclass(frozen=True, slots=True)
class Entry:
    """The state of one key; without a value it is a tombstone.

    ``came`` if the key has come in that very epoch, so that no snapshot has it.
    """

    value: Value | None
    modified_epoch: int
    came: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """A row that waits for its input's gate; ``late`` by the verdict of its source."""

    input: str
    epoch: int
    row: Row
    late: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """What a stage keeps between two micro-batches.

    Attributes:
        alignment: the state of its alignment machine.
        held: rows that may not be processed yet, in the order of arrival.
        values: the keyed state.
        cuts: per checkpoint that waits for its snapshot, the positions of the root inputs that
            have brought its barrier, and their times there.
        time: event time at the stage.
        sources: event time of its root inputs, behind all that was read.
        now_ms: the time of the last batch.
    """

    alignment: Alignment
    time: StageTime
    sources: Mapping[str, SourceTime]
    now_ms: int = 0
    held: tuple[Held, ...] = ()
    values: Mapping[str, Entry] = field(default_factory=dict)
    cuts: Mapping[int, Mapping[str, tuple[int, SourceTime]]] = field(default_factory=dict)

    @property
    def seen(self) -> dict[str, int]:
        """How many rows it has processed on each way into it that were on time."""
        ways = ((name, e.value) for name, e in self.values.items() if name.startswith("path "))
        return {name: value[0] for name, value in ways if value is not None}


@dataclass(frozen=True, slots=True)
class Batch:
    """What one micro-batch brings.

    Attributes:
        items: the next items of each input; those of a root are rows, then control rows.
        positions: how far each input has been read after the batch.
        orders: aborts and overtakes, which every stage reads by itself.
        idle: of root inputs, the partitions that are idle from now on, where they change.
        timers: so many fire at most.
        wall_ms: what the wall clock showed when it was planned.
        ttl: of the brief state; None if there is none.
        sweeps: what has expired is dropped from memory at its end.
    """

    items: Mapping[str, tuple[Item, ...]]
    positions: Mapping[str, int] = field(default_factory=dict)
    orders: tuple[AbortArrived | OvertakeArrived, ...] = ()
    idle: Mapping[str, frozenset[str]] = field(default_factory=dict)
    timers: int = 1_000
    wall_ms: int = 0
    ttl: Ttl | None = None
    sweeps: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a stage hands over for one checkpoint.

    Attributes:
        barrier: of the checkpoint.
        changes: since its base.
        positions: the cut of each root input.
        in_flight: channels that had not brought the barrier, and how far they had been read.
        live: how many keys have state.
        expired_upto: state that was touched last up to then had expired; None if none had.
    """

    barrier: Barrier
    changes: Mapping[str, Value | None]
    positions: Mapping[str, int]
    in_flight: Mapping[str, int]
    live: int
    expired_upto: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a batch: what to keep, what to emit, and what was decided.

    Attributes:
        memory: after the batch.
        emitted: rows, barriers, each with its watermark before it, and the end, in order.
        watermark: the one behind all that, if it is news.
        snapshots: what it hands over.
        said: by the alignment.
        missed: rows that were on time at their source, and came behind the stage's watermark.
        vanished: keys that have come and gone, and left no tombstone.
    """

    memory: Memory
    emitted: tuple[Output, ...]
    watermark: SentWatermark | None
    snapshots: tuple[Snapshot, ...]
    said: tuple[Action, ...]
    missed: tuple[Row, ...]
    vanished: int = 0

    @property
    def rows(self) -> tuple[Output, ...]:
        """What is written first: the rows, and the watermark behind them."""
        rows = (item for item in self.emitted if isinstance(item, Sent | Fired))
        return (*rows, *([self.watermark] if self.watermark else []))

    @property
    def control(self) -> tuple[Output, ...]:
        """What is written then."""
        return tuple(item for item in self.emitted if not isinstance(item, Sent | Fired))
