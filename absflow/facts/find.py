"""A checkpoint by its id, with all that must be known of it to restore it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from absflow.facts.absent import no_root
from absflow.facts.attempts import JobNow, read_attempts
from absflow.facts.listing import sought
from absflow.facts.reading import FactReader
from absflow.facts.records import AttemptRecord, Ready, attempts_of, details_of, ready_of
from absflow.facts.spark_reader import SparkStorageReader
from absflow.protocol.checkpoints import AttemptFact, Manifest
from absflow.protocol.known import Known
from absflow.protocol.lineage import shortened
from absflow.protocol.recovery.attempts import Attempt, Origin
from absflow.protocol.recovery.branch import Branch, branch_of
from absflow.protocol.recovery.savepoint_writer import cut_of
from absflow.storage.delta import tables
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["FoundCheckpoint", "attempts_there", "find_checkpoint"]


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint and what must be known of how it came about.

    Attributes:
        origin: the checkpoint.
        manifest: what it holds.
        attempt: the attempt that took it, or what it was written from; 0 for none.
        cut: the checkpoint that positions and sinks are of; 0 if it was written from nothing.
        described: its stages.
        sinks: place and version, when that attempt began, of each of its sinks.
        published: what each on-checkpoint sink held then.
        behind: the branch that ends with it.
        left: attempt and id of the completed checkpoints that are not on that branch.
    """

    origin: Origin
    manifest: Manifest
    attempt: int
    cut: int
    described: dict[str, Any]
    sinks: Mapping[str, Any]
    published: Mapping[str, int]
    behind: Branch
    left: tuple[tuple[int, int], ...]


def attempts_there(spark: SparkSession, files: Files, layout: Layout) -> tuple[AttemptRecord, ...]:
    """The facts of the table ``attempts``; none if it is not there."""
    if not tables.exists(files, layout.attempts):
        return ()
    return read_attempts(SparkStorageReader(spark), layout)


def find_checkpoint(
    spark: SparkSession, files: Files, root: str, checkpoint_id: int | None
) -> FoundCheckpoint:
    """The checkpoint ``checkpoint_id`` under a storage root (None: the latest of its branch).

    Raises:
        NotFoundError: there is none.
    """
    layout = Layout(root)
    for path in (layout.attempts, layout.checkpoints):
        if not tables.exists(files, path):
            raise no_root(root, path)
    facts = FactReader(SparkStorageReader(spark), layout)
    records = read_attempts(SparkStorageReader(spark), layout)
    job = JobNow(root, tuple(attempts_of(records)))
    known = facts.known(named={*job.origins, *filter(None, [checkpoint_id])}, triggers=False)
    origin = sought(facts, known, job, checkpoint_id)
    checkpoint_id = origin.checkpoint_id
    if origin.root != root:
        return find_checkpoint(spark, files, origin.root, checkpoint_id)
    manifest = facts.manifests([checkpoint_id])[checkpoint_id]
    lineages = ((stage.report.stage, stage.lineage) for stage in manifest.stages)
    manifest = shortened(manifest, facts.compacted(lineages))
    fact = known.completions[checkpoint_id]
    newest_first = sorted(records, key=lambda record: record.incarnation, reverse=True)
    ready = ready_of(newest_first, fact.attempt) or Ready()
    described = details_of(newest_first, fact.attempt, AttemptFact.STARTED)
    if checkpoint_id in known.written:
        mine = [record for record in records if record.incarnation == fact.incarnation]
        described = next((r.details for r in mine if r.kind is AttemptFact.WRITTEN), None)
    behind = _branch(root, job.attempts, known, origin)
    return FoundCheckpoint(
        origin,
        manifest,
        fact.attempt,
        cut_of(checkpoint_id, known.written),
        described or {},
        ready.sinks,
        ready.published,
        behind,
        tuple(
            (attempt, n)
            for n, attempt in known.attempts.items()
            if n not in known.written and not behind.holds(attempt, n)
        ),
    )


def _branch(root: str, attempts: Sequence[Attempt], known: Known, end: Origin) -> Branch:
    """That of an attempt which begins with the checkpoint ``end``, but for itself."""
    begun = Attempt(max((a.attempt for a in attempts), default=0) + 1, end, ready=True)
    found = branch_of(root, [*attempts, begun], known.attempts, known.written)
    return replace(found, parts=found.parts[1:])
