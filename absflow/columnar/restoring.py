"""The state of one key group as its RESTORE pages bring it.

Pages come in any order, and those of a large state are never in memory together: they come as
places in files that are mapped (:mod:`~absflow.columnar.aside`), or what comes is put into files as
soon as it is more than a piece, and mapped back. In memory are the keys alone, to find the last row
of each. Then the rows that stay are written as the key group's base.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from absflow.columnar.aside import payload_of
from absflow.columnar.keys import factorize
from absflow.columnar.pages import Page, decode
from absflow.columnar.piece_files import INLINE, StateFiles, read_pieces, write_pieces
from absflow.columnar.pieces import PAGE_BYTES, pieces, where
from absflow.columnar.state import (
    DELETED,
    MODIFIED,
    KeyedState,
    modified_in,
    snapshot_schema,
    state_schema,
)
from absflow.columnar.stored import PIECE_PAGES, KeyGroupState, store, store_base
from absflow.errors import RestoreError

__all__ = ["Restoring"]


class Restoring:
    """Gathers the RESTORE pages of one key group.

    Attributes:
        epoch: the checkpoint that they are of; 0 if there was no row.
        in_memory: bytes of pages that are not put aside.
    """

    def __init__(
        self,
        stage: str,
        keys: pa.Schema,
        state: pa.Schema,
        key_group: int,
        files: StateFiles = INLINE,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        """Begin with nothing.

        Args:
            stage: its name, for errors.
            keys: its key columns.
            state: its state columns.
            key_group: which.
            files: where the files of a large state lie; None if all of it is kept inline.
            page_bytes: the size of a page.
        """
        self.epoch = 0
        self.in_memory = 0
        self._stage, self._keys, self._state, self._group = stage, keys, state, key_group
        self._files, self._piece_bytes = files, PIECE_PAGES * page_bytes
        self._page_bytes = page_bytes
        self._schema = snapshot_schema(keys, state)
        self._what = f"restore page of stage {stage!r}, key group {key_group}"
        self._waiting: list[pa.RecordBatch] = []
        self._aside: list[str] = []
        self._mapped: list[pa.Table] = [self._schema.empty_table()]
        self._mapped_bytes = 0
        # The place in the lineage and the number of rows of each page, mapped or waiting.
        self._mapped_places: list[tuple[int, int]] = []
        self._waiting_places: list[tuple[int, int]] = []

    def add(self, page: Page) -> None:
        """Take a page.

        Raises:
            PageCorruptError: it does not decode.
            StorageError: a file cannot be written.
        """
        if not page.rows:
            return
        self.epoch = max(self.epoch, page.checkpoint_id)
        payload = payload_of(page, self._files, self._what)
        batch, place = decode(payload, self._schema, self._what), (page.seq, page.rows)
        if page.input:
            self._mapped.append(pa.Table.from_batches([batch]))
            self._mapped_bytes += len(payload)
            self._mapped_places.append(place)
            return
        self._waiting.append(batch)
        self._waiting_places.append(place)
        self.in_memory += len(payload)
        if self._files != INLINE and self.in_memory > self._piece_bytes:
            self._put_aside()

    def _put_aside(self) -> None:
        # Of no other task, also if Spark runs this one twice at once.
        place = f"{self._group}/0-restoring-{uuid.uuid4().hex}"
        name = write_pieces(self._files, place, pieces(self._waiting, self._piece_bytes))
        self._aside.append(name)
        self._mapped.append(read_pieces(self._files, name, self._schema, self._what))
        self._mapped_places += self._waiting_places
        self._waiting, self._waiting_places, self.in_memory = [], [], 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows of :func:`~absflow.columnar.state.state_schema`.

        One per live key, all of them changed in the epoch that ends with the checkpoint.

        Raises:
            RestoreError: one set has a key twice, as a migration that makes one key of two would.
        """
        last = pa.Table.from_batches(self._waiting, self._schema)
        rows = pa.concat_tables([*self._mapped, last])
        stay = ~rows[DELETED].to_numpy()
        codes, unique = factorize(rows.select(self._keys.names))
        if unique.num_rows != rows.num_rows:
            pages = [*self._mapped_places, *self._waiting_places]
            places = np.repeat([place for place, _ in pages], [count for _, count in pages])
            _check_once(self._stage, codes, places, unique)
            newest = np.empty(unique.num_rows, dtype=np.int64)
            order = np.argsort(places, kind="stable")
            newest[codes[order]] = order  # of equal codes the last assignment stays
            latest = np.zeros(rows.num_rows, dtype=bool)
            latest[newest] = True
            stay &= latest
        yield from map(self._as_state, where(rows, stay))

    def _as_state(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        modified = pa.array(np.full(rows.num_rows, modified_in(self.epoch), dtype=np.int64))
        columns = [*rows.columns[:-1], modified, rows.column(DELETED)]
        names = [*rows.schema.names[:-1], MODIFIED, DELETED]
        made = pa.RecordBatch.from_arrays(columns, names=names)
        return made.cast(state_schema(self._keys, self._state))

    def store(self) -> KeyGroupState:
        """Keep the state, and drop what was put aside.

        Raises:
            RestoreError: as :meth:`batches`.
            StorageError: a file cannot be written.
        """
        kept, place = KeyGroupState(self.epoch), f"{self._group}/0"
        if not self._aside and self._mapped_bytes <= self._piece_bytes:
            schema = state_schema(self._keys, self._state)
            table = pa.Table.from_batches(self.batches(), schema)
            state = KeyedState(table, len(self._keys))
            return store(state, kept, self._files, place, self._page_bytes)
        kept = store_base(kept, self._files, place, pieces(self.batches(), self._piece_bytes))
        for name in self._aside:
            self._files.delete(name)
        return kept


def _check_once(stage: str, codes: Any, places: Any, unique: pa.Table) -> None:
    pair = codes * (int(places.max()) + 1) + places
    pairs, counts = np.unique(pair, return_counts=True)
    if len(pairs) != len(pair):
        code = int(pairs[counts > 1][0]) // (int(places.max()) + 1)
        raise RestoreError(
            f"stage {stage!r}: the key {unique.slice(code, 1).to_pylist()[0]} has two rows of "
            "state; a migration must make different keys out of different keys, or put their state "
            "together before (write a savepoint from a DataFrame)"
        )
