"""What a restore means for this job: looked up in the checkpoint, the sinks and the sources.

Changes nothing; what stands against the restore is among the plan's problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from absflow.columnar.timers import Domain
from absflow.facts.claim import root_id
from absflow.facts.deletions import due
from absflow.facts.find import FoundCheckpoint, find_checkpoint
from absflow.facts.published import published_by
from absflow.graph.description import describe
from absflow.graph.nodes import SourceNode, Upgrade
from absflow.protocol.checkpoints import StageReport
from absflow.protocol.recovery import matching
from absflow.protocol.recovery.attempts import Restore
from absflow.sinks import DeltaSink, SinkCut, SinkRestore
from absflow.spark.model import JobSpec
from absflow.spark.sources.positions import copies_since, unreadable
from absflow.spark.start.restore_files import missing_files
from absflow.spark.start.restore_plan import RestorePlan
from absflow.spark.start.sink_columns import SinkOutput, fit_output
from absflow.spark.start.sink_lanes import plan_lanes
from absflow.storage.files import Files
from absflow.storage.layout import Layout
from absflow.storage.root import StorageRoot
from absflow.transactional import TransactionalSink

__all__ = ["held_once_restored", "plan_restore"]


def plan_restore(root: StorageRoot, job: JobSpec, start: Restore) -> RestorePlan:
    """What ``start`` means for this job; changes nothing.

    Args:
        root: the job's own storage root.
        job: the job.
        start: what :func:`absflow.protocol.recovery.attempts.decide` said.

    Raises:
        NotFoundError: there is no such checkpoint.
    """
    spark, target = root.spark, start.target
    found = find_checkpoint(
        spark, root.files, target.root or root.layout.root, target.checkpoint_id
    )
    fork = found.origin.root != root.layout.root
    upgrades = job.graph.upgrades
    nodes: dict[str, Upgrade | SourceNode] = {**upgrades, **job.graph.sources}
    declared = matching.Declared(
        renamed={n: node.renamed_from for n, node in nodes.items() if node.renamed_from},
        defaults={n: u.defaults.keys() for n, u in upgrades.items()},
        migrated=[n for n, u in upgrades.items() if u.migrate is not None],
        allow_dropped=job.settings.restore_allow_dropped_state,
    )
    matched = matching.fit(found.manifest, found.described, describe(job.graph), declared)
    sinks, differences = _plan_sinks(root, job, found, fork)
    problems = _due_to_go(spark, root.files, found)
    problems += [*matched.problems, *(p for sink in sinks.values() for p in sink.problems)]
    problems += [] if fork else _written_by_several(sinks)
    reports = [stage.report for stage in found.manifest.stages]
    read_by = {source: report.stage for report in reports for source in report.positions}
    source_logs = {
        source: Layout(found.origin.root).source_log(read_by[old], old, found.attempt)
        for source, old in matched.sources.items()
    }
    plan = RestorePlan(
        origin=found.origin,
        attempt=start.attempt,
        fork=fork,
        stages=matched.stages,
        positions=matched.positions,
        source_logs=source_logs,
        sinks=sinks,
        tables={name: described["table"] for name, described in found.described.items()},
        keys={n: [k for k, _ in described["key"]] for n, described in found.described.items()},
        taken_in=found.attempt,
        cut=found.cut,
        published=found.published,
        triggered_ms=found.manifest.triggered_ms,
        moved=_moves(job),
        differences=(*matched.differences, *differences, *_read_again(reports)),
    )
    problems += _unreadable_sources(root, job, plan, matched.sources)
    problems += missing_files(root, found, matched.stages, _owed(root, job, plan))
    return replace(plan, problems=tuple(problems))


def _read_again(reports: Sequence[StageReport]) -> list[str]:
    """What comes twice of a checkpoint that was taken at least once, in words."""
    return [
        f"stage {report.stage!r} has read {report.early_rows} rows from behind the checkpoint "
        "already, and reads them again: it was taken with checkpoint.mode=at-least-once"
        for report in reports
        if report.early_rows
    ]


def _moves(job: JobSpec) -> bool:
    """Whether the restore moves what waits for processing time."""
    stages = job.graph.stages.values()
    waits = any(s.on_timer is not None or s.expires_in(Domain.PROCESSING) for s in stages)
    return waits and job.settings.restore_clocks == "shift"


def _unreadable_sources(
    root: StorageRoot, job: JobSpec, plan: RestorePlan, then: Mapping[str, str]
) -> list[str]:
    """What sources need that is gone, in words; ``then`` has their names in the checkpoint."""
    problems = []
    for source, position in plan.positions.items():
        copies = plan.source_logs[source]
        since = copies_since(
            root.files, Layout(plan.origin.root), {source, then[source]}, plan.taken_in
        )
        gone = unreadable(root.spark, root.files, job.frames[source], position, copies, since)
        problems += [
            f"source {source!r} cannot go on at {position}: {what}; choose a newer checkpoint, or "
            "bring back what is gone"
            for what in gone
        ]
    return problems


def held_once_restored(root: StorageRoot, job: JobSpec, plan: RestorePlan) -> dict[str, int]:
    """The newest checkpoint that each on-checkpoint sink holds once the plan is carried out."""
    return {
        name: plan.held(name, published_by(root.files, root.layout, plan.taken_in, name))
        for name in job.graph.published
    }


def _owed(root: StorageRoot, job: JobSpec, plan: RestorePlan) -> dict[str, tuple[str, int]]:
    """The sinks that have yet to publish rows before the cut: their stages, and what they hold."""
    held = held_once_restored(root, job, plan)
    return {n: (job.graph.published[n], m) for n, m in held.items() if m < plan.cut}


def _due_to_go(spark: SparkSession, files: Files, found: FoundCheckpoint) -> list[str]:
    """What forbids to restore a checkpoint that the next driver deletes."""
    n = found.origin.checkpoint_id
    if n not in due(spark, files, found.origin.root):
        return []
    return [
        f"somebody asked for checkpoint {n} to be deleted, and the next driver does that; choose "
        "another one, or start without spark.absflow.restore.from"
    ]


def _plan_sinks(
    root: StorageRoot, job: JobSpec, found: FoundCheckpoint, fork: bool
) -> tuple[dict[str, SinkRestore], list[str]]:
    """What happens to each sink, and what of it is a difference, in words."""
    sinks: dict[str, SinkRestore] = {}
    differences: list[str] = []
    # Once for all, for it is looked up by a Spark job; a fork's root may not have one yet.
    job_id = root_id(root) if job.sinks and not fork else ""
    for name, sink in job.sinks.items():
        sinks[name] = _plan_sink(root, job, name, found, fork, job_id)
        if isinstance(sink, DeltaSink):
            stage = job.graph.sinks[name].stage
            columns = job.graph.stages[stage].output
            output = SinkOutput(name, job.graph.job, stage, columns, fork)
            sinks[name], changed = fit_output(root.spark, output, sinks[name])
            differences += changed
    return sinks, differences


def _plan_sink(
    root: StorageRoot, job: JobSpec, name: str, found: FoundCheckpoint, fork: bool, job_id: str
) -> SinkRestore:
    spark, sink, there = root.spark, job.sinks[name], found.sinks
    if name in job.graph.of_state and isinstance(sink, TransactionalSink):
        note = f"{sink.describe()} stays as it is until the next checkpoint, then has its state"
        return SinkRestore("", note=note)
    place, version = sink.position(spark)
    # By their places: a sink that has another name now writes the table that it wrote then.
    begun = {path: began_at for path, began_at in there.values() if path}
    if fork:
        shared = place in begun
        problem = (
            f"sink {name!r} is {place!r}, which the job under {found.origin.root!r} writes; give "
            "the fork a sink of its own"
        )
        if shared:
            return SinkRestore(place, version, new=True, problems=(problem,))
        begins = "begins empty and " if place and version is None else ""
        note = f"of a fork: it {begins}gets the rows after the checkpoint only"
        return SinkRestore(place, version, new=True, note=note)
    if place not in begun if place else name not in there:
        return SinkRestore(
            place, version, new=True, note="new: it gets the rows after the checkpoint only"
        )
    if isinstance(sink, TransactionalSink):
        return plan_lanes(sink, job_id, name, found.behind)
    cut = SinkCut(
        job.graph.job,
        found.attempt,
        found.cut,
        begun.get(place),
        job_id,
        name,
        found.behind,
        found.left,
    )
    return sink.plan_restore(spark, cut)


def _written_by_several(sinks: Mapping[str, SinkRestore]) -> list[str]:
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
