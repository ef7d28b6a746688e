"""The streaming plan of one query: sources, channels and control tables to pages of its last stage.

A query runs a chain of stages, nearly always of one: the first reads what there is to read, each
other the pages of the one before. The order of the plan's sources is fixed (the first stage's
inputs as declared, then ``barriers`` if it has a root input, then ``overtakes``; then, of each
stage, the restored state if the attempt began with any), because Spark's offset log knows a source
by its place only.
"""

from __future__ import annotations

import gc
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from absflow.columnar.pages import PAGE_SCHEMA, Packer, Page, PageKind
from absflow.columnar.stage import Batch, InputSpec, StageSpec, run_range
from absflow.errors import ProtocolViolation
from absflow.graph import Graph
from absflow.protocol import alignment
from absflow.protocol.alignment import Alignment
from absflow.settings import Settings
from absflow.sinks import Sink
from absflow.storage.files import Files
from absflow.storage.layout import Layout
from absflow.storage.session import conf_set
from absflow.storage.state_files import MountedStateFiles

__all__ = [
    "PAGE_TYPE",
    "ControlStart",
    "JobSpec",
    "begins_in_batch_2",
    "by_range",
    "chain_pages",
    "choose_ranges",
    "data_pages",
    "query_name",
    "restored_pages",
    "settle",
    "source_index",
    "start_query",
    "tell_alignments",
]

_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
_STARTING = threading.Lock()
_RANGE = "key_group_range"
_BATCH_PROPERTY = "streaming.sql.batchId"

PAGE_TYPE = from_arrow_schema(PAGE_SCHEMA)
_STATE_DDL = "key_groups binary"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job that has been checked and can be started.

    Attributes:
        graph: its graph.
        settings: its settings.
        frames: the frame of each source.
        sinks: by name.
    """

    graph: Graph
    settings: Settings
    frames: Mapping[str, DataFrame]
    sinks: Mapping[str, Sink]

    def prepare_sinks(self, spark: SparkSession) -> None:
        """See that each sink can be used; :meth:`absflow.Sink.prepare`.

        Raises:
            GraphError: a sink's table is another one.
        """
        for name, node in self.graph.sinks.items():
            self.sinks[name].prepare(spark, self.graph.stages[node.stage].output)

    def immediate_sinks(self, stage: str) -> dict[str, Sink]:
        """The sinks that a stage's batches write, by name."""
        return {
            node.name: self.sinks[node.name]
            for node in self.graph.sinks.values()
            if node.stage == stage and not node.on_checkpoint
        }


@dataclass(frozen=True, slots=True)
class ControlStart:
    """From which versions on an attempt reads the control tables; older rows are of others.

    Attributes:
        barriers: version of ``barriers``.
        overtakes: version of ``overtakes``.
    """

    barriers: int
    overtakes: int


def source_index(spec: StageSpec, name: str) -> int:
    """The place of an input of a chain's first stage among the plan's sources."""
    return spec.order(name)


def tell_alignments(spark: SparkSession, before: Mapping[str, Alignment]) -> None:
    """Let the tasks of a batch know the alignment of each stage before it.

    Called on the thread that runs the batch: Spark hands the properties of a thread to every task
    of every job of it.
    """
    for stage, value in before.items():
        spark.sparkContext.setLocalProperty(_alignment_property(stage), alignment.to_json(value))


def _alignment_property(stage: str) -> str:
    return f"absflow.alignment.{stage}"


def chain_pages(
    spark: SparkSession,
    job: JobSpec,
    chain: Sequence[str],
    layout: Layout,
    attempt: int,
    control: ControlStart,
    ranges: Mapping[str, Sequence[int]],
    *,
    restored: bool,
) -> DataFrame:
    """The stream of pages that the last stage of a chain emits; runs in a streaming query only.

    Args:
        spark: the session.
        job: the job.
        chain: its stages, upstream first.
        layout: where things lie.
        attempt: the job's attempt.
        control: where the attempt begins in the control tables.
        ranges: of each stage, the keys by which Spark knows its key-group ranges
            (:func:`choose_ranges`).
        restored: the attempt began with a checkpoint.
    """
    parts = _first_parts(spark, job, job.graph.stages[chain[0]], layout, attempt, control)
    return _chained(spark, job, chain, layout, attempt, parts, ranges, restored=restored)


def _first_parts(
    spark: SparkSession,
    job: JobSpec,
    spec: StageSpec,
    layout: Layout,
    attempt: int,
    control: ControlStart,
) -> list[DataFrame]:
    """What the first stage of a chain reads, as pages."""
    parts = []
    for given in spec.inputs:
        if given.root:
            rows = job.frames[given.name]
        else:
            bytes_per_trigger = job.settings.channel_max_bytes_per_trigger
            rows = _channel(spark, layout.channel(given.name, attempt), bytes_per_trigger)
        parts.append(data_pages(rows, spec, given.name))
    roots = [given.name for given in spec.inputs if given.root]
    if roots:
        table = _control_table(spark, layout.barriers, control.barriers)
        parts.append(_barriers(table, spec, roots, attempt))
    table = _control_table(spark, layout.overtakes, control.overtakes)
    parts.append(_overtakes(table, spec, attempt))
    return parts


