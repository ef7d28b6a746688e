"""The effects of the coordinator: steps of the pure machine, and its actions out to the tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from absflow.errors import JobFailedError, StorageError
from absflow.facts.writer import FactWriter
from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import (
    FailureReason,
    Manifest,
    own_reports,
)
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
    Unexpected,
    WriteAbort,
    WriteBarrier,
    WriteCompletion,
    WriteEnd,
    WriteOvertake,
)
from absflow.protocol.coordinator.pending import Coordinator
from absflow.protocol.event_time import to_datetime
from absflow.protocol.lineage import Compacted
from absflow.storage import clock

__all__ = ["Answer", "CoordinatorEffects", "completed_line", "late_line"]

_LOG = logging.getLogger(__name__)
_LONGEST_WAIT_MS = 500
# Why a stage's report is of no use, and that this does no harm.
_USELESS = {
    Unexpected.LATE: "came when that had ended; nothing is lost, the next one has what it had",
    Unexpected.DUPLICATE: "came twice, as when a micro-batch runs again; it counts once",
    Unexpected.UNKNOWN: "is of none that this driver waits for; nothing is lost",
}


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


def completed_line(manifest: Manifest, now_ms: int) -> str:
    """What a log says of a checkpoint that has completed; the times are those of the wall clock."""
    mine = own_reports(manifest.checkpoint_id, manifest.stages)
    keys, size = (sum(r.rows_changed for r in mine), sum(r.bytes_changed for r in mine))
    return (
        f"{manifest.kind.value.lower()} {manifest.checkpoint_id} completed in "
        f"{max(0, now_ms - manifest.triggered_ms):,} ms: {keys:,} keys changed, {size:,} bytes"
    )


def late_line(manifest: Manifest) -> str:
    """What a log says of rows that came late since the checkpoint before; empty if none did."""
    n = manifest.checkpoint_id
    reports = own_reports(n, manifest.stages)
    late = [f"{r.late_rows:,} in stage {r.stage!r}" for r in reports if r.late_rows]
    return f"late rows before checkpoint {n}: {', '.join(late)}" if late else ""


class CoordinatorEffects:
    """Steps the coordinator and does what it asks for; used by one thread."""

    def __init__(self, tables: FactWriter, state: Coordinator) -> None:
        """Go on from ``state``."""
        self._tables = tables
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
            self.state, actions = machine.step(self.state, waiting.pop(0))
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
        _LOG.debug("coordinator: %s", action)
        match action:
            case WriteBarrier():
                return [self._trigger(action)]
            case WriteOvertake(barrier):
                return self._overtake(barrier)
            case WriteCompletion(manifest):
                self.finalise(manifest)
            case WriteAbort():
                self._tables.write_abort(action, clock.now_ms())
                self._say_aborted(action)
            case RefuseRequest(request, why):
                self._tables.write_refusal(action, clock.now_ms())
                self._answer(request, 0, why)
            case WriteEnd(root):
                self._tables.write_end(root, clock.now_ms())
            case DiscardReport(checkpoint_id, stage, why):
                _LOG.info(
                    "the report of stage %s for checkpoint %d %s",
                    stage,
                    checkpoint_id,
                    _USELESS[why],
                )
            case FailJob(failures, cause):
                count = "1 checkpoint" if failures == 1 else f"{failures} checkpoints"
                self.failure = JobFailedError(
                    f"{count} failed in a row, more than "
                    f"spark.absflow.checkpoint.tolerable-failed allows; the last: {cause}. Nothing "
                    "is lost: mend the cause and start the job again"
                )
            case FinishJob(checkpoint_id):
                self.finished_checkpoint = checkpoint_id
            case StopJob():
                pass
        return []

    def _say_aborted(self, action: WriteAbort) -> None:
        """To whoever reads the log, and to whoever has asked for it."""
        why = f"{action.reason.code}: {action.reason.sentence}"
        checkpoint_id = action.barrier.checkpoint_id
        first = action.cause.partition("\n")[0]  # a cause may be an error of Java's
        line = f"{why} ({first})" if first else why
        _LOG.info("%s %d aborted: %s", action.kind.value.lower(), checkpoint_id, line)
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
        return TriggerWritten(barrier.checkpoint_id)

    def _overtake(self, barrier: Barrier) -> list[Event]:
        try:
            self._tables.write_overtake(barrier, clock.now_ms())
        except StorageError as error:
            reason = FailureReason.TRIGGER_FAILED
            return [CheckpointFailed(barrier.checkpoint_id, reason, str(error))]
        return []

    def _complete(self, manifest: Manifest) -> Event:
        checkpoint_id = manifest.checkpoint_id
        try:
            self._tables.write_completion(manifest, clock.now_ms())
        except StorageError as error:
            # The commit may have landed all the same; only the table knows.
            if not self._tables.is_completed(checkpoint_id):
                return CheckpointFailed(checkpoint_id, FailureReason.FINALIZE_FAILED, str(error))
        now_ms = clock.now_ms()
        self.completed_count += 1
        self.completed_at = to_datetime(now_ms * 1_000)
        _LOG.info("%s", completed_line(manifest, now_ms))
        if late := late_line(manifest):
            _LOG.warning('%s; those of sources with late="table" are in late/SOURCE', late)
        self.on_completed(manifest)
        if manifest.request:
            self._answer(manifest.request, checkpoint_id)
        in_flight = sum(state.rows for stage in manifest.stages for state in stage.in_flight)
        exhausted = self.state.exhausted_before(checkpoint_id)
        reports = (stage.report for stage in manifest.stages)
        times = {r.stage: r.time.stage for r in reports if r.time is not None}
        in_flight += unsettled_stages(times, self.state.topology, exhausted)
        return CompletionWritten(checkpoint_id, clock.steady_ms(), in_flight)
