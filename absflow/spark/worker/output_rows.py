"""From pages to the rows of a channel or a sink, and to what the driver gets, on executors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.pages import Page, PageKind, SentTime, pages_of, unpack
from absflow.spark.worker.stage_call import freeze_loaded_modules

__all__ = ["SENT", "PageMessages", "message_of", "unpack_function"]

# The kinds of page that the driver reads whole.
SENT = (PageKind.REPORT, PageKind.WRITTEN)


class PageMessages:
    """The side output of one partition: its REPORT and WRITTEN pages go to the driver."""

    def __init__(self) -> None:
        """Of no page yet."""
        self._messages: list[str] = []

    def take(self, batch: pa.RecordBatch) -> None:
        """Take what is of these kinds; the rest is passed over."""
        kinds = pa.array([kind.value for kind in SENT])
        sent = pages_of(batch.filter(pc.is_in(batch.column("kind"), kinds)))
        self._messages += [json.dumps(message_of(page)) for page in sent]

    def messages(self) -> list[str]:
        """What the driver is to get, when no more pages come."""
        return self._messages


def message_of(page: Page) -> list[object]:
    """Of a REPORT or WRITTEN page its kind, stage, key group, checkpoint, and payload as text."""
    text = page.payload.decode()
    return [page.kind.value, page.input, page.key_group, page.checkpoint_id, text]


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
