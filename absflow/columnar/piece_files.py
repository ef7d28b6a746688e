"""Files of pieces, in which the state of a large key group lies, and what is held or restored.

A file begins with the name of its format. Then come its pieces, each a payload
(:func:`~absflow.columnar.pages.encode`) behind its length in eight bytes. Files are mapped, so what
is not looked at is not read. Several such files, one behind the other, are one as well, and a name
may be that of a part of it.
"""

from __future__ import annotations

import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final, Protocol

import pyarrow as pa

from absflow.columnar.pages import check, decode, encoded
from absflow.errors import PageCorruptError, StorageError

__all__ = [
    "INLINE",
    "StateFiles",
    "check_pieces",
    "file_of",
    "part_name",
    "part_of",
    "read_headed",
    "read_payload",
    "read_pieces",
    "write_payloads",
    "write_pieces",
]

_LENGTH = struct.Struct("<q")
_FORMAT = b"absflow1"
_PART = re.compile(r"#(\d+)\+(\d+)$")


class StateFiles(Protocol):
    """Where the files of a stage's state lie."""

    @property
    def max_inline(self) -> int:
        """State of up to so many bytes is not put into a file."""

    def read(self, name: str) -> tuple[Any, bool]:
        """The bytes of a file as a buffer, and whether their checksum is yet to be looked at.

        Args:
            name: of the file, or of a part of one (:func:`part_name`).

        Raises:
            PageCorruptError: the file ends before that part.
            StorageError: there is no such file, or it cannot be read.
        """

    def write(self, place: str, parts: Iterable[Any], name: Callable[[], str]) -> str:
        """Put a file in place whole; in the place of the same one, if it is there.

        Args:
            place: what its name begins with.
            parts: its bytes, made one by one.
            name: its name, asked for when they are all made.

        Returns:
            The name.
        """

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder of this place, hidden ones, too; empty if there is none.

        What nobody needs may be left out.
        """

    def finish(self) -> None:
        """Return once all that was written is where every worker finds it.

        To be called before anything that names it is kept.

        Raises:
            StorageError: a file could not be brought there.
        """


@dataclass(frozen=True, slots=True)
class _Inline:
    """No place for files: all is kept where the rest is, whatever its size."""

    max_inline: int = sys.maxsize

    def read(self, name: str) -> tuple[Any, bool]:
        raise StorageError(f"there is no file {name!r}: all state is kept inline")

    def write(self, place: str, parts: Iterable[Any], name: Callable[[], str]) -> str:
        raise StorageError(f"there is no place for a file {place!r}: all state is kept inline")

    def delete(self, name: str) -> None:
        pass

    def names(self, folder: str) -> list[str]:
        return []

    def finish(self) -> None:
        pass


INLINE: Final[StateFiles] = _Inline()


def part_name(file: str, at: int, size: int) -> str:
    """The name of the ``size`` bytes from byte ``at`` of a file."""
    return f"{file}#{at}+{size}"


def file_of(name: str) -> str:
    """The file that has it: the name itself, if it is not of a part."""
    part = _PART.search(name)
    return name[: part.start()] if part else name


def part_of(buffer: pa.Buffer, name: str) -> pa.Buffer:
    """Of the bytes of a file those that a name is of.

    Raises:
        PageCorruptError: the file ends before.
    """
    part = _PART.search(name)
    if part is None:
        return buffer
    at, size = map(int, part.groups())
    if at + size > len(buffer):
        raise PageCorruptError(
            f"{name} is corrupt: the file has {len(buffer)} bytes; restore the job from its last "
            "checkpoint"
        )
    return buffer.slice(at, size)


def write_pieces(files: StateFiles, place: str, rows: Iterable[pa.RecordBatch]) -> str:
    """Write rows into a file, a piece for each batch; the file's name."""
    checksum = 0

    def payloads() -> Iterator[tuple[Any, ...]]:
        nonlocal checksum
        for batch in rows:
            header, message = encoded(batch)
            checksum = zlib.crc32(header, checksum)
            yield header, message

    name, _ = write_payloads(files, place, payloads(), lambda: f"{place}-{checksum:08x}")
    return name


