"""The work of a simulated stage in one micro-batch: a pure function of memory and batch.

It keeps the rules that the real stage (``absflow.columnar.stage``) keeps: all control rows of the
batch go through the alignment machine first; for each snapshot n every row with epoch <= n is
processed, the state is snapshotted and the barrier forwarded; at last the gates decide about the
rest. Rows are processed in the order (epoch, input, place in the input).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from absflow.protocol import alignment, alignment_state
from absflow.protocol.alignment import (
    AbortArrived,
    Action,
    BarrierArrived,
    EndStage,
    Event,
    InputEnded,
    OvertakeArrived,
    TakeSnapshot,
)
from absflow.protocol.alignment_state import Alignment, Barrier
from absflow.simulation.job import Row, StageSpec, transform

__all__ = [
    "Batch",
    "End",
    "Entry",
    "Held",
    "Item",
    "Memory",
    "Outcome",
    "Sent",
    "Snapshot",
    "fresh",
    "run_batch",
]

Value = tuple[int, int]
Transform = Callable[[str, Row], tuple[Row, ...]]

_DIGEST_PRIME = (1 << 61) - 1


@dataclass(frozen=True, slots=True)
class Sent:
    """A row in a channel."""

    epoch: int
    row: Row


@dataclass(frozen=True, slots=True)
class End:
    """The last item of an input."""


Item = Row | Sent | Barrier | End


@dataclass(frozen=True, slots=True)
class Entry:
    """The state of one key; without a value it is a tombstone."""

    value: Value | None
    modified_epoch: int


@dataclass(frozen=True, slots=True)
class Held:
    """A row that waits for its input's gate."""

    input: str
    epoch: int
    row: Row


