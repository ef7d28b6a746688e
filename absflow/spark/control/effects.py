"""The effects of the coordinator: steps of the pure machine, and its actions out to the tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from absflow.errors import JobFailedError, StorageError
from absflow.facts.writer import FactWriter
from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import FailureReason, Manifest
from absflow.protocol.coordinator import machine, triggers
from absflow.protocol.coordinator.completion import unsettled_stages
from absflow.protocol.coordinator.messages import (
    Action,
    CheckpointFailed,
    CompletionWritten,
    DiscardReport,
    Event,
    FailJob,
    FinishJob,
    LineageCompacted,
    RefuseRequest,
    StopJob,
    TriggerWritten,
    WriteAbort,
    WriteBarrier,
    WriteCompletion,
    WriteEnd,
    WriteOvertake,
)
from absflow.protocol.coordinator.pending import Coordinator, Pending
from absflow.protocol.event_time import to_datetime
from absflow.protocol.lineage import Compacted
from absflow.storage import clock
from absflow.telemetry import coordinator as happened
from absflow.telemetry.happenings import (
    Finalising,
    InputEnded,
    JobFinished,
    Overtaking,
    RequestRefused,
    Say,
    Triggered,
)
from absflow.telemetry.lines import log

__all__ = ["Answer", "CoordinatorEffects"]

_LOG = logging.getLogger(__name__)
_LONGEST_WAIT_MS = 500


@dataclass(frozen=True, slots=True)
class Answer:
    """What has become of a request.

    Attributes:
        request: the request.
        checkpoint_id: the savepoint; 0 if none was triggered.
        failed: why there is none; empty if it has completed.
    """

    request: str
    checkpoint_id: int
    failed: str = ""


class CoordinatorEffects:
    """Steps the coordinator and does what it asks for; used by one thread."""

    def __init__(self, tables: FactWriter, state: Coordinator, attempt: int) -> None:
        """Go on from ``state`` in an attempt."""
        self._tables = tables
        self._attempt = attempt
        # Those before the event that is being handled, and since when the last was finalised.
        self._pending: Mapping[int, Pending] = {}
        self._finalising_ms = 0
        # Is given all that happens.
        self.say: Say = log
        # Called with every checkpoint that completes, and with the answer to every request.
        self.on_completed: Callable[[Manifest], None] = lambda _: None
        self.on_answer: Callable[[Answer], None] = lambda _: None
        # Finds what else a manifest has; :meth:`complete` goes on from there.
        self.finalise: Callable[[Manifest], None] = lambda _: None
        # The request whose savepoint is to end every source, for event time.
        self.ending = ""
        self.state = state
        self.completed_count = 0
        self.completed_at: datetime | None = None
        self.finished_checkpoint: int | None = None
        self.failure: JobFailedError | None = None

    def begin(self, actions: tuple[Action, ...]) -> None:
        """Do what :func:`absflow.protocol.coordinator.machine.recover` asked for."""
        for action in actions:
            self._do(action)

    def handle(self, event: Event) -> bool:
        """Take one event and all that follows from it; whether the job is to stop.

        Raises:
            StorageError: if a fact that must be written cannot be.
        """
        waiting = [event]
        stop = False
        while waiting:
            before, happens = self.state, waiting.pop(0)
            self.state, actions = machine.step(before, happens)
            self._pending = before.pending
            for each in happened.stepped(before, happens, self.state, actions):
                self.say(each)
            for action in actions:
                stop = stop or isinstance(action, StopJob)
                waiting.extend(self._do(action))
        return stop

    def complete(self, manifest: Manifest) -> bool:
        """Commit a manifest that is whole; else as :meth:`handle`."""
        return self.handle(self._complete(manifest))

    def wake(self) -> None:
        """Have every stage run a micro-batch; if that fails, the next checkpoint does it."""
        try:
            self._tables.write_wake(clock.now_ms())
        except StorageError:
            _LOG.warning("timers that are due wait for the next checkpoint", exc_info=True)

    def write_deleted(self, checkpoint_ids: Sequence[int], request: str = "") -> None:
        """Write what retention decided, or somebody asked for; raises as :meth:`handle`."""
        self._tables.write_deleted(checkpoint_ids, request, clock.now_ms())

    def write_refusal(self, request: str, why: str) -> None:
        """Answer a request of which the coordinator knows nothing; raises as :meth:`handle`."""
        self._tables.write_refusal(RefuseRequest(request, why), clock.now_ms())

    def write_compacted(self, fact: Compacted) -> None:
        """Write what retention did; raises as :meth:`handle`."""
        # First, for the set is whole, and a manifest may name it whether or not the fact lands.
        self.handle(LineageCompacted(fact))
        self._tables.write_compacted(fact, clock.now_ms())

    def wait_ms(self) -> int:
        """How long nothing will have to be done if nothing happens."""
        due = triggers.next_trigger_ms(self.state)
        if due is None:
            return _LONGEST_WAIT_MS
        return min(max(due - clock.steady_ms(), 0), _LONGEST_WAIT_MS)

    def _do(self, action: Action) -> list[Event]:
        """Carry out one action; what comes of it goes back into the machine."""
        match action:
            case WriteBarrier():
                return [self._trigger(action)]
            case WriteOvertake(barrier):
                return self._overtake(barrier)
            case WriteCompletion(manifest):
                self._finalising_ms = clock.now_ms()
                self.say(Finalising(manifest.checkpoint_id, manifest.kind))
                self.finalise(manifest)
            case WriteAbort():
                self._abort(action)
            case RefuseRequest(request, why):
                self._tables.write_refusal(action, clock.now_ms())
                self.say(RequestRefused(request, why))
                self._answer(request, 0, why)
            case WriteEnd(root):
                self._tables.write_end(root, clock.now_ms())
                self.say(InputEnded(root))
            case FailJob(failures, cause):
                count = "1 checkpoint" if failures == 1 else f"{failures} checkpoints"
                self.failure = JobFailedError(
                    f"{count} failed in a row, more than "
                    f"spark.absflow.checkpoint.tolerable-failed allows; the last: {cause}. Nothing "
                    "is lost: mend the cause and start the job again"
                )
            case FinishJob(checkpoint_id):
                self.finished_checkpoint = checkpoint_id
                self.say(JobFinished(checkpoint_id))
            case DiscardReport() | StopJob():
                pass
        return []

    def _abort(self, action: WriteAbort) -> None:
        """State it, to whoever has asked for the checkpoint, too."""
        now_ms, checkpoint_id = clock.now_ms(), action.barrier.checkpoint_id
        self._tables.write_abort(action, now_ms)
        pending = self._pending.get(checkpoint_id)
        self.say(happened.aborted(action, pending, self._attempt, now_ms))
        why = f"{action.reason.code}: {action.reason.sentence}"
        why += f" ({action.cause})" if action.cause else ""
        if action.request:
            self._answer(action.request, checkpoint_id, why)

    def _answer(self, request: str, checkpoint_id: int, failed: str = "") -> None:
        self.on_answer(Answer(request, checkpoint_id, failed))

    def _trigger(self, action: WriteBarrier) -> Event:
        barrier = action.barrier
        exhausted = self.state.exhausted_before(barrier.checkpoint_id)
        if action.request and action.request == self.ending:
            exhausted = self.state.topology.roots
        try:
            self._tables.write_barrier(action, exhausted)
        except StorageError as error:
            return CheckpointFailed(barrier.checkpoint_id, FailureReason.TRIGGER_FAILED, str(error))
        kind, request = action.kind, action.request
        self.say(Triggered(barrier.checkpoint_id, kind, barrier.base_id, request))
        return TriggerWritten(barrier.checkpoint_id)

    def _overtake(self, barrier: Barrier) -> list[Event]:
        try:
            self._tables.write_overtake(barrier, clock.now_ms())
        except StorageError as error:
            reason = FailureReason.TRIGGER_FAILED
            return [CheckpointFailed(barrier.checkpoint_id, reason, str(error))]
        self.say(Overtaking(barrier.checkpoint_id))
        return []

    def _complete(self, manifest: Manifest) -> Event:
        checkpoint_id, ended_ms = manifest.checkpoint_id, clock.now_ms()
        try:
            self._tables.write_completion(manifest, ended_ms)
        except StorageError as error:
            # The commit may have landed all the same; only the table knows.
            if not self._tables.is_completed(checkpoint_id):
                return CheckpointFailed(checkpoint_id, FailureReason.FINALIZE_FAILED, str(error))
        now_ms = clock.now_ms()
        self.completed_count += 1
        self.completed_at = to_datetime(now_ms * 1_000)
        pending, finalised = self.state.pending.get(checkpoint_id), (self._finalising_ms, now_ms)
        self.say(happened.completed(manifest, pending, self._attempt, ended_ms, finalised))
        self.on_completed(manifest)
        if manifest.request:
            self._answer(manifest.request, checkpoint_id)
        in_flight = sum(state.rows for stage in manifest.stages for state in stage.in_flight)
        exhausted = self.state.exhausted_before(checkpoint_id)
        reports = (stage.report for stage in manifest.stages)
        times = {r.stage: r.time.stage for r in reports if r.time is not None}
        in_flight += unsettled_stages(times, self.state.topology, exhausted)
        return CompletionWritten(checkpoint_id, clock.steady_ms(), in_flight)
