"""Snapshots as files of the state history, written by the workers that run the stage."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from absflow.columnar.digest import set_digest
from absflow.columnar.pages import Page, PageKind, decode
from absflow.columnar.spec import StageSpec
from absflow.columnar.state import DELETED, snapshot_schema
from absflow.storage.delta.data_files import PlainTable
from absflow.storage.state_history import OPS, in_memory, row_groups

__all__ = ["SnapshotFiles", "history_rows"]

# A worker gathers so many bytes of STATE pages before it writes them into files.
_GATHERED = 32 << 20


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """Puts STATE pages into files that no version of the state history names yet.

    Attributes:
        spec: the stage.
        table: its state history.
    """

    spec: StageSpec
    table: PlainTable

    def instead(self, pages: Iterable[Page]) -> Iterator[Page]:
        """The pages, but WRITTEN ones in the place of the stage's own STATE pages.

        So what has changed takes no way through the JVM, and none through the shuffles of the
        stages behind it in the chain.
        """
        gathered: list[Page] = []
        size = 0
        for page in pages:
            if page.kind is not PageKind.STATE or page.input != self.spec.name:
                yield page
                continue
            gathered.append(page)
            size += len(page.payload)
            if size >= _GATHERED:
                yield from self._written(gathered)
                gathered, size = [], 0
        yield from self._written(gathered)

    def _written(self, pages: Sequence[Page]) -> Iterator[Page]:
        inside = snapshot_schema(self.spec.keys, self.spec.state)
        for checkpoint_id in sorted({page.checkpoint_id for page in pages}):
            mine = [page for page in pages if page.checkpoint_id == checkpoint_id]
            columns = in_memory(self.table.schema)
            rows = list(history_rows(mine, self.spec.name, inside, columns))
            adds = list(self.table.write(rows, row_groups))
            digest = set_digest(checkpoint_id, rows)
            payload = json.dumps({"adds": adds, "digest": [digest.rows, digest.digest]}).encode()
            yield Page(
                mine[0].key_group,
                PageKind.WRITTEN,
                self.spec.name,
                checkpoint_id,
                rows=digest.rows,
                payload=payload,
            )


def history_rows(
    pages: Sequence[Page], stage: str, inside: pa.Schema, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of a state history in STATE pages, a batch for each page.

    Args:
        pages: the pages.
        stage: their stage, for errors.
        inside: what is in their payloads.
        schema: the columns of the state history, also as :func:`in_memory` has them.

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
    op = pa.DictionaryArray.from_arrays(changed.column(DELETED).cast(pa.int32()), OPS)
    groups = pa.repeat(pa.scalar(key_group, pa.int32()), count)
    own: list[Any] = [ids, ids, groups, op.cast(schema.field("op").type)]
    return pa.RecordBatch.from_arrays([*own, *changed.columns[:-1]], schema=schema)
