"""A checkpoint becomes the beginning of a new attempt: first the plan, then its steps.

The state goes from the state histories through pages in files into batch 0 of each stage's query;
that batch reads nothing else, for empty directories stand in the place of the inputs. Then the
line of each root input in ``offsets/0`` is replaced by its position in the checkpoint, so that
batch 1, with the real inputs, begins behind the cut. (Spark checks the number of a plan's sources
against its offset log, not what they are; so the source of the restored pages stays in the plan,
as the last, for as long as the attempt lives.) Rows that the checkpoint has overtaken follow as
DATA pages in further files of that source, which the first real batch finds there: before all rows
of its inputs, for their epochs are lower.

Nothing of the checkpoint, of its attempt or of another storage root is changed, but for the sinks
of the job itself. A half-made attempt is left where a kill leaves it and never run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from absflow.columnar.pages import PageKind
from absflow.columnar.stage import StageSpec
from absflow.errors import NotFoundError, RestoreError
from absflow.graph import describe
from absflow.protocol import recovery
from absflow.protocol.checkpoints import (
    AttemptFact,
    Fact,
    FactKind,
    FailureReason,
    Manifest,
)
from absflow.protocol.handwriting import cut_of, written_of
from absflow.protocol.line import latest
from absflow.protocol.lookup import no_checkpoint
from absflow.protocol.recovery import Origin, Restore, StageFit
from absflow.protocol.retention import compacted_of, deleted_of, shortened
from absflow.sinks import SinkCut, SinkRestore
from absflow.spark.driver import manifest_of
from absflow.spark.plan import (
    JobSpec,
    begins_in_batch_2,
    query_name,
    restored_pages,
    source_index,
    start_query,
    tell_alignments,
)
from absflow.spark.positions import SourceLogs, copies_since, unreadable
from absflow.spark.restored import bring_in_flight, state_pages
from absflow.storage import tables
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["RestorePlan", "Taken", "carry_out", "find", "plan_restore"]

_LOG = logging.getLogger(__name__)
_COMPACT_INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"
# What tells whose a checkpoint is.
_WHOSE = ("attempt", "incarnation", "derived_from")


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Exactly what a restore would do.

    Attributes:
        origin: the checkpoint.
        attempt: the attempt that begins with it.
        fork: it lies under another storage root.
        stages: how each stage gets its state.
        positions: where each source goes on, as Spark writes it; new sources are not among them.
        source_logs: where that is kept what the position of each source needs.
        sinks: what happens to each sink.
        tables: name of the state history of each stage in the checkpoint.
        keys: its key columns there.
        taken_in: the attempt that took the checkpoint; 0 if it was written from nothing.
        cut: the checkpoint that positions and sinks are of: another one if it was written by hand,
            0 if it was written from nothing.
        published: what each on-checkpoint sink held when that attempt began.
        differences: between the graph of then and the one of now.
        problems: why it cannot be done; empty if it can.
    """

    origin: Origin
    attempt: int
    fork: bool
    stages: tuple[StageFit, ...]
    positions: Mapping[str, str]
    source_logs: Mapping[str, str]
    sinks: Mapping[str, SinkRestore]
    tables: Mapping[str, str]
    keys: Mapping[str, Sequence[str]]
    taken_in: int
    cut: int
    published: Mapping[str, int]
    differences: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def full(self) -> bool:
        """Whether the next checkpoint must be a full one: it has no sets here to build upon."""
        return self.fork or any(stage.changed for stage in self.stages)

    def document(self) -> dict[str, Any]:
        """The plan as JSON has it; ``absflow restore --plan --json`` prints it.

        ``restores`` is true: a start restores, or would if there were no ``problems``; a start that
        would not has these two alone. The stages come in topological order; ``source`` and
        ``table`` are null for one that begins empty. A source that is not in ``positions`` begins
        where its options say. ``version_then`` is null for a sink that stays as it is.
        """
        histories = Layout(self.origin.root)
        return {
            "restores": True,
            "origin": {"root": self.origin.root, "checkpoint_id": self.origin.checkpoint_id},
            "taken_in_attempt": self.taken_in,
            "attempt": self.attempt,
            "fork": self.fork,
            "next_checkpoint_full": self.full,
            "stages": [
                {
                    "stage": fit.stage,
                    "source": fit.source,
                    "keys": fit.keys,
                    "lineage": list(fit.lineage),
                    "table": fit.source and histories.state(self.tables[fit.source]),
                    "key_groups_then": fit.key_groups[0],
                    "key_groups_now": fit.key_groups[1],
                    "changed": fit.changed,
                    "migrate": fit.migrate,
                    "in_flight": [
                        {"input": name, "rows": state.rows, "bytes": state.bytes}
                        for name, state in fit.in_flight
                    ],
                }
                for fit in self.stages
            ],
            "positions": dict(self.positions),
            "sinks": [
                {
                    "sink": name,
                    "place": sink.place,
                    "version_now": sink.now,
                    "version_then": sink.then,
                    "undone": list(sink.undone),
                    "note": sink.note,
                }
                for name, sink in self.sinks.items()
            ],
            "differences": list(self.differences),
            "problems": list(self.problems),
        }