def _chained(
    spark: SparkSession,
    job: JobSpec,
    chain: Sequence[str],
    layout: Layout,
    attempt: int,
    parts: list[DataFrame],
    ranges: Mapping[str, Sequence[int]],
    *,
    restored: bool,
) -> DataFrame:
    """The stages of a chain one behind the other, the first on ``parts``."""
    stages = [job.graph.stages[name] for name in chain]
    for spec, behind in zip(stages, [*stages[1:], None], strict=True):
        if restored:
            parts.append(_pages_in(spark, layout.restored(spec.name, attempt)))
        files = _state_files(spark, job.settings, layout, spec.name, attempt)
        pages = reduce(DataFrame.union, parts)
        grouped = by_range(pages, spec.key_groups, ranges[spec.name])
        run = _run(spec, files, None if behind is None else _packer(behind, behind.inputs[0]))
        parts = [
            grouped.applyInPandasWithState(
                run, PAGE_TYPE, _STATE_DDL, "append", GroupStateTimeout.NoTimeout
            )
        ]
    (pages,) = parts
    return pages


def choose_ranges(spark: SparkSession, key_groups: int) -> list[int]:
    """Keys by which Spark is to know the ranges of key groups of a stage that begins.

    As in Flink (KeyGroupRange), key groups that follow each other are a range, and there is a range
    for each task: Spark's call for a group costs about as much as a small key group's work. Spark
    deals groups to partitions by a hash of their key; of 128 key groups in 64 partitions one would
    have 6. So these keys are chosen such that each partition gets one.

    Returns:
        A key for each range, in the order of the key groups. They belong to the attempt, as Spark
        keeps the number of shuffle partitions for as long: state is found by them.
    """
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
    wanted = min(key_groups, partitions)
    ranges: dict[int, int] = {}
    candidates = 8 * partitions
    while len(ranges) < wanted:
        candidates *= 2
        key = F.col("id").cast("int")
        partition = F.pmod(F.hash(key), F.lit(partitions))
        rows = spark.range(candidates).select(key, partition).collect()
        ranges = {row[1]: row[0] for row in reversed(rows)}
    return [ranges[partition] for partition in sorted(ranges)[:wanted]]


def by_range(pages: DataFrame, key_groups: int, ranges: Sequence[int]) -> GroupedData:
    """The pages of so many key groups, by their range; ``ranges`` is of :func:`choose_ranges`."""
    place = f"key_group * {len(ranges)} div {key_groups}"
    key_group_range = F.array(*map(F.lit, ranges))[F.expr(f"int({place})")]
    return pages.withColumn(_RANGE, key_group_range).groupBy(_RANGE)


def query_name(job: str, chain: Sequence[str]) -> str:
    """The name of a chain's query, as Spark's progress has it."""
    return f"{job}/{'+'.join(chain)}"


def start_query(
    writer: DataStreamWriter, spark: SparkSession, chain: Sequence[str]
) -> StreamingQuery:
    """Start the query of a chain.

    Spark refuses two such operators in one query, because it could not pass a watermark through
    both; there is none here. The setting belongs to the session, so it is changed for this one
    start only, and one start at a time.
    """
    if len(chain) == 1:
        return writer.start()
    with _STARTING, conf_set(spark, _CHECK, "false"):
        return writer.start()


def data_pages(rows: DataFrame, spec: StageSpec, name: str) -> DataFrame:
    """The rows of an input as DATA pages for the key groups of a stage."""
    return rows.mapInArrow(_pack(spec, spec.input(name)), PAGE_TYPE)


def begins_in_batch_2(spec: StageSpec) -> bool:
    """Whether a restored stage reads nothing in batch 1, as in batch 0, which restores its state.

    After a start Spark asks a source once more for the rows of the last batch that was done, which
    for batch 0 begins with the source. Delta then wants its log from there on, of which much may be
    gone. A batch 1 that had begun when the query started is not preceded by that.
    """
    return any(given.root and given.format == "delta" for given in spec.inputs)


def restored_pages(
    spark: SparkSession,
    job: JobSpec,
    chain: Sequence[str],
    layout: Layout,
    attempt: int,
    ranges: Mapping[str, Sequence[int]],
) -> DataFrame:
    """The chain's stream for the batch that restores its state: nothing in any other source."""
    first = job.graph.stages[chain[0]]
    others = len(first.inputs) + any(given.root for given in first.inputs) + 1
    parts = [_pages_in(spark, layout.nothing(attempt)) for _ in range(others)]
    return _chained(spark, job, chain, layout, attempt, parts, ranges, restored=True)


