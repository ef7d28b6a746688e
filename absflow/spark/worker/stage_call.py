"""One call of a stage by Spark: the pages of a key-group range and its state, in a Python worker.

The alignment of the stage before the batch comes as a local property of the job, set by
:func:`absflow.spark.batch.query.set_alignments`; and so does whether it may write the files of a
snapshot itself.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import pandas as pd
from pyspark import TaskContext
from pyspark.sql.streaming.state import GroupState

from absflow.columnar.packing import Packer
from absflow.columnar.pages import PAGE_SCHEMA, Page, PageKind, in_parts
from absflow.columnar.piece_files import StateFiles
from absflow.columnar.spec import StageSpec
from absflow.columnar.stage import Batch, run_range
from absflow.errors import ProtocolViolation
from absflow.protocol import alignment_state, event_time
from absflow.spark.worker.processor import ProcessorFunction
from absflow.spark.worker.snapshot_files import SnapshotFiles
from absflow.storage.delta.data_files import PlainTable

__all__ = [
    "ARROW_ROWS",
    "alignment_property",
    "close_processors",
    "freeze_loaded_modules",
    "snapshot_property",
    "stage_function",
    "this_task",
    "time_property",
]

# ``spark.sql.execution.arrow.maxRecordsPerBatch`` of the queries of a job.
ARROW_ROWS = 10_000

_BATCH_PROPERTY = "streaming.sql.batchId"


def alignment_property(stage: str) -> str:
    """The local property that has the stage's alignment before the batch."""
    return f"absflow.alignment.{stage}"


def time_property(stage: str) -> str:
    """The local property that has the stage's event time before the batch, if it has any."""
    return f"absflow.event-time.{stage}"


def snapshot_property(stage: str) -> str:
    """The local property that is there if the stage's workers write the files of its snapshots."""
    return f"absflow.snapshot-files.{stage}"


def stage_function(
    spec: StageSpec,
    files: StateFiles,
    edge: Packer | None,
    page_bytes: int,
    history: PlainTable | None,
) -> Callable[[tuple[Any, ...], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """For ``applyInPandasWithState``: what a stage does with a range of its key groups.

    Args:
        spec: the stage.
        files: where large state lies.
        edge: packs what the stage emits for the stage behind a direct edge; None if there is none.
        page_bytes: a page has at most so many bytes.
        history: the state history; None if no worker may write its files.
    """
    property_, of_time = alignment_property(spec.name), time_property(spec.name)

    def run(
        key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        freeze_loaded_modules()
        task = this_task()
        before, number = task.getLocalProperty(property_), _batch_of(task)
        if before is None:
            raise ProtocolViolation(
                f"stage {spec.name!r} was run outside of its micro-batch; its frame belongs to "
                "absflow and must not be used elsewhere"
            )
        text = task.getLocalProperty(of_time) if spec.timed else None
        snapshots = _snapshots(task, spec, history)
        batch = Batch(
            number,
            state.getCurrentProcessingTimeMs(),
            alignment_state.from_json(before),
            event_time.from_json(text) if text else None,
            None if snapshots is None else snapshots.take,
        )
        (stored,) = state.get if state.exists else (b"",)

        def emitted() -> Iterator[Page]:
            folder = f"range-{key[0]}"
            pages = _pages(frames)
            kept = yield from run_range(spec, batch, pages, stored, files, page_bytes, folder)
            if snapshots is not None:
                yield from snapshots.pages()
            if kept is not stored:
                state.update((kept,))

        out: Iterator[Page] = emitted()
        if edge is not None:  # a partition has one range, so this is all of the partition
            out = edge.repack(out, number, task.partitionId())
        yield from _frames(out, page_bytes)
        # Spark keeps the names of what was written once this has returned.
        files.finish()
        if snapshots is not None:
            snapshots.finish()
        close_processors(spec)

    return run


def _snapshots(
    task: TaskContext, spec: StageSpec, history: PlainTable | None
) -> SnapshotFiles | None:
    """What takes the snapshots of this task; None if it is not to write their files."""
    if history is None or not task.getLocalProperty(snapshot_property(spec.name)):
        return None
    return SnapshotFiles(spec, history)


def close_processors(spec: StageSpec) -> None:
    """At the end of a task: close what it has initialised.

    Raises:
        ProcessError: the ``close`` of a processor raised.
    """
    functions: tuple[object, ...] = (*spec.process.values(), spec.on_timer)
    for function in functions:
        if isinstance(function, ProcessorFunction):
            function.close()


def _pages(frames: Iterable[pd.DataFrame]) -> Iterator[Page]:
    for frame in frames:
        columns = (frame[name].tolist() for name in PAGE_SCHEMA.names)
        yield from map(Page.from_row, zip(*columns, strict=True))


def _frames(pages: Iterable[Page], page_bytes: int) -> Iterator[pd.DataFrame]:
    """The pages as frames that PySpark makes one Arrow batch of, each.

    It would put 10,000 rows into a batch, whatever is in them (``ARROW_ROWS``). So behind a frame
    that is large come as many rows as make it send the batch; nobody takes them for pages, for
    they are of no kind.
    """
    columns, last = PAGE_SCHEMA.names, None
    for part in in_parts(pages, page_bytes):
        if last is not None:
            fill = Page(last.key_group, PageKind.FILL).as_row()
            yield pd.DataFrame([fill] * (ARROW_ROWS + 1), columns=columns)
        last = part[-1]
        yield pd.DataFrame([page.as_row() for page in part], columns=columns)


@cache
def freeze_loaded_modules() -> None:
    """Have the garbage collector of a worker process pass over what is loaded by now.

    A worker of Spark collects garbage behind each of its tasks, which takes 50 ms of a core with
    pandas and pyarrow loaded, as long as the task itself in a small micro-batch.
    """
    gc.freeze()


def this_task() -> TaskContext:
    """The task that runs; executors only."""
    task = TaskContext.get()
    assert task is not None
    return task


def _batch_of(task: TaskContext) -> int:
    number = task.getLocalProperty(_BATCH_PROPERTY)
    assert number is not None  # set by Spark for every job of a micro-batch
    return int(number)
