"""A checkpoint by its id, with all that must be known of it to restore it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from absflow.errors import NotFoundError
from absflow.facts import records
from absflow.facts.absent import no_checkpoint
from absflow.facts.reading import FactReader
from absflow.facts.spark_reader import SparkStorageReader
from absflow.protocol.checkpoints import AttemptFact, Manifest
from absflow.protocol.lineage import shortened
from absflow.protocol.recovery.attempts import Origin
from absflow.protocol.recovery.branch import latest
from absflow.protocol.recovery.savepoint_writer import cut_of
from absflow.storage.delta import tables
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["FoundCheckpoint", "find_checkpoint"]


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
        if not tables.exists(files, path):
            raise NotFoundError(
                f"{root!r} is not the storage root of a job: there is no table {path!r}; "
                "spark.absflow.restore.from takes latest, ID, or PATH#ID"
            )
    facts = FactReader(SparkStorageReader(spark), layout)
    rows = tables.rows_of(spark, layout.attempts)
    attempts = records.attempts_of(rows)
    origins = {a.origin.checkpoint_id for a in attempts if a.origin and a.origin.root == root}
    named = origins if checkpoint_id is None else {*origins, checkpoint_id}
    known = facts.known(named=named, triggers=False)
    if checkpoint_id is None:
        newest = latest(root, attempts, known.attempts, known.written, known.deleted)
        if newest is not None and newest.root != root:
            return find_checkpoint(spark, files, newest.root, newest.checkpoint_id)
        checkpoint_id = newest.checkpoint_id if newest else None
    if checkpoint_id is None or checkpoint_id not in known.there:
        raise no_checkpoint(facts, checkpoint_id)
    manifest = facts.manifests([checkpoint_id])[checkpoint_id]
    lineages = ((stage.report.stage, stage.lineage) for stage in manifest.stages)
    manifest = shortened(manifest, facts.compacted(lineages))
    fact = known.completions[checkpoint_id]
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
        cut_of(checkpoint_id, known.written),
        details[AttemptFact.WRITTEN if checkpoint_id in known.written else AttemptFact.STARTED],
        details[AttemptFact.READY]["sinks"],
        details[AttemptFact.READY]["published"],
    )
