"""The files of a stage's state on a mounted file system, by Python's workers themselves.

They lie in the attempt's working directory and go with it. Files are mapped into memory, so that
of a base only what is looked at is read.
"""

from __future__ import annotations

import os
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from absflow.columnar.piece_files import file_of, part_of
from absflow.errors import StorageError

__all__ = ["MountedStateFiles", "fetched", "gone", "mapped"]

# Paths of files, and of their parts, whose checksum this process has seen, newest last; how many.
_seen: OrderedDict[str, None] = OrderedDict()
_MOST_SEEN = 4096


@dataclass(frozen=True, slots=True)
class MountedStateFiles:
    """A directory on a file system that is mounted on every machine.

    Attributes:
        directory: its path, without a scheme.
        max_inline: state of up to so many bytes is not put into a file.
    """

    directory: str
    max_inline: int

    def read(self, name: str) -> tuple[Any, bool]:
        """The bytes of a file as a buffer, and whether their checksum is yet to be looked at.

        Raises:
            PageCorruptError: it is of a part of a file that ends before.
            StorageError: there is no such file, or it cannot be read.
        """
        try:
            return mapped(self.directory, name)
        except OSError as error:
            raise gone(f"{self.directory}/{name}", error) from error

    def write(self, place: str, parts: Iterable[Any], name: Callable[[], str]) -> str:
        """Put a file in place whole; in the place of the same one, if it is there.

        Args:
            place: what its name begins with.
            parts: its bytes, made one by one.
            name: its name, asked for when they are all made.

        Returns:
            The name.

        Raises:
            StorageError: it cannot be written.
        """
        folder, _, last = f"{self.directory}/{place}".rpartition("/")
        aside = f"{folder}/.{last}-{uuid.uuid4().hex}"  # a kill may leave it there
        try:
            os.makedirs(folder, exist_ok=True)
            with open(aside, "wb") as file:
                for part in parts:
                    file.write(part)
            path = f"{self.directory}/{name()}"
            os.replace(aside, path)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(aside)
            if not isinstance(error, OSError):
                raise
            raise StorageError(
                f"could not write state into {self.directory!r}: {error}; "
                "spark.absflow.storage.path must name a place that every executor can read and "
                "write"
            ) from error
        _note(path)
        return name()

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with suppress(FileNotFoundError):
            Path(self.directory, name).unlink()

    def names(self, folder: str) -> list[str]:
        """The names in a folder of this place, hidden ones, too; empty if there is none."""
        try:
            return os.listdir(f"{self.directory}/{folder}")
        except FileNotFoundError:
            return []

    def finish(self) -> None:
        """Nothing is left to do: what is written is in place."""


def mapped(directory: str, name: str) -> tuple[Any, bool]:
    """The bytes of a local file, or of a part of it, and whether this process has not seen them.

    Raises:
        OSError: there is no such file, or it cannot be read.
        PageCorruptError: the file ends before that part.
    """
    whole, own = f"{directory}/{file_of(name)}", f"{directory}/{name}"
    with pa.memory_map(whole) as file:
        payload = part_of(file.read_buffer(), name)
    seen = next((path for path in (whole, own) if path in _seen), None)
    _note(seen or own)
    return payload, seen is None


def fetched(directory: str, name: str) -> None:
    """A local file was put there from elsewhere: nothing is seen of it but what is read now."""
    whole = f"{directory}/{file_of(name)}"
    for path in [each for each in _seen if file_of(each) == whole]:
        del _seen[path]
    _note(f"{directory}/{name}")


def gone(path: str, error: object) -> StorageError:
    """The error for a file that cannot be read."""
    return StorageError(
        f"could not read {path!r}, which holds state of a key group: {error}; restore the "
        "job from its last checkpoint"
    )


def _note(path: str) -> None:
    _seen[path] = None
    _seen.move_to_end(path)
    if len(_seen) > _MOST_SEEN:
        _seen.popitem(last=False)
