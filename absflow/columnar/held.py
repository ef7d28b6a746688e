"""The pages that the alignment of a key group holds, over micro-batches.

What is held is added to, and read only when a page of it is due: a micro-batch that holds more
writes that, whatever was held before. Few pages lie beside the state, inline; more in a file, of
which each micro-batch that needs one writes its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from absflow.columnar.pages import (
    PAGE_SCHEMA,
    Page,
    decode,
    encode,
    page_batch,
    page_batches,
    pages_of,
)
from absflow.columnar.piece_files import StateFiles, read_pieces, write_pieces
from absflow.columnar.stored import KeyGroupState

__all__ = ["HeldPages", "Limits"]

# Of each input the highest epoch that may be processed; None for any.
Limits = Mapping[str, int | None]
# Rows and bytes by input and epoch.
_Counts = dict[tuple[str, int], tuple[int, int]]


class HeldPages:
    """The pages of a key group that wait in one micro-batch: held ones, then new ones."""

    def __init__(
        self, stored: KeyGroupState, new: Sequence[Page], files: StateFiles, what: str
    ) -> None:
        """Begin with what was held, which is not read yet.

        Args:
            stored: what the key group kept.
            new: the pages of the micro-batch, in order.
            files: where files lie.
            what: names the pages in errors.
        """
        self._stored, self._files, self._what = stored, files, what
        self._unread = _read_counts(stored.held_counts)
        self._pages = list(new)

    def __bool__(self) -> bool:
        """Whether a page waits."""
        return bool(self._unread or self._pages)

    @property
    def counts(self) -> tuple[int, int]:
        """Rows and bytes."""
        counts = [*self._unread.values(), *((p.rows, len(p.payload)) for p in self._pages)]
        return sum(rows for rows, _ in counts), sum(size for _, size in counts)

    def rows_between(self, below: Limits, upto: Limits) -> dict[int, int]:
        """By epoch, the rows that ``upto`` admits and ``below`` does not."""
        found: dict[int, int] = {}
        counts = [(*key, rows) for key, (rows, _) in self._unread.items()]
        counts += [(page.input, page.checkpoint_id, page.rows) for page in self._pages]
        for name, epoch, rows in counts:
            if _is_due(name, epoch, upto) and not _is_due(name, epoch, below):
                found[epoch] = found.get(epoch, 0) + rows
        return found

    def take(self, upto: Limits) -> list[Page]:
        """The pages that are due, held ones before new ones; they wait no more.

        Raises:
            PageCorruptError: what was held is not what was kept.
        """
        if any(_is_due(name, epoch, upto) for name, epoch in self._unread):
            self._pages = [*self._read(), *self._pages]
            self._unread = {}
        due: list[Page] = []
        rest: list[Page] = []
        for page in self._pages:
            (due if _is_due(page.input, page.checkpoint_id, upto) else rest).append(page)
        self._pages = rest
        return due

    def _read(self) -> list[Page]:
        pages: list[Page] = []
        for name in self._stored.held_files.split():
            pages += pages_of(read_pieces(self._files, name, PAGE_SCHEMA, self._what))
        return [*pages, *self._inline()]

    def _inline(self) -> list[Page]:
        held = self._stored.held
        return pages_of(decode(held, PAGE_SCHEMA, self._what)) if held else []

    def keep(self, place: str, page_bytes: int) -> KeyGroupState:
        """What the key group keeps, with the pages that wait now; the rest as it was.

        Args:
            place: the key group and the batch, for the name of a file.
            page_bytes: the size of a page.

        Raises:
            StorageError: a file cannot be written.
        """
        stored = self._stored
        if stored.held_counts and not self._unread:
            stored = replace(stored, held=b"", held_files="", held_counts="")
        if not self._pages:
            return stored
        counts = dict(self._unread)
        for page in self._pages:
            rows, size = counts.get((page.input, page.checkpoint_id), (0, 0))
            counts[page.input, page.checkpoint_id] = rows + page.rows, size + len(page.payload)
        pages = [*(self._inline() if self._unread else ()), *self._pages]
        files, held_files, held = self._files, stored.held_files, b""
        if sum(len(p.payload) for p in pages) <= files.max_inline:
            held = encode(page_batch(pages))
        else:
            name = write_pieces(files, f"{place}-held", page_batches(pages, page_bytes))
            held_files = f"{held_files} {name}".strip()
        text = json.dumps([[*key, *count] for key, count in counts.items()])
        return replace(stored, held=held, held_files=held_files, held_counts=text)


def _is_due(name: str, epoch: int, upto: Limits) -> bool:
    limit = upto[name]
    return limit is None or epoch <= limit


def _read_counts(text: str) -> _Counts:
    rows = json.loads(text) if text else []
    return {(name, epoch): (count, size) for name, epoch, count, size in rows}
