"""The work of a simulated stage in one micro-batch: a pure function of memory and batch.

It keeps the rules that the real stage (``absflow.columnar.stage``) keeps: all control rows of the
batch go through the alignment machine first; for each snapshot n every row with epoch <= n is
processed, the state is snapshotted and the barrier forwarded; at last the gates decide about the
rest. Rows are processed in the order (epoch, input, place in the input). Behind the rows come the
watermarks that were admitted with them, and then the timers that are due: each stage counts the
rows that are on time by key and window, and lets a window go when its end has come. It keeps brief
state, too, which expires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from absflow.protocol import alignment, alignment_state, watermarks
from absflow.protocol.alignment import (
    BarrierArrived,
    EndStage,
    Event,
    InputEnded,
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
from absflow.simulation.batch import Batch, Entry, Held, Memory, Outcome, Snapshot
from absflow.simulation.event_time import timed
from absflow.simulation.expiry import Ttl, brief_name, expired, step
from absflow.simulation.items import End, Fired, Output, Sent, SentWatermark, Value
from absflow.simulation.job import DELAY, Row, StageSpec, partitions, transform, window_end

__all__ = ["fresh", "run_batch"]

Transform = Callable[[str, Row], tuple[Row, ...]]

_DIGEST_PRIME = (1 << 61) - 1


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
    now_ms: int
    vanished: int = 0
    emitted: list[Output] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    missed: list[Row] = field(default_factory=list)

    @property
    def expired_upto(self) -> int | None:
        """State that was touched last up to then has expired by now; None if none has."""
        ttl = self.batch.ttl
        return None if ttl is None else ttl.upto(self.time.value, self.now_ms)


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
        batch_time(memory, batch),
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
    if batch.sweeps:
        upto = work.expired_upto
        work.values = {k: e for k, e in work.values.items() if not expired(k, e.value, upto)}
    kept = Memory(
        after,
        work.time,
        work.sources,
        work.now_ms,
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
        work.vanished,
    )


def batch_time(memory: Memory, batch: Batch) -> int:
    """The time of a batch, which does not go back when a wall clock does."""
    return max(memory.now_ms, batch.wall_ms)


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
    # A key whose rows have all been taken back is deleted.
    _put(work, f"key {row.key}", changed if changed != (0, 0) else None)
    path = "path " + ">".join(row.path)
    seen, digest = _value(work, path)
    mixed = (digest * 1_000_003 + row.number * 91 + row.sign * row.amount) % _DIGEST_PRIME
    _put(work, path, (seen + 1, mixed))
    if work.time.value is not None and row.at <= work.time.value:
        work.missed.append(row)
    window = f"window {window_end(row.at)} {row.key}"
    count, total = _value(work, window)
    _put(work, window, (count + 1, total + row.sign * row.amount))
    if work.batch.ttl is not None:
        _fold_brief(work, row, work.batch.ttl)


def _fold_brief(work: _Work, row: Row, ttl: Ttl) -> None:
    """State that has expired is none, whether it is still there or not."""
    name = brief_name(row)
    entry = work.values.get(name)
    before = None if entry is None else entry.value
    if expired(name, before, work.expired_upto):
        before = None
    after = step(before, row, ttl, work.now_ms if ttl.clock else row.at)
    if after != before:
        _put(work, name, after)


def _count_late(work: _Work, row: Row) -> None:
    count, numbers = _value(work, f"late {row.path[0]}")
    _put(work, f"late {row.path[0]}", (count + 1, numbers + row.number))


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
        _put(work, f"window {end} {key}", None)
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


def _put(work: _Work, key: str, value: Value | None) -> None:
    """Change a key, or delete it: it leaves a tombstone, unless no snapshot can have it."""
    before = work.values.get(key)
    came = before is None or (before.came and before.modified_epoch == work.epoch)
    if value is None and came:
        work.vanished += work.values.pop(key, None) is not None
    else:
        work.values[key] = Entry(value, work.epoch, came)


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
            _put(work, name, value)
    upto = work.expired_upto
    changes = {
        k: e.value
        for k, e in work.values.items()
        if e.modified_epoch > barrier.base_id and not expired(k, e.value, upto)
    }
    work.values = {
        k: e
        for k, e in work.values.items()
        if e.value is not None or e.modified_epoch > barrier.completed_id
    }
    live = sum(e.value is not None for e in work.values.values())
    positions = {name: position for name, (position, _) in here.items()}
    late = [n for n in work.spec.upstream if alignment_state.in_flight(after, n, number)]
    in_flight = {name: work.batch.positions[name] for name in late}
    work.snapshots.append(Snapshot(barrier, changes, positions, in_flight, live, upto))
    work.emitted.append(SentWatermark(Watermark(number, work.time.output, work.time.status)))
    work.emitted.append(barrier)
    work.epoch = number + 1
