"""From pages to the rows of a channel or a sink, on executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from absflow.columnar.pages import SentTime, unpack
from absflow.spark.worker.stage_call import freeze_loaded_modules

__all__ = ["unpack_function"]


def unpack_function(
    output: pa.Schema, batch_id: int | None, time: SentTime | None = None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: the rows in DATA pages; :func:`absflow.columnar.pages.unpack`.

    Args:
        output: the columns of the stage's output.
        batch_id: the batch, for a channel's own columns; None for a sink.
        time: what a stage with event time had said before it, for these columns, too.
    """

    def unpack_pages(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded_modules()
        return unpack(batches, output, batch_id, time)

    return unpack_pages