@dataclass(frozen=True, slots=True)
class Memory:
    """What a stage keeps between two micro-batches.

    Attributes:
        alignment: the state of its alignment machine.
        held: rows that may not be processed yet, in the order of arrival.
        values: the keyed state.
        cuts: per checkpoint that waits for its snapshot, the positions of the root inputs that
            have brought its barrier.
    """

    alignment: Alignment
    held: tuple[Held, ...] = ()
    values: Mapping[str, Entry] = field(default_factory=dict)
    cuts: Mapping[int, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one micro-batch brings.

    Attributes:
        items: the next items of each input; those of a root are rows, then control rows.
        positions: how far each input has been read after the batch.
        orders: aborts and overtakes, which every stage reads by itself.
    """

    items: Mapping[str, tuple[Item, ...]]
    positions: Mapping[str, int] = field(default_factory=dict)
    orders: tuple[AbortArrived | OvertakeArrived, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a stage hands over for one checkpoint.

    Attributes:
        barrier: of the checkpoint.
        changes: since its base.
        positions: the cut of each root input.
        in_flight: channels that had not brought the barrier, and how far they had been read.
    """

    barrier: Barrier
    changes: Mapping[str, Value | None]
    positions: Mapping[str, int]
    in_flight: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a batch: what to keep, what to emit (in order), and what was decided."""

    memory: Memory
    emitted: tuple[Sent | Barrier | End, ...]
    snapshots: tuple[Snapshot, ...]
    said: tuple[Action, ...]


@dataclass(slots=True)
class _Work:
    spec: StageSpec
    transform: Transform
    batch: Batch
    epoch: int
    rows: list[Held]
    values: dict[str, Entry]
    cuts: dict[int, dict[str, int]]
    emitted: list[Sent | Barrier | End] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)


def fresh(spec: StageSpec) -> Memory:
    """The memory of a stage that has read nothing."""
    return Memory(alignment.start(spec.inputs))


def _events(batch: Batch) -> Iterator[Event]:
    """The batch's control rows."""
    yield from batch.orders
    for name, items in batch.items.items():
        for item in items:
            match item:
                case Barrier():
                    yield BarrierArrived(name, item)
                case End():
                    yield InputEnded(name)


def run_batch(
    spec: StageSpec, memory: Memory, batch: Batch, transform: Transform = transform
) -> Outcome:
    """Process one micro-batch."""
    events = alignment.in_order(_events(batch), spec.inputs)
    after, said = alignment.run(memory.alignment, events)
    arrived = [row for name in spec.inputs for row in _rows(spec, memory.alignment, batch, name)]
    cuts = {n: dict(p) for n, p in memory.cuts.items()}
    work = _Work(
        spec,
        transform,
        batch,
        memory.alignment.epoch,
        [*memory.held, *arrived],
        dict(memory.values),
        cuts,
    )
    _note_cuts(work)
    for action in said:
        if isinstance(action, TakeSnapshot):
            _process(work, dict.fromkeys(spec.inputs, action.barrier.checkpoint_id))
            _snapshot(work, action.barrier, after)
    _process(work, {name: alignment_state.gate(after, name) for name in spec.inputs})
    if any(isinstance(action, EndStage) for action in said):
        work.emitted.append(End())
    kept = Memory(
        after,
        tuple(work.rows),
        work.values,
        {n: p for n, p in work.cuts.items() if n > after.snapshot},
    )
    return Outcome(kept, tuple(work.emitted), tuple(work.snapshots), said)


def _rows(spec: StageSpec, before: Alignment, batch: Batch, name: str) -> Iterator[Held]:
    for item in batch.items.get(name, ()):
        match item:
            case Row():
                # A source knows no epochs: its rows stand behind the newest barrier of the input.
                yield Held(name, alignment_state.brought(before, name) + 1, item)
            case Sent(epoch, row):
                yield Held(name, epoch, row)


def _note_cuts(work: _Work) -> None:
    """A root input's position for n is the end of the first batch that brought barrier n."""
    for name in work.spec.roots:
        for item in work.batch.items.get(name, ()):
            if isinstance(item, Barrier):
                cut = work.cuts.setdefault(item.checkpoint_id, {})
                cut.setdefault(name, work.batch.positions[name])


def _process(work: _Work, upto: Mapping[str, int | None]) -> None:
    due: list[Held] = []
    rest: list[Held] = []
    for held in work.rows:
        limit = upto[held.input]
        (due if limit is None or held.epoch <= limit else rest).append(held)
    work.rows = rest
    due.sort(key=lambda held: (held.epoch, work.spec.inputs.index(held.input)))
    for held in due:
        _fold(work, held.row)
        made = work.transform(work.spec.name, held.row)
        work.emitted.extend(Sent(work.epoch, row) for row in made)


def _fold(work: _Work, row: Row) -> None:
    count, total = _value(work, f"key {row.key}")
    changed = (count + row.sign, total + row.sign * row.amount)
    # A key whose rows have all been taken back is deleted: it leaves a tombstone.
    value = changed if changed != (0, 0) else None
    work.values[f"key {row.key}"] = Entry(value, work.epoch)
    path = "path " + ">".join(row.path)
    seen, digest = _value(work, path)
    mixed = (digest * 1_000_003 + row.number * 91 + row.sign * row.amount) % _DIGEST_PRIME
    work.values[path] = Entry((seen + 1, mixed), work.epoch)


def _value(work: _Work, key: str) -> Value:
    entry = work.values.get(key)
    return entry.value if entry is not None and entry.value is not None else (0, 0)


def _snapshot(work: _Work, barrier: Barrier, after: Alignment) -> None:
    """Hand over what changed since the base, forget old tombstones, forward the barrier."""
    changes = {k: e.value for k, e in work.values.items() if e.modified_epoch > barrier.base_id}
    work.values = {
        k: e
        for k, e in work.values.items()
        if e.value is not None or e.modified_epoch > barrier.completed_id
    }
    cut = work.cuts.get(barrier.checkpoint_id, {})
    positions = {name: cut.get(name, work.batch.positions[name]) for name in work.spec.roots}
    late = [
        n for n in work.spec.upstream if alignment_state.in_flight(after, n, barrier.checkpoint_id)
    ]
    in_flight = {name: work.batch.positions[name] for name in late}
    work.snapshots.append(Snapshot(barrier, changes, positions, in_flight))
    work.emitted.append(barrier)
    work.epoch = barrier.checkpoint_id + 1