@dataclass(frozen=True, slots=True)
class Taken:
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


def plan_restore(
    spark: SparkSession, files: Files, job: JobSpec, layout: Layout, start: Restore
) -> RestorePlan:
    """What ``start`` means for this job; changes nothing.

    Args:
        spark: the session.
        files: for files that are no tables.
        job: the job.
        layout: of its own storage root.
        start: what :func:`absflow.protocol.recovery.decide` said.

    Raises:
        NotFoundError: there is no such checkpoint.
    """
    taken = find(spark, files, start.wish.root or layout.root, start.wish.checkpoint_id)
    fork = taken.origin.root != layout.root
    upgrades = job.graph.upgrades
    declared = recovery.Declared(
        renamed={n: u.renamed_from for n, u in upgrades.items() if u.renamed_from},
        defaults={n: u.defaults.keys() for n, u in upgrades.items()},
        migrated=[n for n, u in upgrades.items() if u.migrate is not None],
        allow_dropped=job.settings.restore_allow_dropped_state,
    )
    matched = recovery.fit(taken.manifest, taken.described, describe(job.graph), declared)
    sinks = {name: _plan_sink(spark, job, name, taken, fork) for name in job.sinks}
    problems = [*matched.problems, *(p for sink in sinks.values() for p in sink.problems)]
    problems += [] if fork else _shared(sinks)
    source_logs = {
        source: Layout(taken.origin.root).source_log(stage.report.stage, source, taken.attempt)
        for stage in taken.manifest.stages
        for source in stage.report.positions
    }
    for source, position in matched.positions.items():
        copies = source_logs[source]
        since = copies_since(files, Layout(taken.origin.root), source, taken.attempt)
        gone = unreadable(spark, files, job.frames[source], position, copies, since)
        problems += [
            f"source {source!r} cannot go on at {position}: {what}; choose a newer checkpoint, or "
            "bring back what is gone"
            for what in gone
        ]
    return RestorePlan(
        origin=taken.origin,
        attempt=start.attempt,
        fork=fork,
        stages=matched.stages,
        positions=matched.positions,
        source_logs=source_logs,
        sinks=sinks,
        tables={name: described["table"] for name, described in taken.described.items()},
        keys={n: [k for k, _ in described["key"]] for n, described in taken.described.items()},
        taken_in=taken.attempt,
        cut=taken.cut,
        published=taken.published,
        differences=matched.differences,
        problems=tuple(problems),
    )


