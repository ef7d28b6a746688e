"""Event time of one stage as it is handed on: to the tasks of a micro-batch, and to the manifest.

Rules of this file: no Spark, no clock, no I/O; times are integers, microseconds since 1970 (UTC),
and None is before all of them.

What a stage knows of event time has two halves: how far its inputs have come
(:mod:`absflow.protocol.watermarks`), and of each root input how far each partition of its source
has (:mod:`absflow.protocol.source_time`). Both change in micro-batches that bring a watermark or a
barrier, and in no others; whoever has both and what the batch brings comes to the same result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import reduce
from typing import Any

from absflow.protocol import watermarks
from absflow.protocol.source_time import SourceTime, input_time
from absflow.protocol.watermarks import InputTime, StageTime, Watermark, WatermarkStatus, later

__all__ = [
    "EventTime",
    "brings",
    "counted_idle",
    "from_datetime",
    "from_json",
    "holding_back",
    "observed",
    "restored",
    "start",
    "to_datetime",
    "to_json",
    "with_partitions",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class EventTime:
    """Event time of a stage between two micro-batches.

    Attributes:
        stage: how far its inputs have come; an input whose rows have no event time is not there.
        sources: of each root input, its partitions.
        quiet_ms: by root input and partition, for how long it has brought no row while the query
            could have read it.
    """

    stage: StageTime
    sources: Mapping[str, SourceTime] = field(default_factory=dict)
    quiet_ms: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def reached(self, name: str) -> int | None:
        """How far an input has come, or the stage if that is further; what waits counts."""
        given = self.stage.inputs[name]
        values = (self.stage.value, given.value, *(w.value for w in given.waiting))
        return reduce(later, values)


def start(inputs: Iterable[str], delays: Mapping[str, int], delay: int = 0) -> EventTime:
    """Nothing was read on any input.

    Args:
        inputs: those whose rows have an event time.
        delays: of the root inputs among them, in microseconds.
        delay: how much older than the stage's watermark its own rows may be, microseconds.
    """
    sources = {name: SourceTime(delay, {}) for name, delay in delays.items()}
    return EventTime(watermarks.start(inputs, delay), sources)


def with_partitions(time: EventTime, partitions: Mapping[str, Iterable[str]]) -> EventTime:
    """With partitions that a source is known to have, though none of their rows was read yet.

    They count from now on (FLINK-32828).

    Args:
        time: before.
        partitions: by root input.
    """
    sources = dict(time.sources)
    for name, names in partitions.items():
        known = {**dict.fromkeys(names), **sources[name].newest}
        sources[name] = replace(sources[name], newest=known)
    return replace(time, sources=sources)


def restored(
    begun: EventTime, at: EventTime | None, checkpoint_id: int, senders: Mapping[str, EventTime]
) -> EventTime:
    """What a stage begins with that is restored from a checkpoint.

    Args:
        begun: what it would begin with if it had no past (:func:`start`): an input that the
            checkpoint does not have begins so, and holds the stage's watermark where it is until it
            has come as far.
        at: its own at the checkpoint; None if it had none.
        checkpoint_id: the checkpoint.
        senders: by input, what the stages had there whose channels it reads.
    """
    if at is None:
        return begun
    inputs = {n: at.stage.inputs.get(n, given) for n, given in begun.stage.inputs.items()}
    sources = {
        name: replace(given, newest=at.sources[name].newest) if name in at.sources else given
        for name, given in begun.sources.items()
    }
    known = {name: time.stage for name, time in senders.items() if name in inputs}
    own = replace(at.stage, inputs=inputs, delay=begun.stage.delay)
    stage = watermarks.resumed(own, checkpoint_id, known)
    return EventTime(stage, sources)


def observed(
    time: EventTime,
    epochs: Mapping[str, int],
    newest: Mapping[str, Mapping[str, int]],
) -> EventTime:
    """The rows of the root inputs that a micro-batch has read.

    Args:
        time: before them.
        epochs: of each root input, that of its rows.
        newest: by root input and partition, the greatest event time among them; partitions without
            a row may be left out.
    """
    sources, stage = dict(time.sources), time.stage
    for name, source in time.sources.items():
        known, given = dict(source.newest), newest.get(name, {})
        for partition, at in given.items():
            known[partition] = later(known.get(partition), at)
        sources[name] = replace(source, newest=known, idle=source.idle - frozenset(given))
        said = input_time(sources[name])
        watermark = Watermark(epochs[name], said.value, said.status)
        if given or _status(stage, name) is not WatermarkStatus.ENDED:
            stage = brings(stage, name, watermark)
    return replace(time, stage=stage, sources=sources)


def _status(stage: StageTime, name: str) -> WatermarkStatus:
    """What an input has said last of itself."""
    given = stage.inputs[name]
    return given.waiting[-1].status if given.waiting else given.status


def brings(stage: StageTime, name: str, watermark: Watermark) -> StageTime:
    """An input brings a watermark, which waits to be admitted unless it says nothing new."""
    given = stage.inputs[name]
    # Not the newest that waits: a barrier's own may come behind one of the next epoch.
    before = [w for w in given.waiting if w.epoch <= watermark.epoch]
    last = max(before, key=lambda w: w.epoch, default=None)
    value, status = (last.value, last.status) if last else (given.value, given.status)
    if watermark.status is status and later(value, watermark.value) == value:
        return stage
    return watermarks.arrive(stage, name, watermark)


def to_datetime(time: int | None) -> datetime | None:
    """A time as an aware datetime in UTC."""
    return None if time is None else _EPOCH + timedelta(microseconds=time)


def from_datetime(time: datetime) -> int:
    """The inverse of :func:`to_datetime`."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def holding_back(time: EventTime) -> str:
    """What keeps the stage from being further: the input, and of a source the partition."""
    active = {
        name: given
        for name, given in time.stage.inputs.items()
        if given.status is WatermarkStatus.ACTIVE
    }
    if not active:
        return ""
    name = min(active, key=lambda n: _before_all(active[n].value))
    source = time.sources.get(name)
    partitions = {} if source is None else source.newest
    running = [p for p in partitions if source is not None and p not in source.idle]
    least = min(running, key=lambda p: _before_all(partitions[p]), default="")
    return f"{name} ({least})" if least else name


