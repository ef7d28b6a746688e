"""A checkpoint becomes the beginning of a new attempt: the steps of a restore.

The state goes from the state histories through pages in files into batch 0 of each query. That
batch reads nothing else, for empty directories stand in the place of the inputs. Then the line of
each root input in ``offsets/0`` is replaced by its position in the checkpoint, so batch 1, with the
real inputs, begins behind the cut. The pages of the state are deleted as soon as they are in. Spark
compares the number of a query's sources with its offset log, not what they are; so their source
stays for as long as the attempt lives, and reads another directory: an empty one, or that of the
rows that the checkpoint has overtaken, as DATA pages. The first real batch finds these there,
before all rows of its inputs, for their epochs are lower
(:mod:`absflow.spark.batch.restored_rows`).

Nothing of the checkpoint, of its attempt or of another storage root is changed, but for the sinks
of the job itself. A kill or an error leaves a half-made attempt, which never runs. As long as no
sink was put back, the attempt before can still go on.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from absflow.columnar import aside
from absflow.columnar.pages import PageKind
from absflow.columnar.spec import StageSpec
from absflow.errors import RestoreError
from absflow.facts.explained import explained
from absflow.protocol.recovery.matching import StageFit
from absflow.spark.batch.query import set_alignments, start_query
from absflow.spark.model import JobSpec, query_name, restored_index, source_index
from absflow.spark.sources import file_log
from absflow.spark.sources.delta import begins_in_batch_2
from absflow.spark.sources.file_log import FileEntry
from absflow.spark.sources.positions import SourceLogs
from absflow.spark.start.restore_input import bring_in_flight, check_state, state_pages
from absflow.spark.start.restore_plan import RestorePlan
from absflow.spark.stream.chain import restored_pages, state_files
from absflow.spark.stream.pages import write_pages
from absflow.storage import clock
from absflow.storage.layout import Layout
from absflow.storage.root import StorageRoot
from absflow.telemetry.happenings import Steps

__all__ = ["bring_state", "put_sinks_back"]

_LOG = logging.getLogger(__name__)
_COMPACT_INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"


def bring_state(
    root: StorageRoot,
    job: JobSpec,
    plan: RestorePlan,
    ranges: Mapping[str, Sequence[int]],
    steps: Steps,
) -> None:
    """Give the stages their state and positions.

    Args:
        root: the job's storage root.
        job: the job.
        plan: what to do.
        ranges: of each stage, the keys by which Spark knows its key-group ranges.
        steps: measures what it does.

    Raises:
        RestoreError: a stage has not the keys that the checkpoint counted.
        DamagedError: a file of the checkpoint is gone, or is not what was written.
        StorageError: something could not be read or written.
    """
    for difference in plan.differences:
        _LOG.info("restoring %s: %s", plan.origin, difference)
    root.files.make_directory(root.layout.nothing(plan.attempt))
    fits = {fit.stage: fit for fit in plan.stages}
    with explained(root.spark, Layout(plan.origin.root)):
        for chain in job.graph.chains:
            _seed(root, job, plan, ranges, [fits[name] for name in chain], steps)


def put_sinks_back(root: StorageRoot, job: JobSpec, plan: RestorePlan) -> None:
    """Put every sink back as planned; again after a kill.

    Raises:
        StorageError: a table cannot be put back.
    """
    for name, sink in job.sinks.items():
        note: dict[str, Any] = {
            "job": job.graph.job,
            "attempt": plan.attempt,
            "restored_from": str(plan.origin),
        }
        back = plan.sinks[name]
        if back.published is not None:
            note["published"] = back.published
        sink.restore(root.spark, back, note)


def _seed(
    root: StorageRoot,
    job: JobSpec,
    plan: RestorePlan,
    ranges: Mapping[str, Sequence[int]],
    fits: Sequence[StageFit],
    steps: Steps,
) -> None:
    """Run batch 0 of a chain's query on the restored state, then set its positions."""
    spark, layout = root.spark, root.layout
    chain, page_bytes = [fit.stage for fit in fits], job.settings.page_max_bytes
    moved_ms = 0
    if plan.moved:
        moved_ms = max(0, clock.now_ms() - plan.triggered_ms)
    for fit in fits:
        _LOG.info("restoring stage %s: %d keys of %s", fit.stage, fit.keys, plan.origin)
        upgrade = job.graph.upgrades[fit.stage]
        spec = job.graph.stages[fit.stage]
        files = state_files(root, job.settings, fit.stage, plan.attempt)
        with steps.of("read", fit.stage):
            pages = state_pages(root, spec, upgrade, plan, fit, page_bytes, files, moved_ms)
            write_pages(pages, layout.restored(fit.stage, plan.attempt), "overwrite", page_bytes)
            check_state(root, plan, fit)
    specs = [job.graph.stages[name] for name in chain]
    restored = _RestoreBatch(specs, plan.origin.checkpoint_id)
    with steps.of("load", *chain):
        query = start_query(
            restored_pages(root, job, chain, plan.attempt, ranges)
            .writeStream.foreachBatch(restored)
            .queryName(f"{query_name(job.graph.job, chain)}/restore")
            .outputMode("append")
            .trigger(availableNow=True)
            .option("checkpointLocation", layout.spark_checkpoint(chain[0], plan.attempt)),
            spark,
            specs,
        )
        query.awaitTermination()
    for fit in fits:
        keys = restored.keys.get(fit.stage, 0)
        # Of keys that the stage still kept some may have expired: those are not restored.
        fewer = fit.expired_upto is not None and keys < fit.keys
        if fit.source is not None and not fit.migrate and keys != fit.keys and not fewer:
            raise RestoreError(
                f"stage {fit.stage!r} has {keys} keys after the restore, but checkpoint "
                f"{plan.origin} counted {fit.keys}: files of its state history are gone or were "
                "changed; restore another checkpoint"
            )
        for name, state in fit.in_flight:
            spec = job.graph.stages[fit.stage]
            with steps.of("in_flight", fit.stage):
                bring_in_flight(root, plan, spec, name, state, page_bytes)
    with steps.of("positions", *chain):
        _forget_pages(root, plan.attempt, specs, {fit.stage for fit in fits if fit.in_flight})
        _set_positions(root, plan, specs[0])


