"""Payloads of RESTORE pages that do not travel through Spark, but in a file that workers map.

Spark puts all rows of a range into one buffer before its worker sees the first, and that ends at
2 GB (``DirectByteBufferOutputStream``). A micro-batch brings less; a restore brings all state.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from absflow.columnar.pages import Page
from absflow.columnar.piece_files import StateFiles, read_payload, write_payloads

__all__ = ["FOLDER", "aside", "payload_of"]

# Of the files of a stage's state: nobody needs what is in it once the state is restored.
FOLDER = "restored"


def aside(pages: Iterable[Page], files: StateFiles) -> Iterator[Page]:
    """The pages with a place in a file instead of their payload; all of the file comes first.

    Raises:
        StorageError: it cannot be written.
    """
    kept: list[Page] = []

    def payloads() -> Iterator[tuple[bytes]]:
        for page in pages:
            kept.append(replace(page, payload=b""))
            yield (page.payload,)

    # Of no other task, also if Spark runs this one twice at once.
    place = f"{FOLDER}/{uuid.uuid4().hex}"
    name, begins = write_payloads(files, place, payloads(), lambda: place)
    files.finish()
    for page, at in zip(kept, begins, strict=True):
        yield replace(page, input=f"{name}:{at}")


def payload_of(page: Page, files: StateFiles, what: str) -> Any:
    """The payload of a page, in memory or mapped.

    Raises:
        PageCorruptError: the file is shorter than it was.
        StorageError: it is gone.
    """
    if not page.input:
        return page.payload
    name, at = page.input.split(":")
    return read_payload(files, name, int(at), what)