def _state_files(
    spark: SparkSession, settings: Settings, layout: Layout, stage: str, attempt: int
) -> MountedStateFiles | None:
    """Where a worker finds the files of the stage's state; None if it has no path to them."""
    local = Files(spark).mounted(layout.state_files(stage, attempt))
    return None if local is None else MountedStateFiles(local, settings.state_max_inline_bytes)


def _pages_in(spark: SparkSession, directory: str) -> DataFrame:
    return spark.readStream.schema(PAGE_TYPE).parquet(directory)


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


def _barriers(table: DataFrame, spec: StageSpec, roots: list[str], attempt: int) -> DataFrame:
    """A trigger becomes a page for each root input and key group, an END row for its own input."""
    table = table.where(F.col("attempt") == attempt)
    each = table.withColumn("root", F.explode(F.array(*(F.lit(name) for name in roots))))
    is_end = F.col("kind") == PageKind.END.value
    mine = (F.col("stage") == spec.name) & (F.col("input") == F.col("root"))
    return _control_pages(
        each.where(~is_end | mine),
        spec,
        kind=F.when(is_end, PageKind.END.value).otherwise(PageKind.BARRIER.value),
        input=F.col("root"),
        base_id=F.coalesce("base_id", F.lit(0)),
        completed_id=F.coalesce("completed_id", F.lit(0)),
        triggered_ms=F.unix_millis("triggered_at"),
    )


def _overtakes(table: DataFrame, spec: StageSpec, attempt: int) -> DataFrame:
    return _control_pages(
        table.where(F.col("attempt") == attempt),
        spec,
        kind=F.col("kind"),
        base_id=F.coalesce("base_id", F.lit(0)),
        completed_id=F.coalesce("completed_id", F.lit(0)),
        triggered_ms=F.coalesce(F.unix_millis("triggered_at"), F.lit(0)),
    )


def _control_pages(rows: DataFrame, spec: StageSpec, **columns: Any) -> DataFrame:
    """One page per row and key group; what ``columns`` does not give is empty."""
    groups = F.explode(F.sequence(F.lit(0), F.lit(spec.key_groups - 1)))
    values = {
        "key_group": F.col("key_group"),
        "input": F.lit(""),
        "checkpoint_id": F.coalesce("checkpoint_id", F.lit(0)),
        "payload": F.lit(b""),
        **columns,
    }
    return rows.withColumn("key_group", groups).select(
        *(
            values.get(field.name, F.lit(0)).cast(field.dataType).alias(field.name)
            for field in PAGE_TYPE.fields
        )
    )


def _pack(
    spec: StageSpec, given: InputSpec
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    packer = _packer(spec, given)

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        return packer.pack(batches, _task().partitionId())

    return pack


def _packer(spec: StageSpec, given: InputSpec) -> Packer:
    return Packer(
        input=given.name,
        schema=given.schema,
        keys=tuple(spec.keys.names),
        key_groups=spec.key_groups,
        root=given.root,
    )


def _run(
    spec: StageSpec, files: MountedStateFiles | None, edge: Packer | None
) -> Callable[[tuple[Any, ...], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    columns, property_ = PAGE_SCHEMA.names, _alignment_property(spec.name)

    def run(
        _range: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        settle()
        task = _task()
        before, number = task.getLocalProperty(property_), _batch_of(task)
        if before is None:
            raise ProtocolViolation(
                f"stage {spec.name!r} was run outside of its micro-batch; its frame belongs to "
                "absflow and must not be used elsewhere"
            )
        pages: dict[int, list[Page]] = defaultdict(list)
        for frame in frames:
            for row in zip(*(frame[name].tolist() for name in columns), strict=True):
                pages[row[0]].append(Page.from_row(row))
        batch = Batch(number, state.getCurrentProcessingTimeMs(), alignment.from_json(before))
        (stored,) = state.get if state.exists else (b"",)
        out, kept = run_range(spec, batch, pages, stored, files)
        if kept is not stored:
            state.update((kept,))
        if edge is not None:  # a partition has one range, so this is all of the partition
            out = edge.repack(out, number, task.partitionId())
        if out:
            yield pd.DataFrame([page.as_row() for page in out], columns=columns)

    return run


@cache
def settle() -> None:
    """Tell the garbage collector of a worker process to pass over what is loaded by now.

    A worker of Spark collects garbage behind each of its tasks, which takes 50 ms of a core with
    pandas and pyarrow loaded, as long as the task itself in a small micro-batch.
    """
    gc.freeze()


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None  # executors only
    return task


def _batch_of(task: TaskContext) -> int:
    number = task.getLocalProperty(_BATCH_PROPERTY)
    assert number is not None  # set by Spark for every job of a micro-batch
    return int(number)