def _before_all(value: int | None) -> tuple[bool, int]:
    return value is not None, value or 0


def counted_idle(
    time: EventTime,
    waited_ms: int,
    brought: Mapping[str, Iterable[str]],
    idle_ms: Mapping[str, int],
) -> EventTime:
    """Which partitions are idle from the next micro-batch on.

    Only time counts in which the query waited for rows: not that of a batch, nor of what held it
    (FLIP-471).

    Args:
        time: after a micro-batch.
        waited_ms: so long its query had waited for it.
        brought: by root input, the partitions that have brought rows in it.
        idle_ms: of the root inputs that can be idle, for how long a partition must be quiet.
    """
    quiet: dict[str, dict[str, int]] = {}
    sources = dict(time.sources)
    for name, most in idle_ms.items():
        before, rows = time.quiet_ms.get(name, {}), {*brought.get(name, ())}
        known = time.sources[name].newest
        quiet[name] = {p: 0 if p in rows else before.get(p, 0) + waited_ms for p in known}
        idle = frozenset(p for p, ms in quiet[name].items() if ms >= most)
        sources[name] = replace(time.sources[name], idle=idle)
    return replace(time, sources=sources, quiet_ms=quiet) if idle_ms else time


def to_json(time: EventTime) -> str:
    """One short JSON line, keys sorted, so that equal times give equal text."""
    value = asdict(time)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def from_json(text: str) -> EventTime:
    """The inverse of :func:`to_json`."""
    value = json.loads(text)
    stage = value["stage"]
    inputs = {name: _input(given) for name, given in stage["inputs"].items()}
    sources = {
        name: SourceTime(given["delay"], given["newest"], frozenset(given["idle"]))
        for name, given in value["sources"].items()
    }
    # An earlier version has written no delay of a stage.
    time = StageTime(inputs, stage["value"], stage["output"], stage.get("delay", 0))
    return EventTime(time, sources, value["quiet_ms"])


def _input(given: Mapping[str, Any]) -> InputTime:
    waiting = tuple(
        Watermark(w["epoch"], w["value"], WatermarkStatus(w["status"])) for w in given["waiting"]
    )
    return InputTime(given["value"], WatermarkStatus(given["status"]), waiting)


def _plain(value: object) -> object:
    if isinstance(value, WatermarkStatus):
        return value.value
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is no part of an event time")
