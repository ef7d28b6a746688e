"""What must be true of the tables that a simulated world leaves behind.

The checkers do not look at how the world moved: not at its memory, nor at its machines. From the
sources' rows and the graph they compute on their own, path by path, what each stage must hold and
must have emitted for given source positions, and compare that with the tables:

* ids: triggers rise, completions rise but for savepoints, and every trigger has come to a terminal
  fact;
* savepoints: one stands alone, is never subsumed, and every request has one answer;
* stops: the job stops by itself when it was asked to, failed, finished, or the savepoint of a stop
  completed, and then it does stop;
* consistent cut: what the history sets along a manifest's lineage add up to is the state after
  exactly the source rows up to the manifest's positions, for every stage, and so is the output
  that stands before the barrier; rows that the checkpoint has overtaken are in its channel state
  instead, once, and are the next ones that the stage would have processed;
* event time: see :mod:`absflow.simulation.time_checkers`, and of state that expires
  :mod:`absflow.simulation.expiry_checkers`;
* exactly once: every channel holds, path by path, a prefix of what is due, and all of it at the
  end; final state is that of all rows;
* no stuck checkpoint: when the faults have ceased, the job comes to its end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise

from absflow.protocol.checkpoints import (
    FactKind,
    FailureReason,
    Kind,
    Manifest,
    Status,
    status_of,
)
from absflow.protocol.coordinator.messages import Triggered
from absflow.simulation import time_checkers
from absflow.simulation.batch import Memory
from absflow.simulation.due import Due, State
from absflow.simulation.event_time import time_of
from absflow.simulation.expiry import is_brief
from absflow.simulation.expiry_checkers import Living
from absflow.simulation.items import Sent
from absflow.simulation.job import Graph, StageSpec
from absflow.simulation.restore import reconstruct
from absflow.simulation.tables import Tables

__all__ = ["check"]

# A source, then the stages that a row has passed.
_Way = tuple[str, ...]


def check(graph: Graph, tables: Tables, finished: bool) -> list[str]:
    """Every violation, in words; none if all is well."""
    found = [*_ids(tables), *_replays(tables), *_savepoints(tables), *_stops(tables)]
    due = Due(graph, tables.rows)
    emitted = {s.name: _by_path(tables, s.name) for s in graph.stages}
    found += _channels(due, emitted)
    found += time_checkers.check(graph, tables, due)
    if not found:
        found += _cuts(graph, tables, due, emitted)
    if not finished:
        return [*found, "stuck: the faults have ceased, but the job does not come to its end"]
    return [*found, *_end(graph, tables, due, emitted)]


def _ids(tables: Tables) -> Iterator[str]:
    triggers = [row.barrier for row in _triggers(tables)]
    for earlier, later in pairwise(triggers):
        if later.checkpoint_id <= earlier.checkpoint_id:
            yield (
                f"ids do not rise: {later.checkpoint_id} was triggered after "
                f"{earlier.checkpoint_id}"
            )
        if later.completed_id < earlier.completed_id:
            yield (
                f"ids do not rise: {later.checkpoint_id} goes on from {later.completed_id}, "
                f"{earlier.checkpoint_id} from {earlier.completed_id}"
            )
    newest = 0
    for fact in tables.facts:
        checkpoint_id = fact.checkpoint_id
        if fact.kind is not FactKind.COMPLETED:
            continue
        if checkpoint_id <= newest and not fact.request:
            yield f"ids do not rise: {checkpoint_id} completed after {newest}"
        if status_of(checkpoint_id, tables.facts) is not Status.COMPLETED:
            yield f"checkpoint {checkpoint_id} was aborted before it completed"
        newest = max(newest, checkpoint_id)


def _triggers(tables: Tables) -> list[Triggered]:
    return [row for row in tables.barriers if isinstance(row, Triggered)]


def _savepoints(tables: Tables) -> Iterator[str]:
    """A savepoint needs no other set than its own, and answers its request and no other."""
    for checkpoint_id, manifest in tables.manifests.items():
        if manifest.kind is Kind.SAVEPOINT:
            if any(tables.in_flight(manifest).values()):
                yield f"savepoint {checkpoint_id} has rows in flight"
            for part in manifest.stages:
                own = part.report.checkpoint_id == checkpoint_id  # not of a stage that has ended
                if own and set(part.lineage) - {checkpoint_id}:
                    yield f"savepoint {checkpoint_id} does not stand alone: {part.lineage}"
    asked = {row.barrier.checkpoint_id: row.request for row in _triggers(tables)}
    for fact in tables.facts:
        if fact.request and fact.reason is FailureReason.SUBSUMED:
            yield f"savepoint {fact.checkpoint_id} was subsumed"
        if fact.request != asked.get(fact.checkpoint_id, fact.request):
            yield f"checkpoint {fact.checkpoint_id} answers {fact.request!r}, not what was asked"
    answers = Counter([*(fact.request for fact in tables.facts), *tables.refusals])
    for request in tables.requests:
        if answers[request.request] > 1:
            yield f"{request.request} has {answers[request.request]} answers"


def _stops(tables: Tables) -> Iterator[str]:
    """A job stops for a reason, and the savepoint of a stop is the last that its run completes."""
    ends = [*(run.began for run in tables.runs[1:]), len(tables.facts)]
    for run, end in zip(tables.runs, ends, strict=True):
        facts = tables.facts[run.began : end]
        completed = [f for f in facts if f.kind is FactKind.COMPLETED]
        stops = [f for f in completed if f.request in tables.stops]
        if stops and completed[-1] is not stops[0]:
            number = stops[0].checkpoint_id
            yield f"the job went on after savepoint {number}, which was to stop it"
        if run.stopped is None or run.why:
            continue
        if not any(fact in stops for fact in tables.facts[run.began : run.stopped]):
            yield "the job stopped without a reason"


def _replays(tables: Tables) -> Iterator[str]:
    for name, channel in tables.channels.items():
        for mismatch in channel.mismatches:
            yield f"stage {name}: {mismatch}"


_Emitted = dict[tuple[str, ...], list[Sent]]


def _by_path(tables: Tables, stage: str) -> _Emitted:
    paths: _Emitted = {}
    for item in tables.log_of(stage):
        if isinstance(item, Sent):
            paths.setdefault(item.row.path, []).append(item)
    return paths


def _channels(due: Due, emitted: Mapping[str, _Emitted]) -> Iterator[str]:
    """Nothing lost, nothing twice, nothing out of order, and epochs that never fall."""
    for stage, paths in emitted.items():
        for path, items in paths.items():
            wanted = due.out[stage].get(path, ())
            for place, item in enumerate(items):
                if place >= len(wanted) or item.row != wanted[place]:
                    yield (
                        f"exactly once: row {place} of {'>'.join(path)} is {item.row}, "
                        f"due was {wanted[place] if place < len(wanted) else 'nothing'}"
                    )
                    break
            epochs = [item.epoch for item in items]
            if epochs != sorted(epochs):
                yield f"epochs fall on {'>'.join(path)}: {epochs}"


def _cuts(graph: Graph, tables: Tables, due: Due, emitted: Mapping[str, _Emitted]) -> Iterator[str]:
    """Each completed checkpoint, oldest first, is the cut at its own positions."""
    before = dict.fromkeys(tables.rows, 0)
    watermarks = dict(tables.began)
    living = Living(graph, tables, due)
    for checkpoint_id, manifest in sorted(tables.manifests.items()):
        named = [s.report.stage for s in manifest.stages]
        if named != [s.name for s in graph.stages]:
            yield f"checkpoint {checkpoint_id} has stages {named}"
            return
        positions = _positions(graph, manifest)
        for source, position in positions.items():
            if not before[source] <= position <= len(tables.rows[source]):
                yield f"checkpoint {checkpoint_id}: {source} goes from {before[source]} {position}"
                return
        before = positions
        processed, wrong = _processed(graph, tables, due, manifest, positions)
        yield from wrong
        for stage in named:
            yield from _cut(graph, tables, due, emitted[stage], manifest, stage, processed)
        yield from time_checkers.check_cut(graph, tables, due, manifest, watermarks)
        yield from living.check(manifest, processed)


def _processed(
    graph: Graph, tables: Tables, due: Due, manifest: Manifest, positions: Mapping[str, int]
) -> tuple[dict[_Way, int], list[str]]:
    """How many rows each stage must have processed on each way into it; what is wrong in flight.

    All before the cut are due, but for those in flight, which must be the last of them.
    """
    flying = tables.in_flight(manifest)
    processed: dict[_Way, int] = {}
    wrong: list[str] = []
    for stage in graph.stages:
        for path in graph.paths(stage.name):
            way = (*path, stage.name)
            if len(path) == 1:
                processed[way] = positions[path[0]]
                continue
            sent = due.sent(path, processed[path])
            late = [row for row in flying.get((stage.name, path[-1]), ()) if row.path == path]
            processed[way] = sent - len(late)
            if tuple(late) != due.out[path[-1]][path][sent - len(late) : sent]:
                wrong.append(
                    f"channel state: checkpoint {manifest.checkpoint_id} has {len(late)} rows of "
                    f"{'>'.join(way)} in flight, but they are not the last of {sent}"
                )
    return processed, wrong


def _positions(graph: Graph, manifest: Manifest) -> dict[str, int]:
    return {
        root: int(part.report.positions[root])
        for part in manifest.stages
        for root in graph.stage(part.report.stage).roots
    }


def _cut(
    graph: Graph,
    tables: Tables,
    due: Due,
    emitted: _Emitted,
    manifest: Manifest,
    stage: str,
    processed: Mapping[_Way, int],
) -> Iterator[str]:
    checkpoint_id = manifest.checkpoint_id
    part = next(s for s in manifest.stages if s.report.stage == stage)
    sets = tables.histories[stage].sets
    missing = [n for n in part.lineage if n not in sets]
    if missing:
        yield f"checkpoint {checkpoint_id}: sets {missing} are not in the history of {stage}"
        return
    spec = graph.stage(stage)
    there = _lasting(spec, reconstruct(tables.histories[stage], part.lineage))
    fired = time_checkers.fired_windows(tables, stage, checkpoint_id)
    if there != (wanted := due.state(stage, processed, fired)):
        yield (
            f"consistent cut: checkpoint {checkpoint_id}, stage {stage}, after "
            f"{ {'>'.join(way): count for way, count in processed.items()} }: "
            f"{_difference(there, wanted)}"
        )
    for path in due.out[stage]:
        epochs = [item.epoch for item in emitted.get(path, ())]
        there_rows = bisect_left(epochs, checkpoint_id + 1)
        due_rows = due.sent(path, processed[path])
        if there_rows != due_rows:
            yield (
                f"consistent cut: {there_rows} rows of {'>'.join(path)} stand before barrier "
                f"{checkpoint_id}, due are {due_rows}"
            )


def _lasting(spec: StageSpec, values: State) -> State:
    """The state that is a function of the rows alone."""
    _, _, rest = time_of(spec, values)
    return {name: value for name, value in rest.items() if not is_brief(name)}


def _difference(there: State, wanted: State) -> str:
    keys = sorted(k for k in there.keys() | wanted.keys() if there.get(k) != wanted.get(k))
    return "; ".join(f"{k} is {there.get(k)}, due {wanted.get(k)}" for k in keys[:3])


def _end_of_stage(spec: StageSpec, memory: Memory, wanted: State) -> Iterator[str]:
    if memory.held:
        yield f"stage {spec.name} still holds {len(memory.held)} rows"
    there = {k: e.value for k, e in memory.values.items() if e.value is not None}
    values = _lasting(spec, there)
    if values != wanted:
        yield f"exactly once: stage {spec.name} ends with {_difference(values, wanted)}"


def _end(graph: Graph, tables: Tables, due: Due, emitted: Mapping[str, _Emitted]) -> Iterator[str]:
    """A finished job has processed every row, and nothing is left pending or unanswered."""
    ends = {source: len(rows) for source, rows in tables.rows.items()}
    for spec in graph.stages:
        stage, files = spec.name, tables.stages[spec.name]
        # A last batch that was written and reported, but not committed, would be replayed.
        if files.committed + 1 not in files.offsets:
            every = {w: len(d.rows) for w, d in due.ways(stage)}
            wanted = due.state(stage, every, time_checkers.fired_windows(tables, stage))
            yield from _end_of_stage(spec, files.memory, wanted)
        for path, rows in due.out[stage].items():
            if len(there := emitted[stage].get(path, [])) != len(rows):
                yield f"exactly once: {'>'.join(path)} has {len(there)} rows of {len(rows)}"
    newest = max(tables.manifests, default=0)
    manifest = tables.manifests.get(newest)
    if (
        manifest is None
        or _positions(graph, manifest) != ends
        or any(tables.in_flight(manifest).values())
    ):
        yield f"the newest checkpoint, {newest}, does not hold every row"
    for row in _triggers(tables):
        if status_of(row.barrier.checkpoint_id, tables.facts) is Status.PENDING:
            yield f"stuck: checkpoint {row.barrier.checkpoint_id} has come to no end"
    for request in tables.unanswered():
        yield f"{request.request} has no answer"
