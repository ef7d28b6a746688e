"""What a stage emits is handed to PySpark in Arrow batches of a size."""

from __future__ import annotations

import itertools

import pandas as pd
import pytest

from absflow.columnar.pages import PAGE_SCHEMA, Page, PageKind
from absflow.spark.worker.stage_call import ARROW_ROWS, _frames


def batches(frames: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """As PySpark 4.2 does it: a batch is made once more than so many rows wait."""
    made, waiting, rows = [], [], 0
    for frame in frames:
        waiting.append(frame)
        rows += len(frame)
        if rows > ARROW_ROWS:
            made.append(pd.concat(waiting, ignore_index=True))
            waiting, rows = [], 0
    return [*made, *([pd.concat(waiting, ignore_index=True)] if waiting else [])]


def sent(count: int, size: int, page_bytes: int) -> list[list[Page]]:
    """The pages of each batch, without the rows that fill it, of so many pages of a size."""
    pages = [Page(n, PageKind.STATE, "s", seq=n, payload=bytes(size)) for n in range(count)]
    frames = list(_frames(iter(pages), page_bytes))
    assert all(list(frame.columns) == PAGE_SCHEMA.names for frame in frames)
    found = [
        [Page.from_row(row) for row in batch.itertuples(index=False, name=None)]
        for batch in batches(frames)
    ]
    real = [[page for page in batch if page.kind is not PageKind.FILL] for batch in found]
    assert list(itertools.chain(*real)) == pages
    fill = [page for batch in found for page in batch if page.kind is PageKind.FILL]
    assert {(page.rows, page.payload) for page in fill} <= {(0, b"")}
    # They come to a stage behind as pages of a key group that it has.
    assert {page.key_group for page in fill} <= {page.key_group for page in pages}
    return real


@pytest.mark.parametrize(("count", "batches"), [(1, 1), (32, 1), (33, 2), (1000, 32)])
def test_no_batch_has_more_than_some_dozens_of_full_pages(count: int, batches: int) -> None:
    """However many there are."""
    parts = sent(count, size=100, page_bytes=100)
    assert len(parts) == batches
    assert all(len(part) <= 32 for part in parts)


def test_a_small_output_is_one_frame() -> None:
    """Nothing is filled."""
    frames = list(_frames(iter([Page(0, PageKind.BARRIER), Page(1, PageKind.BARRIER)]), 1 << 20))
    assert [len(frame) for frame in frames] == [2]
    assert list(_frames(iter([]), 1 << 20)) == []
