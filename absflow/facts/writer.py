"""The facts that the coordinator writes, and its state derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from absflow.columnar.pages import PageKind
from absflow.facts.columns import REFUSED
from absflow.facts.driver_table import DriverTable
from absflow.facts.reading import FactReader
from absflow.facts.records import stage_row, timestamp
from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import (
    Fact,
    FactKind,
    FailureReason,
    Kind,
    Manifest,
    StageManifest,
)
from absflow.protocol.coordinator import machine
from absflow.protocol.coordinator.messages import (
    Action,
    Policy,
    RefuseRequest,
    RootInput,
    Topology,
    Triggered,
    WriteAbort,
    WriteBarrier,
)
from absflow.protocol.coordinator.pending import Coordinator
from absflow.protocol.known import Known
from absflow.protocol.lineage import Compacted, shortened
from absflow.protocol.recovery.attempts import Attempt, Origin
from absflow.protocol.recovery.branch import branch_ids
from absflow.protocol.recovery.savepoint_writer import WrittenSavepoint
from absflow.storage.channel_state import channel_state
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["FactWriter"]


class FactWriter:
    """The driver's tables of one attempt, as the coordinator writes them.

    A trigger, an overtaking or a manifest that cannot be written fails its checkpoint; what fails
    the job if it cannot be written is insisted on.
    """

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
        facts: FactReader,
    ) -> None:
        """Write for ``attempt`` as driver number ``incarnation``; read with ``facts``."""
        self._facts = facts
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

    def write_barrier(self, action: WriteBarrier, exhausted: Iterable[RootInput] = ()) -> None:
        """Append a trigger; root stages read it.

        Args:
            action: the trigger.
            exhausted: the root inputs that had nothing left; for event time they end with it.
        """
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
                "exhausted": [
                    {"stage": root.stage, "input": root.name} for root in sorted(exhausted)
                ],
            }
        )

    def write_end(self, root: RootInput, now_ms: int) -> None:
        """Append the END of a root input."""
        self._barriers.insist(
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
            self._overtakes.insist(
                {
                    "attempt": self._attempt,
                    "checkpoint_id": barrier.checkpoint_id,
                    "kind": "ABORT",
                    "at": timestamp(now_ms),
                }
            )
        fact = self._fact(barrier.checkpoint_id, FactKind.ABORTED, barrier.triggered_ms, now_ms)
        fact |= {"reason": action.reason.code, "cause": action.cause, "base_id": barrier.base_id}
        self._checkpoints.insist(fact | _asked(action.kind, action.request))

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

    def write_wake(self, now_ms: int) -> None:
        """Have every stage run a micro-batch, though nothing has come for it."""
        row = {"attempt": self._attempt, "kind": PageKind.WAKE.value, "at": timestamp(now_ms)}
        self._overtakes.append(row)

    def write_refusal(self, action: RefuseRequest, now_ms: int) -> None:
        """Answer a request that is not obeyed."""
        self._checkpoints.insist(
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
        self._checkpoints.insist(
            *(self._retained(n, FactKind.DELETED, now_ms) | asked for n in checkpoint_ids)
        )

    def write_compacted(self, fact: Compacted, now_ms: int) -> None:
        """State that a set stands for several."""
        row = self._retained(fact.checkpoint_id, FactKind.COMPACTED, now_ms)
        row |= {"stage": fact.stage, "set_id": fact.set_id, "replaces": list(fact.replaces)}
        if fact.digest is not None:
            row |= {"set_rows": fact.digest.rows, "set_digest": fact.digest.digest}
        self._checkpoints.insist(row)

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
        return self._facts.is_completed(checkpoint_id)

    def completed(
        self, root: str, attempts: Sequence[Attempt], since: int
    ) -> tuple[dict[int, int], dict[int, WrittenSavepoint]]:
        """The attempt of each checkpoint that has completed since, and the written savepoints.

        Args:
            root: the storage root, as origins name it.
            attempts: all attempts under it.
            since: a checkpoint on the branch, which is given, too; 0 for all that ever completed.
        """
        named = {a.origin.checkpoint_id for a in attempts if a.origin and a.origin.root == root}
        known = self._facts.known(named=named, triggers=False)
        completed = known.attempts | self._facts.completed_since(since)
        if since and since not in branch_ids(root, attempts, completed, known.written)[0]:
            # What comes before the first one that is missing may be any of them.
            completed |= self._facts.completed_since(0)
        return completed, known.written

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
        floor = origin.checkpoint_id if origin else 0
        known = self._facts.known(attempt=self._attempt, named={floor} - {0})
        triggers = tuple(
            Triggered(t.barrier, t.kind, t.request, ours=t.attempt == self._attempt)
            for t in known.pending
        )
        newest = Fact(known.ended_id, FactKind.ABORTED)  # ids rise above it, however it ended
        return machine.recover(
            topology,
            policy,
            now_ms,
            triggers,
            (newest,) if known.ended_id else (),
            self._goes_on_from(known, None if full else origin),
            frozenset(RootInput(*end) for end in known.ends),
            floor=floor,
        )

    def _goes_on_from(self, known: Known, origin: Origin | None) -> Manifest | None:
        """The newest checkpoint that the attempt has taken, else the one that it began with."""
        taken = (c for c in known.completions.values() if c.attempt == self._attempt)
        # It does not go on from a written savepoint that was not restored.
        mine = [c.checkpoint_id for c in taken if c.derived_from is None]
        if origin is not None and not mine:
            mine = [n for n in known.completions if n == origin.checkpoint_id]
        newest = max(mine, default=None)
        if newest is None:
            return None
        manifest = self._facts.manifests([newest])[newest]
        lineages = ((stage.report.stage, stage.lineage) for stage in manifest.stages)
        return shortened(manifest, self._facts.compacted(lineages))

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
