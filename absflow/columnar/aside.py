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
from absflow.columnar.stored import FORMAT, LENGTH, StateFiles
from absflow.errors import PageCorruptError

__all__ = ["FOLDER", "aside", "payload_of"]

# Of the files of a stage's state: nobody needs what is in it once the state is restored.
FOLDER = "restored"


def aside(pages: Iterable[Page], files: StateFiles) -> Iterator[Page]:
    """The pages with a place in a file instead of their payload; all of the file comes first.

    Raises:
        StorageError: it cannot be written.
    """
    kept: list[Page] = []

    def parts() -> Iterator[bytes]:
        yield FORMAT
        at = len(FORMAT)
        for page in pages:
            size = len(page.payload)
            yield LENGTH.pack(size)
            yield page.payload
            at += LENGTH.size
            kept.append(replace(page, input=f"{at}:{size}", payload=b""))
            at += size

    # Of no other task, also if Spark runs this one twice at once.
    name = f"{FOLDER}/{uuid.uuid4().hex}"
    files.write(name, parts(), lambda: name)
    for page in kept:
        yield replace(page, input=f"{name}:{page.input}")


def payload_of(page: Page, files: StateFiles | None, what: str) -> Any:
    """The payload of a page, in memory or mapped.

    Raises:
        PageCorruptError: the file is shorter than it was.
        StorageError: it is gone.
    """
    if not page.input or files is None:
        return page.payload
    name, at, size = page.input.split(":")
    buffer, _ = files.read(name)
    if int(at) + int(size) > len(buffer):
        raise PageCorruptError(
            f"{what} is corrupt: it ends at byte {int(at) + int(size)} of {name!r}, which has "
            f"{len(buffer)} bytes; restore again"
        )
    return buffer.slice(int(at), int(size))
