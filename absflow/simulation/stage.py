"""The work of a simulated stage in one micro-batch: a pure function of memory and batch.

It keeps the rules that the real stage (``absflow.columnar.stage``) keeps: all control rows of the
batch go through the alignment machine first; for each snapshot n every row with epoch <= n is
processed, the state is snapshotted and the barrier forwarded; at last the gates decide about the
rest. Rows are processed in the order (epoch, input, place in the input). Behind the rows come the
watermarks that were admitted with them, and then the timers that are due: each stage counts the
rows that are on time by key and window, and lets a window go when its end has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from absflow.protocol import alignment, alignment_state, watermarks
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
from absflow.protocol.source_time import (
    SourceTime,
    input_time,
    observe,
    partition_status,
    start_source,
)
from absflow.protocol.watermarks import StageTime, Watermark
from absflow.simulation.event_time import timed
from absflow.simulation.items import End, Fired, Item, Output, Sent, SentWatermark, Value
from absflow.simulation.job import DELAY, Row, StageSpec, partitions, transform, window_end

__all__ = ["Batch", "Entry", "Held", "Memory", "Outcome", "Snapshot", "fresh", "run_batch"]

Transform = Callable[[str, Row], tuple[Row, ...]]

_DIGEST_PRIME = (1 << 61) - 1


@dataclass(frozen=True, slots=True)
class Entry:
    """The state of one key; without a value it is a tombstone."""

    value: Value | None
    modified_epoch: int


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
    """

    alignment: Alignment
    time: StageTime
    sources: Mapping[str, SourceTime]
    held: tuple[Held, ...] = ()
    values: Mapping[str, Entry] = field(default_factory=dict)
    cuts: Mapping[int, Mapping[str, tuple[int, SourceTime]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one micro-batch brings.

    Attributes:
        items: the next items of each input; those of a root are rows, then control rows.
        positions: how far each input has been read after the batch.
        orders: aborts and overtakes, which every stage reads by itself.
        idle: of root inputs, the partitions that are idle from now on, where they change.
        timers: so many fire at most.
    """

    items: Mapping[str, tuple[Item, ...]]
    positions: Mapping[str, int] = field(default_factory=dict)
    orders: tuple[AbortArrived | OvertakeArrived, ...] = ()
    idle: Mapping[str, frozenset[str]] = field(default_factory=dict)
    timers: int = 1_000


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
    """What came of a batch: what to keep, what to emit, and what was decided.

    Attributes:
        memory: after the batch.
        emitted: rows, barriers, each with its watermark before it, and the end, in order.
        watermark: the one behind all that, if it is news.
        snapshots: what it hands over.
        said: by the alignment.
        missed: rows that were on time at their source, and came behind the stage's watermark.
    """

    memory: Memory
    emitted: tuple[Output, ...]
    watermark: SentWatermark | None
    snapshots: tuple[Snapshot, ...]
    said: tuple[Action, ...]
    missed: tuple[Row, ...]

    @property
    def rows(self) -> tuple[Output, ...]:
        """What is written first: the rows, and the watermark behind them."""
        rows = (item for item in self.emitted if isinstance(item, Sent | Fired))
        return (*rows, *([self.watermark] if self.watermark else []))

    @property
    def control(self) -> tuple[Output, ...]:
        """What is written then."""
        return tuple(item for item in self.emitted if not isinstance(item, Sent | Fired))


@dataclass(slots=True)
class _Work:
    spec: StageSpec
    transform: Transform
    batch: Batch
    epoch: int
    rows: list[Held]
    values: dict[str, Entry]
    cuts: dict[int, dict[str, tuple[int, SourceTime]]]
    time: StageTime
    sources: dict[str, SourceTime]
    timers: int
    emitted: list[Output] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    missed: list[Row] = field(default_factory=list)


def fresh(spec: StageSpec) -> Memory:
    """The memory of a stage that has read nothing."""
    sources = {name: start_source(DELAY, partitions(name)) for name in spec.roots}
    return Memory(alignment.start(spec.inputs), watermarks.start(spec.inputs), sources)


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
    work = _Work(
        spec,
        transform,
        batch,
        memory.alignment.epoch,
        list(memory.held),
        dict(memory.values),
        {n: dict(p) for n, p in memory.cuts.items()},
        memory.time,
        dict(memory.sources),
        batch.timers,
    )
    for name in spec.inputs:
        _read(work, memory.alignment, name)
    _note_cuts(work)
    for action in said:
        if isinstance(action, TakeSnapshot):
            number = action.barrier.checkpoint_id
            _process(work, dict.fromkeys(spec.inputs, number))
            _snapshot(work, action.barrier, after)
    _process(work, {name: alignment_state.gate(after, name) for name in spec.inputs})
    if any(isinstance(action, EndStage) for action in said):
        work.emitted.append(End())
    kept = Memory(
        after,
        work.time,
        work.sources,
        tuple(work.rows),
        work.values,
        {n: p for n, p in work.cuts.items() if n > after.snapshot},
    )
    return Outcome(
        kept,
        tuple(work.emitted),
        _news(work, memory.time),
        tuple(work.snapshots),
        said,
        tuple(work.missed),
    )


def _read(work: _Work, before: Alignment, name: str) -> None:
    """Take in what an input brings; nothing is processed or admitted yet."""
    # A source knows no epochs: its rows stand behind the newest barrier of the input.
    epoch = alignment_state.brought(before, name) + 1
    items = work.batch.items.get(name, ())
    rows = [item for item in items if isinstance(item, Row)]
    for row in rows:
        work.sources[name], (late,) = observe(work.sources[name], row.partition, [row.at])
        work.rows.append(Held(name, epoch, row, late))
    idle = work.batch.idle.get(name)
    if idle is not None:
        work.sources[name] = partition_status(work.sources[name], idle)
    if rows or idle is not None:
        said = input_time(work.sources[name])
        behind = Watermark(epoch, said.value, said.status)
        work.time = watermarks.arrive(work.time, name, behind)
    for item in items:
        match item:
            case Sent():
                work.rows.append(Held(name, item.epoch, item.row))
            case SentWatermark(watermark):
                work.time = watermarks.arrive(work.time, name, watermark)


def _note_cuts(work: _Work) -> None:
    """A root input's cut for n is the end of the first batch that brought barrier n."""
    for name in work.spec.roots:
        for item in work.batch.items.get(name, ()):
            if isinstance(item, Barrier):
                cut = work.cuts.setdefault(item.checkpoint_id, {})
                cut.setdefault(name, (work.batch.positions[name], work.sources[name]))


def _process(work: _Work, upto: Mapping[str, int | None]) -> None:
    """All rows up to these epochs, then the watermarks behind them, then the timers."""
    due: list[Held] = []
    rest: list[Held] = []
    for held in work.rows:
        limit = upto[held.input]
        (due if limit is None or held.epoch <= limit else rest).append(held)
    work.rows = rest
    due.sort(key=lambda held: (held.epoch, work.spec.inputs.index(held.input)))
    for held in due:
        if held.late:
            _count_late(work, held.row)
            continue
        _fold(work, held.row)
        made = work.transform(work.spec.name, held.row)
        work.emitted.extend(Sent(work.epoch, row) for row in made)
    work.time = watermarks.admit(work.time, upto)
    _fire(work)


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
    if work.time.value is not None and row.at <= work.time.value:
        work.missed.append(row)
    window = f"window {window_end(row.at)} {row.key}"
    count, total = _value(work, window)
    work.values[window] = Entry((count + 1, total + row.sign * row.amount), work.epoch)


def _count_late(work: _Work, row: Row) -> None:
    count, numbers = _value(work, f"late {row.path[0]}")
    work.values[f"late {row.path[0]}"] = Entry((count + 1, numbers + row.number), work.epoch)


def _fire(work: _Work) -> None:
    """The windows that are over, in the order of their ends, as many as may in one batch."""
    due: list[tuple[int, int, Value]] = []
    for name, entry in work.values.items():
        if name.startswith("window ") and entry.value is not None:
            end, key = map(int, name.split()[1:])
            if work.time.value is not None and end <= work.time.value:
                due.append((end, key, entry.value))
    due.sort()
    for end, key, value in due[: work.timers]:
        work.emitted.append(Fired(work.epoch, key, end, value))
        work.values[f"window {end} {key}"] = Entry(None, work.epoch)
    left = due[work.timers :]
    work.timers -= len(due) - len(left)
    work.time = watermarks.fired(work.time, left[0][0] if left else None)


def _news(work: _Work, before: StageTime) -> SentWatermark | None:
    """How far the stage has come, for who is behind it, unless that is known there."""
    known = (before.output, before.status)
    barriers = [item.watermark for item in work.emitted if isinstance(item, SentWatermark)]
    if barriers:
        known = (barriers[-1].value, barriers[-1].status)
    now = work.time
    if (now.output, now.status) == known:
        return None
    return SentWatermark(Watermark(work.epoch, now.output, now.status))


def _value(work: _Work, key: str) -> Value:
    entry = work.values.get(key)
    return entry.value if entry is not None and entry.value is not None else (0, 0)


def _snapshot(work: _Work, barrier: Barrier, after: Alignment) -> None:
    """Hand over what changed since the base, forget old tombstones, forward the barrier."""
    number = barrier.checkpoint_id
    cut = work.cuts.get(number, {})
    here = {
        name: cut.get(name, (work.batch.positions[name], work.sources[name]))
        for name in work.spec.roots
    }
    for name, value in timed(work.time, {name: source for name, (_, source) in here.items()}):
        if _value(work, name) != value:
            work.values[name] = Entry(value, work.epoch)
    changes = {k: e.value for k, e in work.values.items() if e.modified_epoch > barrier.base_id}
    work.values = {
        k: e
        for k, e in work.values.items()
        if e.value is not None or e.modified_epoch > barrier.completed_id
    }
    positions = {name: position for name, (position, _) in here.items()}
    late = [n for n in work.spec.upstream if alignment_state.in_flight(after, n, number)]
    in_flight = {name: work.batch.positions[name] for name in late}
    work.snapshots.append(Snapshot(barrier, changes, positions, in_flight))
    work.emitted.append(SentWatermark(Watermark(number, work.time.output, work.time.status)))
    work.emitted.append(barrier)
    work.epoch = number + 1