def _forget_pages(
    root: StorageRoot, attempt: int, specs: Sequence[StageSpec], in_flight: Collection[str]
) -> None:
    """Delete the pages of the state, and let their sources go on with what they read from now on.

    When it starts, Spark asks a source once more for the files of the batch done last. It refuses
    files from outside of the source's directory, so its list names that directory instead.
    """
    files, layout = root.files, root.layout
    sources = f"{layout.spark_checkpoint(specs[0].name, attempt)}/sources"
    for place, spec in enumerate(specs, restored_index(specs[0])):
        path = layout.restored(spec.name, attempt)
        below = f"{path.removeprefix(layout.root)}/"
        log = f"{sources}/{place}"
        names = files.names(log)  # of batch 0: one file, perhaps compacted already
        read = [e for name in names for e in file_log.parse(files.read(f"{log}/{name}") or "")]
        if not read or not all(below in unquote(entry.path) for entry in read):
            raise RestoreError(f"{log!r} does not name the files in {path!r}: {read}")
        follows = layout.in_flight(spec.name, attempt)
        follows = follows if spec.name in in_flight else layout.nothing(attempt)
        text = file_log.text([FileEntry(quote(follows, safe="/:="), 0, 0)])
        for name in names:
            files.write(f"{log}/{name}", text)
        files.delete_folder(path)
        files.delete_folder(f"{layout.state_files(spec.name, attempt)}/{aside.FOLDER}")


def _set_positions(root: StorageRoot, plan: RestorePlan, spec: StageSpec) -> None:
    """Let the stage's query go on behind batch 0 where its sources stood at the checkpoint."""
    spark, files, layout = root.spark, root.files, root.layout
    offsets = f"{layout.spark_checkpoint(spec.name, plan.attempt)}/offsets"
    text = files.read(f"{offsets}/0")
    if text is None:
        raise RestoreError(f"Spark has written no '{offsets}/0' in batch 0; nothing was started")
    lines = text.splitlines()
    interval = int(spark.conf.get(_COMPACT_INTERVAL) or 10)
    logs = SourceLogs(files, layout, spec, plan.attempt)
    seeded = [i.name for i in spec.inputs if i.root and i.name in plan.positions]
    for name in seeded:
        lines[2 + source_index(spec, name)] = plan.positions[name]
        logs.seed(name, plan.positions[name], plan.source_logs[name], interval)
    # Last: without its positions the query would read its sources from the start.
    files.write(f"{offsets}/0", "\n".join(lines))
    if begins_in_batch_2(spec):
        files.write(f"{offsets}/1", "\n".join(lines))


class _RestoreBatch:
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
        set_alignments(frame.sparkSession, self._alignments)
        reports = frame.where(F.col("kind") == PageKind.REPORT.value)
        self.keys = dict(reports.groupBy("input").agg(F.sum("rows")).collect())
