"""A checkpoint by its id, with all that must be known of it to restore it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from absflow.errors import NotFoundError
from absflow.facts import records
from absflow.facts.records import compacted_of, deleted_of, manifest_of, written_savepoints
from absflow.facts.stages import no_checkpoint
from absflow.protocol.checkpoints import (
    AttemptFact,
    Fact,
    FactKind,
    FailureReason,
    Manifest,
)
from absflow.protocol.lineage import shortened
from absflow.protocol.recovery.attempts import Origin
from absflow.protocol.recovery.branch import latest
from absflow.protocol.recovery.savepoint_writer import cut_of
from absflow.storage.delta import tables
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["FoundCheckpoint", "find_checkpoint"]

# By these columns it is known whose a checkpoint is.
_WHOSE = ("attempt", "incarnation", "derived_from")


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
    """

    origin: Origin
    manifest: Manifest
    attempt: int
    cut: int
    described: dict[str, Any]
    sinks: dict[str, Any]
    published: dict[str, int]


def find_checkpoint(
    spark: SparkSession, files: Files, root: str, checkpoint_id: int | None
) -> FoundCheckpoint:
    """The checkpoint ``checkpoint_id`` under a storage root (None: the latest of its branch).

    Raises:
        NotFoundError: there is none.
    """
    layout = Layout(root)
    for path in (layout.attempts, layout.checkpoints):
        if not files.names(f"{path}/_delta_log"):
            raise NotFoundError(
                f"{root!r} is not the storage root of a job: there is no table {path!r}; "
                "spark.absflow.restore.from takes latest, ID, or PATH#ID"
            )
    table = tables.read(spark, layout.checkpoints)
    names = ("checkpoint_id", "kind", "reason", *_WHOSE, "stage", "set_id", "replaces")
    light = table.select(*names).where(F.col("checkpoint_id").isNotNull()).collect()
    done = FactKind.COMPLETED.value
    completed = {r.checkpoint_id: r for r in light if r.kind == done}
    deleted = deleted_of(r.asDict() for r in light)
    written = written_savepoints(r.asDict() for r in completed.values())
    rows = tables.rows_of(spark, layout.attempts)
    if checkpoint_id is None:
        of = {n: r.attempt for n, r in completed.items()}
        newest = latest(root, records.attempts_of(rows), of, written, deleted)
        if newest is not None and newest.root != root:
            return find_checkpoint(spark, files, newest.root, newest.checkpoint_id)
        checkpoint_id = newest.checkpoint_id if newest else None
    if checkpoint_id is None or checkpoint_id not in completed.keys() - deleted:
        by_code = {reason.code: reason for reason in FailureReason}
        facts = [Fact(r.checkpoint_id, FactKind(r.kind), by_code.get(r.reason)) for r in light]
        barriers = tables.read(spark, layout.barriers).where(F.col("checkpoint_id").isNotNull())
        triggered = {r.checkpoint_id for r in barriers.select("checkpoint_id").collect()}
        raise no_checkpoint(checkpoint_id, facts, triggered)
    wanted = (F.col("checkpoint_id") == checkpoint_id) & (F.col("kind") == done)
    manifest = manifest_of(table.where(wanted).toArrow().to_pylist()[0])
    manifest = shortened(manifest, compacted_of(r.asDict() for r in light))
    fact = completed[checkpoint_id]
    details = {
        r["kind"]: json.loads(r["details"])
        for r in sorted(rows, key=lambda r: int(r["incarnation"]))
        if (r["kind"] in {AttemptFact.STARTED, AttemptFact.READY} and r["attempt"] == fact.attempt)
        or (r["kind"] == AttemptFact.WRITTEN and r["incarnation"] == fact.incarnation)
    }
    return FoundCheckpoint(
        Origin(root, checkpoint_id),
        manifest,
        fact.attempt,
        cut_of(checkpoint_id, written),
        details[AttemptFact.WRITTEN if checkpoint_id in written else AttemptFact.STARTED],
        details[AttemptFact.READY]["sinks"],
        details[AttemptFact.READY]["published"],
    )
