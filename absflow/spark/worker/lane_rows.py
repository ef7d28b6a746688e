"""An executor publishes the rows of one lane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from absflow.columnar.publishing import LanePublication, publish
from absflow.spark.worker.stage_call import freeze_loaded_modules
from absflow.transactional import TransactionalSink

__all__ = ["PUBLISHED", "LanesPublication", "publish_function"]

# What a task says: how many rows it wrote.
PUBLISHED = pa.schema([pa.field("rows", pa.int64())])


@dataclass(frozen=True, slots=True)
class LanesPublication:
    """What all lanes of a sink are to publish.

    Attributes:
        names: the lanes; partition n goes by the n-th.
        driver: the incarnation of the driver.
        attempt: the attempt whose rows they are.
        checkpoint_id: the checkpoint.
        whole: as of :class:`~absflow.columnar.publishing.LanePublication`.
    """

    names: tuple[str, ...]
    driver: int
    attempt: int
    checkpoint_id: int
    whole: bool = False


def publish_function(
    sink: TransactionalSink, made: LanesPublication, mark: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow`` over partitions in the order of a lane.

    Args:
        sink: the sink.
        made: the publication.
        mark: a column that is no row's own; rows that have null there are none.
    """

    def publish_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded_modules()
        context = TaskContext.get()
        assert context is not None
        lane = LanePublication(
            made.names[context.partitionId()],
            made.driver,
            len(made.names),
            made.attempt,
            made.checkpoint_id,
            sink.transaction_bytes,
            made.whole,
        )
        written = publish(lane, sink.open, sink.marker, _rows(batches, mark))
        yield pa.RecordBatch.from_arrays([pa.array([written], pa.int64())], schema=PUBLISHED)

    return publish_partition


def _rows(batches: Iterable[pa.RecordBatch], mark: str) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        marks = batch.column(mark)
        kept = batch.filter(pc.is_valid(marks)) if marks.null_count else batch
        if kept.num_rows:
            yield kept.drop_columns([mark])
