"""What on-checkpoint sinks hold when an attempt begins, and what they owe when a driver starts."""

from __future__ import annotations

from absflow.errors import GraphError
from absflow.facts.published import published_by
from absflow.facts.records import Ready, attempts_of
from absflow.facts.writer import FactWriter
from absflow.protocol.recovery import publication
from absflow.protocol.recovery.attempts import Attempt
from absflow.protocol.recovery.branch import Branch, branch_of
from absflow.protocol.recovery.publication import Owed
from absflow.spark.model import JobSpec
from absflow.spark.start.decision import StartDecision
from absflow.spark.start.restore_check import held_once_restored
from absflow.storage.root import StorageRoot

__all__ = ["held_at_start", "owed_at_start", "owed_states"]


def held_at_start(root: StorageRoot, job: JobSpec, decision: StartDecision) -> dict[str, int]:
    """The newest checkpoint that each on-checkpoint sink holds when a new attempt begins."""
    restore = decision.restore
    if restore is None:
        return dict.fromkeys(job.graph.published, 0)
    # Looked up behind the claim, after which no older driver publishes.
    return held_once_restored(root, job, restore)


def owed_at_start(
    root: StorageRoot,
    job: JobSpec,
    decision: StartDecision,
    ready: Ready,
    facts: FactWriter,
) -> tuple[dict[str, Owed], Branch]:
    """By on-checkpoint sink, the checkpoints that completed and were not published."""
    if not job.graph.published:
        return {}, Branch(())
    attempts = [a for a in attempts_of(decision.facts) if a.attempt != decision.attempt]
    attempts.append(Attempt(decision.attempt, decision.origin, ready=True))
    noted: dict[str, int] = {}
    for name in job.graph.published:
        if name not in ready.published:
            raise GraphError(
                f"on-checkpoint sink {name!r} is new, and what it has missed is not known; "
                "restore from a checkpoint (spark.absflow.restore.from=latest)"
            )
        found = published_by(root.files, root.layout, decision.attempt, name)
        noted[name] = ready.published[name] if found is None else found
    at = root.layout.root
    completed, written = facts.completed(at, attempts, min(noted.values()))
    owed = {
        name: Owed(
            publication.unpublished(at, attempts, completed, written, last),
            ready.published[name],
            last,
        )
        for name, last in noted.items()
    }
    return owed, branch_of(at, attempts, completed, written)


def owed_states(job: JobSpec, attempt: int, completed: int) -> dict[str, Owed]:
    """By sink of state, the newest state; whoever publishes looks whether the table has it.

    Args:
        job: the job.
        attempt: its attempt.
        completed: the newest checkpoint that this attempt has completed; 0 if there is none.
    """
    newest = [publication.Publication(completed, 0, attempt)] if completed else []
    return {name: Owed(newest, 0, 0) for name in job.graph.of_state}
