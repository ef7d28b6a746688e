"""The stream of one query: sources, channels and control tables to pages of its last stage.

A query runs a chain of stages, nearly always of one: the first reads what there is to read, each
other the pages of the one before. The order of its sources is fixed (the first stage's
inputs as declared, then ``barriers`` if it has a root input, then ``overtakes``; then, of each
stage, the restored pages if the attempt was restored), because Spark's offset log knows a source
by its place only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

from absflow.columnar.piece_files import StateFiles
from absflow.columnar.spec import StageSpec
from absflow.settings.reading import Settings
from absflow.spark.model import ControlStart, JobSpec, restored_index
from absflow.spark.stream.pages import (
    PAGE_TYPE,
    barrier_pages,
    data_pages,
    overtake_pages,
    pages_in,
)
from absflow.spark.worker.packing import packer_for
from absflow.spark.worker.stage_call import stage_function
from absflow.storage.delta.data_files import PlainTable
from absflow.storage.root import StorageRoot
from absflow.storage.state_files import MountedStateFiles
from absflow.storage.stored_state import StoredStateFiles
from absflow.storage.stores.mounted import local

__all__ = ["by_range", "chain_pages", "restored_pages", "state_files"]

_RANGE = "key_group_range"
_STATE_DDL = "key_groups binary"


def chain_pages(
    root: StorageRoot,
    job: JobSpec,
    chain: Sequence[str],
    attempt: int,
    control: ControlStart,
    ranges: Mapping[str, Sequence[int]],
    restored: Mapping[str, str],
    histories: Mapping[str, PlainTable],
) -> DataFrame:
    """The stream of pages that the last stage of a chain emits; runs in a streaming query only.

    Args:
        root: the storage root.
        job: the job.
        chain: its stages, upstream first.
        attempt: the job's attempt.
        control: where the attempt begins in the control tables.
        ranges: of each stage, the keys by which Spark knows its key-group ranges.
        restored: of each stage, the directory of its restored pages; empty if the attempt began
            with nothing.
        histories: the state histories whose files the workers may write, by stage.
    """
    first = job.graph.stages[chain[0]]
    parts = _first_parts(root, job, first, attempt, control, len(ranges[first.name]))
    return _chained(root, job, chain, attempt, parts, ranges, restored, histories)


def _first_parts(
    root: StorageRoot,
    job: JobSpec,
    spec: StageSpec,
    attempt: int,
    control: ControlStart,
    ranges: int,
) -> list[DataFrame]:
    """What the first stage of a chain reads, as pages."""
    spark, layout, parts = root.spark, root.layout, []
    for given in spec.inputs:
        if given.root:
            rows = job.frames[given.name]
        else:
            bytes_per_trigger = job.settings.channel_max_bytes_per_trigger
            rows = _channel(spark, layout.channel(given.name, attempt), bytes_per_trigger)
        parts.append(data_pages(rows, spec, given.name, job.settings.page_max_bytes, ranges))
    roots = [given.name for given in spec.inputs if given.root]
    if roots:
        table = _control_table(spark, layout.barriers, control.barriers)
        parts.append(barrier_pages(table, spec, roots, attempt))
    table = _control_table(spark, layout.overtakes, control.overtakes)
    parts.append(overtake_pages(table, spec, attempt))
    return parts


def _chained(
    root: StorageRoot,
    job: JobSpec,
    chain: Sequence[str],
    attempt: int,
    parts: list[DataFrame],
    ranges: Mapping[str, Sequence[int]],
    restored: Mapping[str, str],
    histories: Mapping[str, PlainTable],
) -> DataFrame:
    """The stages of a chain one behind the other, the first on ``parts``."""
    stages = [job.graph.stages[name] for name in chain]
    for spec, behind in zip(stages, [*stages[1:], None], strict=True):
        if spec.name in restored:
            parts.append(pages_in(root.spark, restored[spec.name]))
        files = state_files(root, job.settings, spec.name, attempt)
        pages = reduce(DataFrame.union, parts)
        grouped = by_range(pages, spec.key_groups, ranges[spec.name])
        page_bytes = job.settings.page_max_bytes
        edge = None
        if behind is not None:
            edge = packer_for(behind, behind.inputs[0], page_bytes, len(ranges[behind.name]))
        run = stage_function(spec, files, edge, page_bytes, histories.get(spec.name))
        parts = [
            grouped.applyInPandasWithState(
                run, PAGE_TYPE, _STATE_DDL, "append", GroupStateTimeout.NoTimeout
            )
        ]
    (pages,) = parts
    return pages


def by_range(pages: DataFrame, key_groups: int, ranges: Sequence[int]) -> GroupedData:
    """The pages of so many key groups, by their range; ``ranges`` has the key of each."""
    place = f"key_group * {len(ranges)} div {key_groups}"
    key_group_range = F.array(*map(F.lit, ranges))[F.expr(f"int({place})")]
    return pages.withColumn(_RANGE, key_group_range).groupBy(_RANGE)


def restored_pages(
    root: StorageRoot,
    job: JobSpec,
    chain: Sequence[str],
    attempt: int,
    ranges: Mapping[str, Sequence[int]],
) -> DataFrame:
    """The chain's stream for the batch that restores its state: nothing in any other source."""
    others = range(restored_index(job.graph.stages[chain[0]]))
    parts = [pages_in(root.spark, root.layout.nothing(attempt)) for _ in others]
    restored = {name: root.layout.restored(name, attempt) for name in chain}
    return _chained(root, job, chain, attempt, parts, ranges, restored, histories={})


def state_files(root: StorageRoot, settings: Settings, stage: str, attempt: int) -> StateFiles:
    """Where a worker finds the files of the stage's state."""
    path = root.layout.state_files(stage, attempt)
    most = settings.state_max_inline_bytes
    if root.files.is_local(path):
        return MountedStateFiles(local(path), most)
    return StoredStateFiles(*root.files.for_workers(path), most)


def _channel(spark: SparkSession, path: str, max_bytes: int) -> DataFrame:
    # From version 0, never from a snapshot: its files come in no useful order.
    return (
        spark.readStream.format("delta")
        .option("startingVersion", "0")
        .option("skipChangeCommits", "true")
        .option("maxBytesPerTrigger", str(max_bytes))
        .load(path)
    )


def _control_table(spark: SparkSession, path: str, version: int) -> DataFrame:
    return spark.readStream.format("delta").option("startingVersion", str(version)).load(path)
