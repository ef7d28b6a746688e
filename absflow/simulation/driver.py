"""The driver: the coordinator's machine, its writes in order, and messages that take their time."""

from __future__ import annotations

from collections import deque

from absflow.protocol.alignment import AbortArrived, OvertakeArrived
from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import FailureReason, Kind, Manifest, SetDigest, StageReport
from absflow.protocol.coordinator import completion, machine, pending
from absflow.protocol.coordinator.messages import (
    Action,
    CheckpointFailed,
    CompletionWritten,
    DiscardReport,
    Event,
    FailJob,
    FinishJob,
    HeldTooMuch,
    HistoryFound,
    InputExhausted,
    RefuseRequest,
    RootInput,
    SavepointRequested,
    StageReported,
    StopJob,
    StopRequested,
    Tick,
    Triggered,
    TriggerWritten,
    WriteAbort,
    WriteBarrier,
    WriteCompletion,
    WriteEnd,
    WriteOvertake,
)
from absflow.protocol.coordinator.pending import Coordinator, Phase
from absflow.simulation.clock import Life, Process
from absflow.simulation.job import Graph
from absflow.simulation.restore import time_at, whole
from absflow.simulation.scene import Scene
from absflow.simulation.tables import Run, Tables

__all__ = ["Driver", "unsettled_stages"]

_TICK_MS = 40
_POLL_MS = 20
_END_WRITES = 2


def unsettled_stages(graph: Graph, tables: Tables, manifest: Manifest) -> int:
    """How many stages would still change by themselves behind a checkpoint."""
    number = manifest.checkpoint_id
    if not whole(graph, tables, manifest):
        return 0  # which the checkers say
    times = {s.name: time_at(graph, tables, s.name, manifest) for s in graph.stages}
    triggers = (row for row in tables.barriers if isinstance(row, Triggered))
    exhausted = next(row.exhausted for row in triggers if row.barrier.checkpoint_id == number)
    return completion.unsettled_stages(times, graph.topology, exhausted)