def write_payloads(
    files: StateFiles, place: str, payloads: Iterable[Sequence[Any]], name: Callable[[], str]
) -> tuple[str, list[int]]:
    """Write a file of pieces that are encoded already.

    Args:
        files: where it lies.
        place: what its name begins with.
        payloads: of each piece, in parts.
        name: its name, asked for when they are all made.

    Returns:
        The name, and the byte at which each piece begins, for :func:`read_payload`.
    """
    begins: list[int] = []

    def parts() -> Iterator[Any]:
        yield _FORMAT
        at = len(_FORMAT)
        for payload in payloads:
            begins.append(at)
            size = sum(map(len, payload))
            yield _LENGTH.pack(size)
            yield from payload
            at += _LENGTH.size + size

    return files.write(place, parts(), name), begins


def read_pieces(files: StateFiles, name: str, schema: pa.Schema, what: str) -> pa.Table:
    """The rows of a file, a chunk for each piece, which share the memory of the file.

    Raises:
        PageCorruptError: the bytes are not what was written.
        StorageError: the file is gone.
    """
    buffer, unchecked = files.read(name)
    what = f"{what}, {name}"
    batches = [decode(piece, schema, what, unchecked) for piece in _payloads(buffer, what)]
    return pa.Table.from_batches(batches, schema)


def read_headed(
    files: StateFiles, name: str, head: pa.Schema, schema: pa.Schema, what: str
) -> tuple[pa.RecordBatch, pa.Table]:
    """As :func:`read_pieces`, of a file whose first piece has a schema of its own.

    Returns:
        That piece, and the rows of the others.
    """
    buffer, unchecked = files.read(name)
    what = f"{what}, {name}"
    schemas = chain([head], repeat(schema))
    first, *rest = (
        decode(piece, each, what, unchecked)
        for piece, each in zip(_payloads(buffer, what), schemas, strict=False)
    )
    return first, pa.Table.from_batches(rest, schema)


def read_payload(files: StateFiles, name: str, at: int, what: str) -> pa.Buffer:
    """The payload of the piece at a byte of a file, whose memory it shares; it is not checked.

    Raises:
        PageCorruptError: the file has not all of it.
        StorageError: the file is gone.
    """
    buffer, _ = files.read(name)
    return _payload(buffer, at, f"{what}, {name}")


def check_pieces(buffer: pa.Buffer, what: str) -> None:
    """See that a file is what was written; ``what`` names it in errors.

    Raises:
        PageCorruptError: it is not.
    """
    for piece in _payloads(buffer, what):
        check(piece, what)


def _payloads(buffer: pa.Buffer, what: str) -> Iterator[pa.Buffer]:
    at = len(_FORMAT)
    if buffer[:at].to_pybytes() != _FORMAT:
        raise PageCorruptError(
            f"{what} is corrupt: it does not begin with {_FORMAT!r}; restore the job from its "
            "last checkpoint"
        )
    while at < len(buffer):
        if buffer[at : at + len(_FORMAT)].to_pybytes() == _FORMAT:  # no piece has that length
            at += len(_FORMAT)
            continue
        payload = _payload(buffer, at, what)
        at += _LENGTH.size + len(payload)
        yield payload


def _payload(buffer: pa.Buffer, at: int, what: str) -> pa.Buffer:
    start = at + _LENGTH.size
    (length,) = _LENGTH.unpack(buffer[at:start]) if start <= len(buffer) else (-1,)
    if not 0 <= length <= len(buffer) - start:
        raise PageCorruptError(
            f"{what} is corrupt: a piece at byte {at} of {len(buffer)} has {length} bytes; "
            "restore the job from its last checkpoint"
        )
    return buffer.slice(start, length)
