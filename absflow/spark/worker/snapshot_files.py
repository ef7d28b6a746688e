"""Snapshots as files of the state history, written by the workers that run the stage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from absflow.columnar.digest import set_digest
from absflow.columnar.pages import Page, PageKind, decode
from absflow.columnar.spec import StageSpec
from absflow.columnar.state import DELETED
from absflow.storage.delta.data_files import PlainTable
from absflow.storage.state_history import OPS, in_memory, row_groups
from absflow.storage.stores.uploads import Uploads

__all__ = ["SnapshotFiles", "history_rows"]

# A worker gathers so many bytes of what has changed before it writes them into files.
_GATHERED = 32 << 20
# So many files are on their way to the store at most.
_UPLOADS = 4


class SnapshotFiles:
    """Puts what snapshots hold into files that no version of the state history names yet.

    Of one task. So what has changed is not made pages of, and takes no way through the JVM, and
    none through the shuffles of the stages behind it in the chain. While the store takes a file,
    its digest is made, and the next one.
    """

    def __init__(self, spec: StageSpec, table: PlainTable) -> None:
        """Of a stage, into its state history."""
        self._spec = spec
        self._table = table
        self._gathered: dict[int, list[pa.RecordBatch]] = {}
        self._size = 0
        self._written: list[Page] = []
        self._uploads = Uploads(_UPLOADS)

    def take(self, key_group: int, checkpoint_id: int, changed: pa.RecordBatch) -> None:
        """Take what a snapshot holds of a key group, as ``take_changes`` of a batch."""
        if not changed.num_rows:
            return
        rows = _set_rows(changed, checkpoint_id, key_group, in_memory(self._table.schema))
        self._gathered.setdefault(checkpoint_id, []).append(rows)
        self._size += changed.nbytes
        if self._size >= _GATHERED:
            self._write()

    def pages(self) -> Iterator[Page]:
        """A WRITTEN page for each time that files were written of a checkpoint."""
        self._write()
        yield from self._written

    def finish(self) -> None:
        """Wait until the store has taken all files; until then a task has not written them.

        Raises:
            StorageError: one cannot be written.
        """
        self._uploads.finish()

    def _write(self) -> None:
        gathered, self._gathered, self._size = self._gathered, {}, 0
        for checkpoint_id, rows in sorted(gathered.items()):
            adds = list(self._table.write(rows, row_groups, self._add))
            digest = set_digest(checkpoint_id, rows)
            payload = json.dumps({"adds": adds, "digest": [digest.rows, digest.digest]}).encode()
            (first, *_) = rows
            page = Page(
                first["key_group"][0].as_py(),
                PageKind.WRITTEN,
                self._spec.name,
                checkpoint_id,
                rows=digest.rows,
                payload=payload,
            )
            self._written.append(page)

    def _add(self, path: str, data: pa.Buffer) -> None:
        self._uploads.add(self._table.store.add, path, data)


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
