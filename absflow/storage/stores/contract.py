"""What the driver and the workers ask of a storage, whatever its kind.

A path begins with its scheme, as Hadoop qualifies it (``file:/a/b``, ``s3a://bucket/a/b``).
Whatever fails, an error of the storage is a :class:`~absflow.errors.StorageError` that names the
path.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Protocol

from absflow.errors import StorageError

__all__ = ["Store", "aside_of", "refused"]


class Store(Protocol):
    """A kind of storage; every process that has it may ask, and every thread."""

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; None if there is none."""

    def read_part(self, path: str, begin: int, size: int) -> bytes | None:
        """So many bytes of a file that has them; None if there is none.

        Of one that ends before, what there is, or an error.
        """

    def write(self, path: str, data: Any) -> None:
        """Put a file in place whole, in the place of an older one if there is one."""

    def add(self, path: str, data: Any) -> None:
        """Write a file whose name nobody else knows yet; a kill may leave a part of it."""

    def create(self, path: str, data: bytes) -> bool:
        """Put a file in place whole; false if there is one, which stays as it is.

        Of several that try at once one has it, also where an answer is lost on its way and the call
        is made again: a file with these very bytes counts as its own.
        """

    def exists(self, path: str) -> bool:
        """Whether there is a file, or a directory with something in it."""

    def names(self, folder: str) -> list[str]:
        """The names in a directory, sorted, hidden ones, too; empty if there is none."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; nothing happens where there is none."""


def refused(verb: str, path: str, error: object) -> StorageError:
    """The error of a storage that refuses ``path``; ``verb`` says what was asked."""
    return StorageError(
        f"could not {verb} {path!r}: {error}; spark.absflow.storage.path must name a place that "
        "the driver and every executor can read and write"
    )


def aside_of(path: str) -> str:
    """A name of its own beside ``path``; hidden, for a kill may leave the file there."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"
