"""The coordinator on the driver: steps of the pure machine, and its actions out to the tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from absflow.errors import JobFailedError, StorageError
from absflow.protocol import coordinator
from absflow.protocol.alignment import Barrier
from absflow.protocol.checkpoints import (
    TERMINAL,
    Fact,
    FactKind,
    FailureReason,
    Kind,
    Manifest,
    StageManifest,
)
from absflow.protocol.coordinator import Coordinator
from absflow.protocol.handwriting import Written, written_of
from absflow.protocol.inventory import Compacted
from absflow.protocol.load import Load
from absflow.protocol.messages import (
    Action,
    CheckpointFailed,
    CompletionWritten,
    DiscardReport,
    Event,
    FailJob,
    FinishJob,
    LineageCompacted,
    Policy,
    RefuseRequest,
    RootInput,
    StopJob,
    Topology,
    Triggered,
    TriggerWritten,
    WriteAbort,
    WriteBarrier,
    WriteCompletion,
    WriteEnd,
    WriteOvertake,
)
from absflow.protocol.recovery import Origin
from absflow.protocol.retention import compacted_of, shortened
from absflow.storage.channel_state import channel_state
from absflow.storage.files import Files
from absflow.storage.layout import Layout
from absflow.storage.manifests import stage_of, stage_row
from absflow.storage.tables import REFUSED, DriverTable, millis, timestamp

__all__ = ["Answer", "CoordinatorDriver", "Tables", "manifest_of"]

_LOG = logging.getLogger(__name__)
_LONGEST_WAIT_MS = 500


class Tables:
    """The driver's tables of one attempt, as the coordinator writes them."""

    def __init__(
        self,
        barriers: DriverTable,
        overtakes: DriverTable,
        checkpoints: DriverTable,
        attempt: int,
        incarnation: int,
        fingerprint: str,
        files: Files,
        layout: Layout,
    ) -> None:
        """Write for ``attempt`` as driver number ``incarnation``."""
        self._files = files
        self._layout = layout
        self._barriers = barriers
        self._overtakes = overtakes
        self._checkpoints = checkpoints
        self._attempt = attempt
        self._incarnation = incarnation
        self._fingerprint = fingerprint
        names = ("absflow", "pyspark", "delta-spark")
        self._versions = {name: version(name) for name in names}

    def write_barrier(self, action: WriteBarrier) -> None:
        """Append a trigger; root stages read it."""
        barrier = action.barrier
        self._barriers.append(
            {
                "attempt": self._attempt,
                "checkpoint_id": barrier.checkpoint_id,
                "base_id": barrier.base_id,
                "completed_id": barrier.completed_id,
                "kind": action.kind.value,
                "request": action.request or None,
                "triggered_at": timestamp(barrier.triggered_ms),
            }
        )

    def write_end(self, root: RootInput, now_ms: int) -> None:
        """Append the END of a root input."""
        self._barriers.append(
            {
                "attempt": self._attempt,
                "kind": Kind.END.value,
                "stage": root.stage,
                "input": root.name,
                "triggered_at": timestamp(now_ms),
            }
        )

    def write_abort(self, action: WriteAbort, now_ms: int) -> None:
        """Release the blocked inputs, then state the fact: a fact without a release may hang."""
        barrier = action.barrier
        # After SUBSUMED every stage is past it.
        if action.release and action.reason is not FailureReason.SUBSUMED:
            self._overtakes.append(
                {
                    "attempt": self._attempt,
                    "checkpoint_id": barrier.checkpoint_id,
                    "kind": "ABORT",
                    "at": timestamp(now_ms),
                }
            )
        fact = self._fact(barrier.checkpoint_id, FactKind.ABORTED, barrier.triggered_ms, now_ms)
        fact |= {"reason": action.reason.code, "cause": action.cause, "base_id": barrier.base_id}
        self._checkpoints.append(fact | _asked(action.kind, action.request))

    def write_overtake(self, barrier: Barrier, now_ms: int) -> None:
        """Let a checkpoint overtake; every stage reads it."""
        self._overtakes.append(
            {
                "attempt": self._attempt,
                "checkpoint_id": barrier.checkpoint_id,
                "kind": "OVERTAKE",
                "base_id": barrier.base_id,
                "completed_id": barrier.completed_id,
                "triggered_at": timestamp(barrier.triggered_ms),
                "at": timestamp(now_ms),
            }
        )

    def write_refusal(self, action: RefuseRequest, now_ms: int) -> None:
        """Answer a request that is not obeyed."""
        self._checkpoints.append(
            {
                "kind": REFUSED,
                "request": action.request,
                "cause": action.why,
                "attempt": self._attempt,
                "incarnation": self._incarnation,
                "ended_at": timestamp(now_ms),
            }
        )

    def with_channel_state(self, manifest: Manifest) -> Manifest:
        """The manifest with the rows that it has overtaken.

        Raises:
            StorageError: the log of a channel is not whole.
        """
        # The report of a stage that has ended is an older one; nothing was in flight when it ended.
        n = manifest.checkpoint_id
        parts = (
            self._with_channel_state(s) if s.report.checkpoint_id == n else s
            for s in manifest.stages
        )
        return replace(manifest, stages=tuple(parts))

    def _with_channel_state(self, stage: StageManifest) -> StageManifest:
        found = (
            channel_state(
                self._files.read,
                self._layout.channel(name, self._attempt),
                stage.report.stage,
                name,
                self._attempt,
                position,
                stage.report.checkpoint_id,
            )
            for name, position in stage.report.in_flight.items()
        )
        return replace(stage, in_flight=tuple(state for state in found if state is not None))

    def write_completion(self, manifest: Manifest, now_ms: int) -> None:
        """Commit the manifest: from here on the checkpoint exists."""
        fact = self._fact(manifest.checkpoint_id, FactKind.COMPLETED, manifest.triggered_ms, now_ms)
        fact |= {"base_id": manifest.base_id, "stages": [stage_row(s) for s in manifest.stages]}
        fact["derived_from"] = manifest.derived_from
        self._checkpoints.append(fact | _asked(manifest.kind, manifest.request))

    def write_deleted(self, checkpoint_ids: Sequence[int], request: str, now_ms: int) -> None:
        """State that these checkpoints are gone, in one commit, which answers ``request``."""
        asked = {"request": request or None}
        self._checkpoints.append(
            *(self._retained(n, FactKind.DELETED, now_ms) | asked for n in checkpoint_ids)
        )

    def write_compacted(self, fact: Compacted, now_ms: int) -> None:
        """State that a set stands for several."""
        row = self._retained(fact.checkpoint_id, FactKind.COMPACTED, now_ms)
        row |= {"stage": fact.stage, "set_id": fact.set_id, "replaces": list(fact.replaces)}
        self._checkpoints.append(row)

    def _retained(self, checkpoint_id: int, kind: FactKind, now_ms: int) -> dict[str, Any]:
        return {
            "checkpoint_id": checkpoint_id,
            "kind": kind.value,
            "attempt": self._attempt,
            "incarnation": self._incarnation,
            "ended_at": timestamp(now_ms),
        }

    def is_completed(self, checkpoint_id: int) -> bool:
        """Whether the manifest is there after all; asked when its commit raised."""
        return any(
            row["checkpoint_id"] == checkpoint_id and row["kind"] == FactKind.COMPLETED.value
            for row in self._checkpoints.rows()
        )

    def completed(self) -> tuple[dict[int, int], dict[int, Written]]:
        """The attempt of each completed checkpoint, by id, and those that were written by hand."""
        done = FactKind.COMPLETED.value
        rows = [row for row in self._checkpoints.rows() if row["kind"] == done]
        return {row["checkpoint_id"]: row["attempt"] for row in rows}, written_of(rows)

    def recover(
        self,
        topology: Topology,
        policy: Policy,
        now_ms: int,
        origin: Origin | None,
        *,
        full: bool,
    ) -> tuple[Coordinator, tuple[Action, ...]]:
        """The coordinator as the facts have it.

        Args:
            topology: the graph.
            policy: the settings.
            now_ms: the clock.
            origin: the checkpoint that the attempt began with.
            full: the attempt's first snapshots must be full ones.
        """
        rows = self._barriers.rows()
        triggers = tuple(
            Triggered(
                Barrier(
                    row["checkpoint_id"],
                    row["base_id"],
                    row["completed_id"],
                    millis(row["triggered_at"]),
                ),
                Kind(row["kind"]),
                row["request"] or "",
                ours=row["attempt"] == self._attempt,
            )
            for row in rows
            if row["kind"] != Kind.END.value
        )
        ended = {
            RootInput(row["stage"], row["input"])
            for row in rows
            if row["kind"] == Kind.END.value and row["attempt"] == self._attempt
        }
        rows_there = self._checkpoints.rows()
        terminal = [row for row in rows_there if row["kind"] in TERMINAL]
        facts = tuple(
            Fact(row["checkpoint_id"], FactKind(row["kind"]), request=row["request"] or "")
            for row in terminal
        )
        return coordinator.recover(
            topology,
            policy,
            now_ms,
            triggers,
            facts,
            self._goes_on_from(rows_there, None if full else origin),
            frozenset(ended),
            floor=origin.checkpoint_id if origin else 0,
        )

    def _goes_on_from(self, rows: list[dict[str, Any]], origin: Origin | None) -> Manifest | None:
        """The newest checkpoint that the attempt has taken, else the one that it began with."""
        completed = [row for row in rows if row["kind"] == FactKind.COMPLETED.value]
        # It does not go on from a savepoint that was written by hand and not restored.
        mine = [r for r in completed if r["attempt"] == self._attempt and r["derived_from"] is None]
        if origin is not None and not mine:
            mine = [row for row in completed if row["checkpoint_id"] == origin.checkpoint_id]
        newest = max(mine, key=lambda row: int(row["checkpoint_id"]), default=None)
        return shortened(manifest_of(newest), compacted_of(rows)) if newest else None

    def _fact(
        self, checkpoint_id: int, kind: FactKind, triggered_ms: int, now_ms: int
    ) -> dict[str, Any]:
        return {
            **self._retained(checkpoint_id, kind, now_ms),
            "triggered_at": timestamp(triggered_ms),
            "duration_ms": max(0, now_ms - triggered_ms),
            "fingerprint": self._fingerprint,
            "versions": list(self._versions.items()),
        }


