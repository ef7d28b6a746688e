"""A stage's query: plans a micro-batch, runs it, writes its output, reports, commits.

The order of the writes is that of ``absflow.spark.batch.micro_batch``: rows to the channel,
barriers in a write of their own, the report, Spark's commit. A kill may fall between any two of
them, and the next query replays the same plan.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from absflow.protocol import alignment_state, watermarks
from absflow.protocol.alignment import Action, Discard, Ignore, Reason
from absflow.protocol.alignment_state import Alignment
from absflow.protocol.checkpoints import FailureReason, StageReport
from absflow.protocol.coordinator.messages import (
    CheckpointFailed,
    HeldTooMuch,
    RootInput,
    Triggered,
)
from absflow.protocol.watermarks import Watermark, WatermarkStatus
from absflow.simulation.batch import Batch, Memory, Outcome
from absflow.simulation.clock import Life, Process
from absflow.simulation.expiry import expired
from absflow.simulation.items import End, Fired, Item, Output, SentWatermark, Value
from absflow.simulation.job import StageSpec, partitions
from absflow.simulation.scene import Scene
from absflow.simulation.stage import run_batch
from absflow.simulation.tables import Plan

__all__ = ["Appender", "Query"]

_IDLE_MS = (20, 60)
_BARRIERS = "barriers table"
_OVERTAKES = "overtakes table"


def _control(row: Triggered | RootInput, root: RootInput) -> Iterator[Item]:
    """What a row of ``barriers`` is on a root input."""
    if not isinstance(row, Triggered):
        yield End()
        return
    if root in row.exhausted:
        yield SentWatermark(Watermark(row.barrier.checkpoint_id, None, WatermarkStatus.ENDED))
    yield row.barrier


class Appender:
    """The background thread that appends a stage's snapshots to its history, in their order.

    It belongs to the driver: a query that dies does not take it along.
    """

    def __init__(
        self, scene: Scene, stage: str, life: Life, fail: Callable[[CheckpointFailed], None]
    ) -> None:
        """Append for ``stage`` as long as ``life`` lasts; ``fail`` carries word of failures."""
        self._scene = scene
        self._stage = stage
        self._life = life
        self._fail = fail
        self._queue: deque[tuple[int, Mapping[str, Value | None]]] = deque()
        self._busy = False

    def submit(self, checkpoint_id: int, changes: Mapping[str, Value | None]) -> None:
        """Append these changes after those that were submitted before; none make no set."""
        self._scene.story.mark("snapshot without a change", not changes)
        if not changes:
            return
        self._queue.append((checkpoint_id, changes))
        if not self._busy:
            self._busy = True
            self._scene.clock.spawn(self._drain(), self._life)

    def _drain(self) -> Process:
        scene, history = self._scene, self._scene.tables.histories[self._stage]
        while self._queue:
            checkpoint_id, changes = self._queue.popleft()
            yield scene.between(scene.knobs.write_ms)
            if scene.faults.strike("append_slow"):
                scene.story.note(f"stage {self._stage}", "append is slow", checkpoint_id)
                yield scene.knobs.policy.timeout_ms
            raised = scene.faults.strike("append_failed")
            swallowed = scene.faults.strike("append_swallowed")
            if not swallowed and (not raised or scene.dice.random() < 0.5):
                history.append(checkpoint_id, changes)
            scene.story.mark("append returned but did not land", swallowed and not raised)
            if raised:
                scene.story.mark("append raised but landed", checkpoint_id in history.sets)
                self._fail(CheckpointFailed(checkpoint_id, FailureReason.SNAPSHOT_FAILED))
        self._busy = False


class Query:
    """One life of a stage's query."""

    def __init__(
        self,
        scene: Scene,
        spec: StageSpec,
        life: Life,
        appender: Appender,
        report: Callable[[StageReport], None],
        fail: Callable[[CheckpointFailed | HeldTooMuch], None],
    ) -> None:
        """Read on from what the stage's files say."""
        self.life = life
        self.step = "idle"
        self._scene = scene
        self._spec = spec
        self._appender = appender
        self._send_report = report
        self._fail = fail
        self._files = scene.tables.stages[spec.name]
        self._who = f"stage {spec.name}"

    def run(self) -> Process:
        """Micro-batch after micro-batch, until every input has ended."""
        files = self._files
        while not files.memory.alignment.ended:
            batch_id = files.committed + 1
            plan = files.offsets.get(batch_id)
            if plan is not None:
                self._scene.story.mark("batch replayed")
                self._scene.story.note(self._who, "replays", None, f"batch {batch_id}")
            else:
                plan = self._plan()
                if plan is None:
                    yield self._scene.between(_IDLE_MS)
                    continue
                files.offsets[batch_id] = plan
            yield from self._batch(batch_id, plan)

    def _plan(self) -> Plan | None:
        """Take something of what is there, at random; None for nothing."""
        scene, tables = self._scene, self._scene.tables
        spans = {}
        for name in self._spec.inputs:
            if name in self._spec.roots:
                there = bisect_right(tables.arrivals[name], scene.clock.now_ms)
            else:
                there = len(tables.log_of(name))
            spans[name] = self._span(name, there, scene.knobs.items_per_batch)
        if self._spec.roots:
            spans[_BARRIERS] = self._span(_BARRIERS, len(tables.barriers), 4)
        looks = scene.dice.random() < scene.knobs.overtakes_seen.get(self._spec.name, 1.0)
        spans[_OVERTAKES] = self._span(_OVERTAKES, len(tables.overtakes), 4 if looks else 0)
        time = self._files.memory.time
        storm = time.output != time.value
        scene.story.mark("timers left for the next batch", storm)
        if not storm and not any(start < end for start, end in spans.values()):
            return None
        wall_ms = tables.clocks.wall_ms(scene.clock.now_ms, len(tables.runs))
        return Plan(spans, dict(self._idle(spans)), wall_ms)

    def _idle(self, spans: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, frozenset[str]]]:
        """Partitions fall idle that will bring nothing more; so no row comes back late."""
        scene = self._scene
        for name in self._spec.roots:
            if scene.dice.random() < scene.knobs.idles:
                rest = {row.partition for row in scene.tables.rows[name][spans[name][1] :]}
                idle = frozenset(partitions(name)) - rest
                scene.story.mark("partition idle", bool(idle))
                if rest:  # else it is not idle, but ends
                    scene.tables.idles |= bool(idle)
                    yield name, idle

    def _span(self, name: str, there: int, most: int) -> tuple[int, int]:
        start = self._files.end_of(name)
        return start, start + self._scene.dice.randint(0, min(most, there - start))

    def _read(self, plan: Plan, batch_id: int) -> Batch:
        tables = self._scene.tables
        controls = tables.barriers[slice(*plan.spans.get(_BARRIERS, (0, 0)))]
        items: dict[str, tuple[Item, ...]] = {}
        for name in self._spec.inputs:
            items[name] = tables.slice_of(name, plan.spans[name])
            if name in self._spec.roots:
                end = RootInput(self._spec.name, name)
                mine = [row for row in controls if isinstance(row, Triggered) or row == end]
                items[name] += tuple(item for row in mine for item in _control(row, end))
        positions = {name: plan.spans[name][1] for name in self._spec.inputs}
        orders = tuple(tables.overtakes[slice(*plan.spans[_OVERTAKES])])
        ttl = tables.clocks.ttls.get(self._spec.name)
        sweeps = batch_id % 3 == 0
        timers = self._scene.knobs.timers
        return Batch(items, positions, orders, plan.idle, timers, plan.wall_ms, ttl, sweeps)

    def _batch(self, batch_id: int, plan: Plan) -> Process:
        scene, files = self._scene, self._files
        self.step = "running"
        slow = 10 if scene.faults.strike("batch_slow") else 1
        if self._spec.name == scene.knobs.laggard and scene.faults.active:
            slow *= 4
        yield scene.between(scene.knobs.batch_ms) * slow
        before = files.memory
        outcome = run_batch(self._spec, before, self._read(plan, batch_id))
        alignment_state.validate(outcome.memory.alignment)
        watermarks.validate(before.time, outcome.memory.time)
        self.step = "writing rows"
        yield scene.between(scene.knobs.write_ms)
        self._write(2 * batch_id, outcome.rows)
        scene.tables.missed += outcome.missed
        self.step = "writing barriers"
        yield scene.between(scene.knobs.write_ms)
        self._write(2 * batch_id + 1, outcome.control)
        self._narrate(before, outcome)
        self._narrate_expiry(plan, before, outcome)
        self.step = "reporting"
        yield scene.between(scene.knobs.write_ms)
        if scene.knobs.report_first:
            self._report(batch_id, outcome)
            yield scene.between(scene.knobs.write_ms)
        files.commit(batch_id, outcome.memory)
        if not scene.knobs.report_first:
            yield scene.between(scene.knobs.write_ms)
            self._report(batch_id, outcome)
        self.step = "idle"

    def _write(self, version: int, items: tuple[Output, ...]) -> None:
        if items and not self._scene.tables.channels[self._spec.name].append(version, items):
            self._scene.story.mark("repeated write skipped")

    def _report(self, batch_id: int, outcome: Outcome) -> None:
        for snapshot in outcome.snapshots:
            checkpoint_id = snapshot.barrier.checkpoint_id
            self._appender.submit(checkpoint_id, snapshot.changes)
            report = StageReport(
                stage=self._spec.name,
                checkpoint_id=checkpoint_id,
                batch_id=batch_id,
                positions={name: str(at) for name, at in snapshot.positions.items()},
                in_flight={name: str(at) for name, at in snapshot.in_flight.items()},
                rows_changed=len(snapshot.changes),
                keys_total=snapshot.live,
                bytes_total=snapshot.live,
                expired_upto=snapshot.expired_upto,
                held_rows=len(outcome.memory.held),
            )
            self._send_report(report)
        for action in outcome.said:
            if isinstance(action, Discard) and action.reason is Reason.SKIPPED:
                self._fail(CheckpointFailed(action.checkpoint_id, FailureReason.DECLINED))
        if len(outcome.memory.held) > self._scene.knobs.held_rows:
            for checkpoint_id in sorted(outcome.memory.alignment.blocking):
                self._fail(HeldTooMuch(checkpoint_id))

    def _narrate(self, before: Memory, outcome: Outcome) -> None:
        story, after = self._scene.story, outcome.memory
        for snapshot in outcome.snapshots:
            detail = f"{len(snapshot.changes)} changes since {snapshot.barrier.base_id}"
            story.note(self._who, "snapshots", snapshot.barrier.checkpoint_id, detail)
            story.mark("tombstone in an increment", None in snapshot.changes.values())
            if snapshot.in_flight:
                number = snapshot.barrier.checkpoint_id
                brought = [i.newest >= number for i in after.alignment.inputs.values()]
                story.note(self._who, "overtakes", number, str(snapshot.in_flight))
                story.mark("overtaken during the alignment", any(brought))
                story.mark("overtaken before the alignment", not any(brought))
        for action in outcome.said:
            self._narrate_action(before.alignment, action)
        waiting = [given.waiting for given in after.alignment.inputs.values()]
        story.mark("several snapshots in one batch", len(outcome.snapshots) > 1)
        story.mark("rows held", bool(after.held))
        self._narrate_time(outcome)
        story.mark("barrier waits behind a barrier", any(len(w) > 1 for w in waiting))
        free = [h for h in after.held if not after.alignment.inputs[h.input].waiting]
        story.mark("row read before the barrier it is behind", bool(free))
        if after.held:
            story.note(self._who, "holds", None, f"{len(after.held)} rows")
        ended = [name for name, given in after.alignment.inputs.items() if given.ended]
        story.mark("input ended", bool(ended) and not after.alignment.ended)
        story.mark("stage ended", after.alignment.ended)

    def _narrate_time(self, outcome: Outcome) -> None:
        story, time = self._scene.story, outcome.memory.time
        waiting = [w for given in time.inputs.values() for w in given.waiting]
        story.mark("watermark held back", any(w.status is WatermarkStatus.ACTIVE for w in waiting))
        ended = [given.status is WatermarkStatus.ENDED for given in time.inputs.values()]
        story.mark("one input has ended for event time", any(ended) and not all(ended))
        story.mark("row late", any(name.startswith("late ") for name in outcome.memory.values))
        values = {given.value for given in time.inputs.values()}
        story.mark("watermarks of inputs differ", len(values) > 1)
        fired = {item.epoch for item in outcome.rows if isinstance(item, Fired)}
        cuts = {s.barrier.checkpoint_id for s in outcome.snapshots}
        story.mark("timer fires for a barrier", bool(fired & cuts))
        story.mark("timer fires behind all barriers", bool(fired - cuts))

    def _narrate_expiry(self, plan: Plan, before: Memory, outcome: Outcome) -> None:
        story, after = self._scene.story, outcome.memory
        story.mark("a key came and went between two snapshots", bool(outcome.vanished))
        story.mark("wall clock behind the last batch", plan.wall_ms < before.now_ms)
        ttl = self._scene.tables.clocks.ttls[self._spec.name]
        upto = ttl.upto(after.time.value, after.now_ms)
        gone = any(expired(name, e.value, upto) for name, e in after.values.items())
        story.mark(f"state expired in {'batch' if ttl.clock else 'event'} time", gone)

    def _narrate_action(self, before: Alignment, action: Action) -> None:
        story = self._scene.story
        match action:
            case Discard(checkpoint_id, reason):
                story.note(self._who, "gives up", checkpoint_id, reason.value)
                story.mark(f"discarded: {reason.value}")
                story.mark("abort while blocked", checkpoint_id in before.blocking)
            case Ignore(event, reason):
                story.mark(f"ignored: {type(event).__name__} {reason.value}")