class Driver:
    """One incarnation of the driver, rebuilt from the tables."""

    def __init__(self, scene: Scene, life: Life) -> None:
        """Recover, and begin to tick."""
        self.life = life
        self.stopped = False
        self.finished = False
        self.lost = False
        self._stop_failed = False
        self._scene = scene
        self._writes: deque[Process] = deque()
        self._writing = False
        self._seen: set[RootInput] = set()
        tables = scene.tables
        triggers = tuple(row for row in tables.barriers if isinstance(row, Triggered))
        ended = frozenset(row for row in tables.barriers if isinstance(row, RootInput))
        newest = max(tables.manifests, default=0)
        full = tables.clocks.full_first and newest == tables.clocks.origin
        self.state: Coordinator
        self.state, actions = machine.recover(
            scene.knobs.graph.topology,
            scene.knobs.policy,
            scene.clock.now_ms,
            triggers,
            tuple(tables.facts),
            None if full else tables.manifests.get(newest),
            ended,
        )
        self._run = Run(began=len(tables.facts))
        tables.runs.append(self._run)
        scene.story.note("driver", "starts", newest, f"next is {self.state.next_id}")
        for action in actions:
            self._do(action)
        scene.clock.spawn(self._ticks(), life)

    @property
    def idle(self) -> bool:
        """Whether every write that was asked for is done."""
        return not self._writing

    @property
    def finalising(self) -> int | None:
        """The checkpoint whose manifest is being committed."""
        pending = self.state.pending.items()
        return next((n for n, p in pending if p.phase is Phase.FINALIZING), None)

    def post(self, event: Event) -> None:
        """Step the machine and do what it asks for."""
        self.state, actions = machine.step(self.state, event)
        pending.validate(self.state)
        flying = len(self.state.pending)
        self._scene.story.mark("two checkpoints in flight", flying == 2)
        self._scene.story.mark("more than two checkpoints in flight", flying > 2)
        for action in actions:
            self._do(action)

    def stop(self) -> None:
        """A person stops the job."""
        self._run.why = "a person wants it"
        self.post(StopRequested())

    def listen(self) -> bool:
        """Post every request without an answer; whether there was any.

        Again and again until it has one, but not while a write is under way: that may be it.
        """
        unanswered = self._scene.tables.unanswered() if self.idle else []
        for request in unanswered:
            now_ms = self._scene.clock.now_ms
            self.post(SavepointRequested(request.request, now_ms, now_ms, request.stop))
        return bool(unanswered)

    def report(self, report: StageReport) -> None:
        """A stage sends its report; it may be lost, late or repeated."""
        faults, story = self._scene.faults, self._scene.story
        if faults.strike("report_lost"):
            story.note("message", "report is lost", report.checkpoint_id, report.stage)
            story.mark("report lost")
            return
        late = faults.strike("report_late")
        late_ms = self._scene.knobs.policy.timeout_ms if late else 0
        for _ in range(2 if faults.strike("report_repeated") else 1):
            wait_ms = late_ms + self._scene.between(self._scene.knobs.message_ms)
            self._scene.clock.spawn(self._receive(report), self.life, wait_ms)

    def fail(self, failed: CheckpointFailed | HeldTooMuch) -> None:
        """Word of a failed checkpoint; it may be lost."""
        if self._scene.faults.strike("failure_lost"):
            self._scene.story.mark("word of a failure lost")
            return
        wait_ms = self._scene.between(self._scene.knobs.message_ms)
        self._scene.clock.spawn(self._deliver(failed), self.life, wait_ms)

    def _deliver(self, event: Event) -> Process:
        self.post(event)
        yield from ()

    def _receive(self, report: StageReport) -> Process:
        """Take a report in, then look for its set until it is there or of no use."""
        checkpoint_id, stage = report.checkpoint_id, report.stage
        self._scene.story.note("driver", "gets report", checkpoint_id, f"stage {stage}")
        self.post(StageReported(report))
        sets = self._scene.tables.histories[stage].sets
        while checkpoint_id in self.state.pending:
            if not report.rows_changed or checkpoint_id in sets:
                rows = len(sets.get(checkpoint_id, ()))
                digest = SetDigest(checkpoint_id, rows, 0) if rows else None
                self.post(HistoryFound(checkpoint_id, stage, digest=digest))
                return
            yield _POLL_MS

    def _ticks(self) -> Process:
        tables, topology = self._scene.tables, self._scene.knobs.graph.topology
        while True:
            for root in sorted(topology.roots - self._seen):
                read = tables.stages[root.stage].end_of(root.name)
                if read == len(tables.rows[root.name]):
                    self._seen.add(root)
                    self._scene.story.note("driver", "input exhausted", None, str(root))
                    self.post(InputExhausted(root))
            self.listen()
            self.post(Tick(self._scene.clock.now_ms, self._scene.clock.now_ms))
            yield _TICK_MS

    def _do(self, action: Action) -> None:
        story = self._scene.story
        match action:
            case WriteBarrier(barrier, kind, request):
                detail = request or f"base {barrier.base_id}"
                story.note("driver", "triggers", barrier.checkpoint_id, detail)
                exhausted = self.state.exhausted_before(barrier.checkpoint_id)
                row = Triggered(barrier, kind, request, exhausted=exhausted)
                self._write(self._write_barrier(row))
            case WriteCompletion(manifest):
                story.note("driver", "finalises", manifest.checkpoint_id)
                self._write(self._write_completion(manifest))
            case WriteAbort(barrier, reason, cause, kind, request):
                detail = " ".join(filter(None, (reason.code, cause)))
                story.note("driver", "aborts", barrier.checkpoint_id, detail)
                word = "savepoint aborted" if kind is Kind.SAVEPOINT else "aborted"
                story.mark(f"{word}: {reason.code}")
                shown = FailureReason.JOB_STOPPED, FailureReason.DRIVER_RESTART
                if request in self._scene.tables.stops and reason not in shown:
                    self._stop_failed = True
                self._write(self._write_abort(action))
            case WriteOvertake(barrier):
                story.note("driver", "has overtake", barrier.checkpoint_id)
                self._write(self._write_overtake(barrier))
            case RefuseRequest(request, why):
                story.note("driver", "refuses", None, f"{request}: {why}")
                story.mark("savepoint refused")
                self._write(self._write_refusal(request))
            case WriteEnd(root):
                story.note("driver", "ends input", None, str(root))
                self._write(self._write_end(root))
            case DiscardReport(checkpoint_id, stage, why):
                story.note("driver", f"{why.value} report", checkpoint_id, f"stage {stage}")
                story.mark(f"report {why.value}")
            case FailJob(failures):
                story.note("driver", "fails the job", None, f"{failures} failures in a row")
                story.mark("job failed")
                self._run.why = "too many failures"
            case FinishJob(checkpoint_id):
                story.note("driver", "finishes", checkpoint_id)
                self._run.why = "every row is read"
                manifest = self._scene.tables.manifests[checkpoint_id]
                story.mark("savepoint finished the job", manifest.kind is Kind.SAVEPOINT)
                self.finished = True
            case StopJob():
                story.note("driver", "stops")
                self._run.stopped = len(self._scene.tables.facts)
                self.stopped = True

    def _write(self, write: Process) -> None:
        """Writes of the driver are done one after the other, in the order they were asked for."""
        self._writes.append(write)
        if not self._writing:
            self._writing = True
            self._scene.clock.spawn(self._drain(), self.life)

    def _drain(self) -> Process:
        while self._writes:
            yield from self._writes.popleft()
        self._writing = False

    def _pause(self) -> int:
        return self._scene.between(self._scene.knobs.write_ms)

    def _write_barrier(self, row: Triggered) -> Process:
        scene, checkpoint_id = self._scene, row.barrier.checkpoint_id
        yield self._pause()
        raised = scene.faults.strike("trigger_failed")
        landed = not raised or scene.dice.random() < 0.5
        if landed:
            scene.tables.barriers.append(row)
        yield self._pause()
        scene.story.mark("failed trigger landed", raised and landed)
        if raised:
            self.post(CheckpointFailed(checkpoint_id, FailureReason.TRIGGER_FAILED))
        else:
            self.post(TriggerWritten(checkpoint_id))

    def _write_abort(self, action: WriteAbort) -> Process:
        """Release the blocked inputs, then state the fact: a fact without a release may hang."""
        checkpoint_id, reason = action.barrier.checkpoint_id, action.reason
        yield self._pause()
        if reason is not FailureReason.SUBSUMED:  # then every stage is past it
            self._scene.tables.overtakes.append(AbortArrived(checkpoint_id))
            yield self._pause()
        self._scene.tables.write_abort_fact(checkpoint_id, reason, action.request)

    def _write_overtake(self, barrier: Barrier) -> Process:
        yield self._pause()
        self._scene.tables.overtakes.append(OvertakeArrived(barrier))

    def _write_refusal(self, request: str) -> Process:
        yield self._pause()
        self._scene.tables.refusals.append(request)

    def _write_completion(self, manifest: Manifest) -> Process:
        """Commit the manifest; a commit that raised may have landed, and only the table knows."""
        scene, checkpoint_id = self._scene, manifest.checkpoint_id
        yield self._pause()
        raised = scene.faults.strike("completion_failed")
        landed = not raised or scene.dice.random() < 0.5
        completed_id = self.state.completed_id
        if landed:
            scene.tables.write_completion(manifest)
            rebased = 0 < manifest.base_id < completed_id
            scene.story.mark("increment laid on a newer checkpoint than its base", rebased)
        yield self._pause()
        scene.story.mark("failed completion landed", raised and landed)
        if raised and scene.dice.random() < 0.3:
            # The table cannot be read back either. To guess would be to lie to the machine: a
            # driver that does not know must not go on.
            scene.story.mark("outcome of a completion unknown")
            self.lost = True
            return
        if not landed:
            self.post(CheckpointFailed(checkpoint_id, FailureReason.FINALIZE_FAILED))
            return
        scene.story.note("driver", "completes", checkpoint_id)
        self._mark_completed(manifest, completed_id)
        in_flight = sum(map(len, scene.tables.in_flight(manifest).values()))
        unsettled_count = unsettled_stages(scene.knobs.graph, scene.tables, manifest)
        scene.story.mark("stages unsettled at a checkpoint", bool(unsettled_count))
        in_flight += unsettled_count
        self.post(CompletionWritten(checkpoint_id, scene.clock.now_ms, in_flight))

    def _mark_completed(self, manifest: Manifest, completed_id: int) -> None:
        savepoint = manifest.kind is Kind.SAVEPOINT
        late = manifest.checkpoint_id < completed_id
        stops = manifest.request in self._scene.tables.stops
        mark = self._scene.story.mark
        mark("completed")
        full = not savepoint and manifest.base_id == 0 < completed_id
        mark("full behind one that had changed most", full)
        mark("savepoint completed", savepoint)
        mark("savepoint completed behind a later checkpoint", late)
        mark("stop with savepoint completed", stops)
        mark("rows in flight", any(self._scene.tables.in_flight(manifest).values()))
        mark("stop with savepoint failed, and the job went on", self._stop_failed)

    def _write_end(self, root: RootInput) -> Process:
        for _ in range(_END_WRITES if self._scene.faults.strike("end_repeated") else 1):
            yield self._pause()
            self._scene.tables.barriers.append(root)