def _asked(kind: Kind, request: str) -> dict[str, Any]:
    """Who asked for a checkpoint, in its terminal fact."""
    return {"type": kind.value, "request": request or None}


def manifest_of(row: Mapping[str, Any]) -> Manifest:
    """The manifest in a COMPLETED row of ``checkpoints``."""
    return Manifest(
        row["checkpoint_id"],
        row["base_id"],
        millis(row["triggered_at"]),
        tuple(map(stage_of, row["stages"])),
        Kind(row["type"]),
        row["request"] or "",
        row["derived_from"],
    )


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


class CoordinatorDriver:
    """Steps the coordinator and does what it asks for; used by one thread."""

    def __init__(self, tables: Tables, state: Coordinator, now_ms: Callable[[], int]) -> None:
        """Go on from ``state``; ``now_ms`` is the clock."""
        self._tables = tables
        self._now_ms = now_ms
        # Called with every checkpoint that completes, and with the answer to every request.
        self.on_completed: Callable[[int], None] = lambda _: None
        self.on_answer: Callable[[Answer], None] = lambda _: None
        # What a stage is doing when a checkpoint completes.
        self.load_of: Callable[[str], Load | None] = lambda _: None
        self.state = state
        self.completed_count = 0
        self.finished_checkpoint: int | None = None
        self.failure: JobFailedError | None = None

    def begin(self, actions: tuple[Action, ...]) -> None:
        """Do what :func:`absflow.protocol.coordinator.recover` asked for."""
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
            self.state, actions = coordinator.step(self.state, waiting.pop(0))
            for action in actions:
                stop = stop or isinstance(action, StopJob)
                waiting.extend(self._do(action))
        return stop

    def write_deleted(self, checkpoint_ids: Sequence[int], request: str = "") -> None:
        """Write what retention decided, or somebody asked for; raises as :meth:`handle`."""
        self._tables.write_deleted(checkpoint_ids, request, self._now_ms())

    def write_refusal(self, request: str, why: str) -> None:
        """Answer a request of which the coordinator knows nothing; raises as :meth:`handle`."""
        self._tables.write_refusal(RefuseRequest(request, why), self._now_ms())

    def write_compacted(self, fact: Compacted) -> None:
        """Write what retention did; raises as :meth:`handle`."""
        # First, for the set is whole, and a manifest may name it whether or not the fact lands.
        self.handle(LineageCompacted(fact))
        self._tables.write_compacted(fact, self._now_ms())

    def wait_ms(self) -> int:
        """How long nothing will have to be done if nothing happens."""
        due = coordinator.next_trigger_ms(self.state)
        if due is None:
            return _LONGEST_WAIT_MS
        return min(max(due - self._now_ms(), 0), _LONGEST_WAIT_MS)

    def _do(self, action: Action) -> list[Event]:
        """Carry out one action; what comes of it goes back into the machine."""
        _LOG.info("coordinator: %s", action)
        match action:
            case WriteBarrier():
                return [self._trigger(action)]
            case WriteOvertake(barrier):
                return self._overtake(barrier)
            case WriteCompletion(manifest):
                return [self._complete(manifest)]
            case WriteAbort():
                self._tables.write_abort(action, self._now_ms())
                if action.request:
                    why = f"{action.reason.code}: {action.reason.sentence}"
                    why += f" ({action.cause})" if action.cause else ""
                    self._answer(action.request, action.barrier.checkpoint_id, why)
            case RefuseRequest(request, why):
                self._tables.write_refusal(action, self._now_ms())
                self._answer(request, 0, why)
            case WriteEnd(root):
                self._tables.write_end(root, self._now_ms())
            case DiscardReport(checkpoint_id, stage, why):
                _LOG.warning(
                    "report of %s for checkpoint %d discarded: %s", stage, checkpoint_id, why.value
                )
            case FailJob(failures, cause):
                self.failure = JobFailedError(
                    f"{failures} checkpoints failed in a row, more than "
                    f"spark.absflow.checkpoint.tolerable-failed allows; the last: {cause}. Nothing "
                    "is lost: mend the cause and start the job again"
                )
            case FinishJob(checkpoint_id):
                self.finished_checkpoint = checkpoint_id
            case StopJob():
                pass
        return []

    def _answer(self, request: str, checkpoint_id: int, failed: str = "") -> None:
        self.on_answer(Answer(request, checkpoint_id, failed))

    def _trigger(self, action: WriteBarrier) -> Event:
        barrier = action.barrier
        try:
            self._tables.write_barrier(action)
        except StorageError as error:
            return CheckpointFailed(barrier.checkpoint_id, FailureReason.TRIGGER_FAILED, str(error))
        return TriggerWritten(barrier.checkpoint_id)

    def _overtake(self, barrier: Barrier) -> list[Event]:
        try:
            self._tables.write_overtake(barrier, self._now_ms())
        except StorageError as error:
            reason = FailureReason.TRIGGER_FAILED
            return [CheckpointFailed(barrier.checkpoint_id, reason, str(error))]
        return []

    def _with_load(self, manifest: Manifest) -> Manifest:
        stages = (replace(s, load=self.load_of(s.report.stage)) for s in manifest.stages)
        return replace(manifest, stages=tuple(stages))

    def _complete(self, manifest: Manifest) -> Event:
        checkpoint_id = manifest.checkpoint_id
        try:
            manifest = self._tables.with_channel_state(self._with_load(manifest))
            self._tables.write_completion(manifest, self._now_ms())
        except StorageError as error:
            # The commit may have landed all the same; only the table knows.
            if not self._tables.is_completed(checkpoint_id):
                return CheckpointFailed(checkpoint_id, FailureReason.FINALIZE_FAILED, str(error))
        self.completed_count += 1
        self.on_completed(checkpoint_id)
        if manifest.request:
            self._answer(manifest.request, checkpoint_id)
        in_flight = sum(state.rows for stage in manifest.stages for state in stage.in_flight)
        return CompletionWritten(checkpoint_id, self._now_ms(), in_flight)