def find(spark: SparkSession, files: Files, root: str, checkpoint_id: int | None) -> Taken:
    """The checkpoint ``checkpoint_id`` under a storage root (None: the latest of its line).

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
    written = written_of(r.asDict() for r in completed.values())
    rows = tables.rows_of(spark, layout.attempts)
    if checkpoint_id is None:
        of = {n: r.attempt for n, r in completed.items()}
        newest = latest(root, recovery.attempts_of(rows), of, written, deleted)
        if newest is not None and newest.root != root:
            return find(spark, files, newest.root, newest.checkpoint_id)
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
    return Taken(
        Origin(root, checkpoint_id),
        manifest,
        fact.attempt,
        cut_of(checkpoint_id, written),
        details[AttemptFact.WRITTEN if checkpoint_id in written else AttemptFact.STARTED],
        details[AttemptFact.READY]["sinks"],
        details[AttemptFact.READY]["published"],
    )


def _plan_sink(
    spark: SparkSession, job: JobSpec, name: str, taken: Taken, fork: bool
) -> SinkRestore:
    sink, there = job.sinks[name], taken.sinks
    place, version = sink.position(spark)
    # By their places: a sink that has another name now writes the table that it wrote then.
    begun = {path: began_at for path, began_at in there.values() if path}
    if fork:
        shared = place in begun
        problem = (
            f"sink {name!r} is {place!r}, which the job under {taken.origin.root!r} writes; give "
            "the fork a sink of its own"
        )
        return SinkRestore(place, version, new=True, problems=(problem,) if shared else ())
    if place not in begun if place else name not in there:
        return SinkRestore(
            place, version, new=True, note="new: it gets the rows after the checkpoint only"
        )
    cut = SinkCut(job.graph.job, taken.attempt, taken.cut, begun.get(place))
    return sink.plan_restore(spark, cut)


def _shared(sinks: Mapping[str, SinkRestore]) -> list[str]:
    """What forbids to put back a table that several stages write: they do so in no common order."""
    problems = []
    for place in dict.fromkeys(sink.place for sink in sinks.values() if sink.place):
        names = [name for name, sink in sinks.items() if sink.place == place]
        if len(names) > 1:
            problems.append(
                f"sinks {', '.join(map(repr, names))} all write {place!r}, and no version of it "
                "lies at the checkpoint for each of them; give every sink a table of its own"
            )
    return problems


def carry_out(
    spark: SparkSession,
    files: Files,
    job: JobSpec,
    layout: Layout,
    planned: RestorePlan,
    ranges: Mapping[str, Sequence[int]],
) -> None:
    """Give the stages their state and positions, then put the sinks back.

    Raises:
        RestoreError: a stage has not the keys that the checkpoint counted.
        StorageError: something could not be read or written.
    """
    files.make_directory(layout.nothing(planned.attempt))
    fits = {fit.stage: fit for fit in planned.stages}
    for chain in job.graph.chains:
        _seed(spark, files, job, layout, planned, ranges, [fits[name] for name in chain])
    for name, sink in job.sinks.items():
        note: dict[str, Any] = {
            "job": job.graph.job,
            "attempt": planned.attempt,
            "restored_from": str(planned.origin),
        }
        back = planned.sinks[name]
        if back.published is not None:
            note["published"] = back.published
        sink.restore(spark, back, note)


def _seed(
    spark: SparkSession,
    files: Files,
    job: JobSpec,
    layout: Layout,
    planned: RestorePlan,
    ranges: Mapping[str, Sequence[int]],
    fits: Sequence[StageFit],
) -> None:
    """Run batch 0 of a chain's query on the restored state, then set its positions."""
    chain = [fit.stage for fit in fits]
    for fit in fits:
        _LOG.info("restoring stage %s: %d keys of %s", fit.stage, fit.keys, planned.origin)
        upgrade = job.graph.upgrades[fit.stage]
        pages = state_pages(spark, job.graph.stages[fit.stage], upgrade, planned, fit)
        pages.write.mode("overwrite").parquet(layout.restored(fit.stage, planned.attempt))
    specs = [job.graph.stages[name] for name in chain]
    restored = _Restored(specs, planned.origin.checkpoint_id)
    query = start_query(
        restored_pages(spark, job, chain, layout, planned.attempt, ranges)
        .writeStream.foreachBatch(restored)
        .queryName(f"{query_name(job.graph.job, chain)}/restore")
        .outputMode("append")
        .trigger(availableNow=True)
        .option("checkpointLocation", layout.spark_checkpoint(chain[0], planned.attempt)),
        spark,
        chain,
    )
    query.awaitTermination()
    for fit in fits:
        keys = restored.keys.get(fit.stage, 0)
        if fit.source is not None and not fit.migrate and keys != fit.keys:
            raise RestoreError(
                f"stage {fit.stage!r} has {keys} keys after the restore, but checkpoint "
                f"{planned.origin} counted {fit.keys}: files of its state history are gone or were "
                "changed; restore another checkpoint"
            )
        for name, state in fit.in_flight:
            spec = job.graph.stages[fit.stage]
            bring_in_flight(spark, layout, planned, spec, name, state)
    _set_positions(spark, files, layout, planned, specs[0])


def _set_positions(
    spark: SparkSession,
    files: Files,
    layout: Layout,
    planned: RestorePlan,
    spec: StageSpec,
) -> None:
    """Let the stage's query go on behind batch 0 where its sources stood at the checkpoint."""
    offsets = f"{layout.spark_checkpoint(spec.name, planned.attempt)}/offsets"
    text = files.read(f"{offsets}/0")
    if text is None:
        raise RestoreError(f"Spark has written no '{offsets}/0' in batch 0; nothing was started")
    lines = text.splitlines()
    interval = int(spark.conf.get(_COMPACT_INTERVAL) or 10)
    logs = SourceLogs(files, layout, spec, planned.attempt)
    seeded = [i.name for i in spec.inputs if i.root and i.name in planned.positions]
    for name in seeded:
        lines[2 + source_index(spec, name)] = planned.positions[name]
        logs.seed(name, planned.positions[name], planned.source_logs[name], interval)
    # Last: without its positions the query would read its sources from the start.
    files.write(f"{offsets}/0", "\n".join(lines))
    if begins_in_batch_2(spec):
        files.write(f"{offsets}/1", "\n".join(lines))


class _Restored:
    """The ``foreachBatch`` of a restore: one batch, which runs the operator and counts the keys."""

    def __init__(self, chain: Sequence[StageSpec], checkpoint_id: int) -> None:
        self._alignments = {spec.name: spec.start(checkpoint_id) for spec in chain}
        self.keys: dict[str, int] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if batch_id != 0:
            raise RestoreError(
                f"stage {', '.join(self._alignments)} came to batch {batch_id} while it was "
                "restored; its rows would be lost, so nothing is started"
            )
        tell_alignments(frame.sparkSession, self._alignments)
        reports = frame.where(F.col("kind") == PageKind.REPORT.value)
        self.keys = dict(reports.groupBy("input").agg(F.sum("rows")).collect())
