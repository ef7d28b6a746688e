"""Snapshots as files of the state history, written by the workers that write a batch's rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from absflow.columnar.digest import set_digests
from absflow.columnar.pages import Page, PageKind, decode, pages_of
from absflow.columnar.state import DELETED
from absflow.storage.delta.data_files import PlainTable

__all__ = ["Histories", "SnapshotFiles", "history_rows"]

# Of stages by their name: the history table, and what is in their STATE pages.
Histories: TypeAlias = Mapping[str, tuple[PlainTable, pa.Schema]]
# A worker gathers so many bytes of STATE pages before it writes them into files.
_GATHERED = 32 << 20


class SnapshotFiles:
    """The side output of one partition: STATE pages go into files, REPORT pages to the driver.

    Its messages are JSON objects: ``{"report": [stage, key group, payload]}``, ``{"state":
    [stage, checkpoint, action that adds a file]}``, and of all such files ``{"digest": [stage,
    checkpoint, rows, digest]}``.
    """

    def __init__(self, histories: Histories) -> None:
        """Of these stages; pages of others are passed over."""
        self._histories = histories
        self._messages: list[str] = []
        self._pages: list[Page] = []
        self._bytes = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Take what is of these stages and kinds; the rest is passed over."""
        kinds = pa.array([PageKind.REPORT.value, PageKind.STATE.value])
        for page in pages_of(batch.filter(pc.is_in(batch.column("kind"), kinds))):
            if page.kind is PageKind.REPORT:
                report = [page.input, page.key_group, page.payload.decode()]
                self._messages.append(json.dumps({"report": report}))
            elif page.input in self._histories:
                self._pages.append(page)
                self._bytes += len(page.payload)
                if self._bytes >= _GATHERED:
                    self._write()

    def messages(self) -> list[str]:
        """What the driver is to get, when no more pages come."""
        self._write()
        return self._messages

    def _write(self) -> None:
        for stage, (table, inside) in self._histories.items():
            pages = [page for page in self._pages if page.input == stage]
            rows = list(history_rows(pages, stage, inside, table.schema))
            for action in table.write(rows):
                checkpoint_id = int(action["add"]["partitionValues"]["set_id"])
                self._messages.append(json.dumps({"state": [stage, checkpoint_id, action]}))
            if rows:
                for part in set_digests(pa.Table.from_batches(rows)):
                    self._messages.append(json.dumps({"digest": [stage, *astuple(part)]}))
        self._pages, self._bytes = [], 0


def history_rows(
    pages: Sequence[Page], stage: str, inside: pa.Schema, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of a state history in STATE pages, a batch for each page.

    Args:
        pages: the pages.
        stage: their stage, for errors.
        inside: what is in their payloads.
        schema: the columns of the state history.

    Raises:
        PageCorruptError: a payload is not what was written.
    """
    for page in pages:
        what = f"snapshot {page.checkpoint_id} of stage {stage!r}, group {page.key_group}"
        changed = decode(page.payload, inside, what)
        yield _set_rows(changed, page.checkpoint_id, page.key_group, schema)


def _set_rows(
    changed: pa.RecordBatch, checkpoint_id: int, key_group: int, schema: pa.Schema
) -> pa.RecordBatch:
    count = changed.num_rows
    ids = pa.repeat(pa.scalar(checkpoint_id, pa.int64()), count)
    op = pc.if_else(changed.column(DELETED), "delete", "upsert")
    own: list[Any] = [ids, ids, pa.repeat(pa.scalar(key_group, pa.int32()), count), op]
    return pa.RecordBatch.from_arrays([*own, *changed.columns[:-1]], schema=schema)
