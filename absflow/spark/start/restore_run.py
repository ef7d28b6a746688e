"""TODO."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from absflow.columnar.pages import PageKind
from absflow.columnar.stage import StageSpec
from absflow.errors import RestoreError
from absflow.protocol.recovery.matching import StageFit
from absflow.spark.batch.query import set_alignments, start_query
from absflow.spark.model import JobSpec, query_name, source_index
from absflow.spark.sources.delta import begins_in_batch_2
from absflow.spark.sources.positions import SourceLogs
from absflow.spark.start.restore_input import bring_in_flight, state_pages
from absflow.spark.start.restore_plan import RestorePlan
from absflow.spark.stream.chain import restored_pages
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["carry_out"]

_LOG = logging.getLogger(__name__)


_COMPACT_INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"


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
    restored = _RestoreBatch(specs, planned.origin.checkpoint_id)
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
