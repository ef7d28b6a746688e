"""A restore in a simulated world: the tables of a new attempt that begins with a checkpoint.

Nothing but what the manifest names gets into it: the sets of its lineages, its positions, and the
rows that it has in flight, which the first micro-batch of their stage processes. What stands in a
channel before the barrier stays, as it has been published; nobody reads it again.
"""

from __future__ import annotations

from collections.abc import Mapping

from absflow.protocol import alignment, watermarks
from absflow.protocol.checkpoints import Fact, FactKind, Manifest, StageManifest
from absflow.protocol.watermarks import StageTime
from absflow.simulation.batch import Entry, Held, Memory
from absflow.simulation.event_time import time_of
from absflow.simulation.expiry import expired
from absflow.simulation.items import End, Fired, Output, Sent, SentWatermark, Value
from absflow.simulation.job import Graph, StageSpec
from absflow.simulation.tables import Channel, History, Plan, StageFiles, Tables

__all__ = ["reconstruct", "restored", "time_at", "whole"]


def restored(graph: Graph, tables: Tables, manifest: Manifest) -> Tables:
    """What an attempt begins with that is restored from ``manifest``; ``tables`` stay as they are.

    Raises:
        KeyError: a set that the manifest names is not in a history.
    """
    made = Tables(tables.rows, {source: (0,) * len(rows) for source, rows in tables.rows.items()})
    made.idles = tables.idles
    number = manifest.checkpoint_id
    made.facts.append(Fact(number, FactKind.COMPLETED, None, manifest.request))
    made.manifests[number] = manifest
    for spec in graph.stages:
        made.channels[spec.name] = Channel(_published(tables.channels[spec.name], number))
    times = {s.name: time_at(graph, tables, s.name, manifest) for s in graph.stages}
    for spec in graph.stages:
        made.began[spec.name] = times[spec.name].value
        part = next(s for s in manifest.stages if s.report.stage == spec.name)
        history = tables.histories[spec.name]
        made.histories[spec.name] = History({n: history.sets[n] for n in part.lineage}, number)
        ends = {root: int(part.report.positions[root]) for root in spec.roots}
        ends |= {sender: len(made.log_of(sender)) for sender in spec.upstream}
        spans = {name: (end, end) for name, end in ends.items()}
        read = Plan(spans, wall_ms=_time_at(tables, part, number))
        memory = _memory(tables, spec, part, manifest, times)
        made.stages[spec.name] = StageFiles({-1: memory}, {-1: read}, seen={-1: memory.seen})
    return made


def whole(graph: Graph, tables: Tables, manifest: Manifest) -> bool:
    """Whether a manifest has every stage, and every set that it names is in a history."""
    parts = {part.report.stage: part for part in manifest.stages}
    return parts.keys() >= {s.name for s in graph.stages} and all(
        {*part.lineage} <= tables.histories[name].sets.keys() for name, part in parts.items()
    )


def time_at(graph: Graph, tables: Tables, stage: str, manifest: Manifest) -> StageTime:
    """The event time of a stage at a checkpoint."""
    part = next(s for s in manifest.stages if s.report.stage == stage)
    return time_of(graph.stage(stage), reconstruct(tables.histories[stage], part.lineage))[0]


def _memory(
    tables: Tables,
    spec: StageSpec,
    part: StageManifest,
    manifest: Manifest,
    times: Mapping[str, StageTime],
) -> Memory:
    number = manifest.checkpoint_id
    values = reconstruct(tables.histories[spec.name], part.lineage)
    late = [
        Held(name, item.epoch, item.row)
        for name, position in part.report.in_flight.items()
        for item in tables.log_of(name)[int(position) :]
        if isinstance(item, Sent) and item.epoch <= number
    ]
    time, sources, _ = time_of(spec, values)
    senders = {name: times[name] for name in spec.upstream}
    return Memory(
        alignment.start(spec.inputs, number),
        watermarks.resumed(time, number, senders),
        sources,
        _time_at(tables, part, number),
        tuple(late),
        _living(values, part.report.expired_upto, number),
    )


def _time_at(tables: Tables, part: StageManifest, number: int) -> int:
    """The time of the batch that a snapshot was taken in, if that matters: it does not go back."""
    ttl, upto = tables.clocks.ttls_at(number).get(part.report.stage), part.report.expired_upto
    return upto + ttl.after if ttl is not None and ttl.clock and upto is not None else 0


def _living(values: Mapping[str, Value], upto: int | None, number: int) -> dict[str, Entry]:
    """The state that a restored stage begins with: what had expired stays so."""
    there = {key: value for key, value in values.items() if not expired(key, value, upto)}
    return {key: Entry(value, number) for key, value in there.items()}


def _published(channel: Channel, number: int) -> list[Output]:
    """The items before barrier ``number``; epochs never fall along a channel."""
    items: list[Output] = []
    for item in channel.items:
        if isinstance(item, End):
            break
        if isinstance(item, Sent | Fired | SentWatermark) and item.epoch > number:
            break
        items.append(item)
    return items


def reconstruct(history: History, lineage: tuple[int, ...]) -> dict[str, Value]:
    """The last change of each key along a lineage; a tombstone takes it away."""
    state: dict[str, Value] = {}
    for set_id in lineage:
        for key, value in history.sets[set_id].items():
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
    return state
