"""Any storage that Hadoop has a file system for, by the JVM beside this process.

A Python process has no Hadoop client, and the credentials are often where only the JVM finds them
(Kerberos, tokens that Spark renews, providers of a cloud). The JVM of the driver, and that of each
executor, has all of it: it listens on loopback (``absflow/storage/java/FileServer.java``), and says
where in a file beside what Spark keeps for the worker.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from absflow.storage.stores.contract import refused
from absflow.storage.stores.mounted import executor_folder

__all__ = ["HadoopStore", "served_at"]

_NAME = "absflow-files"  # FileServer.NAME
_NUMBER = struct.Struct(">i")
_PART = struct.Struct(">qi")
_CHUNK = 1 << 20
# Files that say where the JVM beside this process listens; of the driver, which asks it.
_drivers: list[str] = []


class _RefusedError(Exception):
    """What the JVM says of a request that it could not do."""


@dataclass(frozen=True, slots=True)
class HadoopStore:
    """The file systems of a session.

    Attributes:
        options: names and values of Hadoop's conf that the session has beyond the application's.
    """

    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def read(self, path: str) -> bytes | None:
        """Of :class:`~absflow.storage.stores.contract.Store`, as all of these."""
        with self._asking("read", path) as connection:
            if not connection.ask(b"R", path):
                return None
            return b"".join(connection.chunks())

    def read_part(self, path: str, begin: int, size: int) -> bytes | None:
        """By a seek."""
        with self._asking("read", path) as connection:
            if not connection.ask(b"P", path, more=_PART.pack(begin, size)):
                return None
            return b"".join(connection.chunks())

    def write(self, path: str, data: Any) -> None:
        """Written aside, then renamed; on an object store in place."""
        with self._asking("write", path) as connection:
            connection.ask(b"W", path, data)

    def add(self, path: str, data: Any) -> None:
        """Written where it belongs."""
        with self._asking("write", path) as connection:
            connection.ask(b"A", path, data)

    def create(self, path: str, data: bytes) -> bool:
        """By a rename to a name that must be free; on an object store by a condition."""
        with self._asking("create", path) as connection:
            return connection.ask(b"C", path, data)

    def exists(self, path: str) -> bool:
        """A directory exists if it is empty, too, where there are directories."""
        with self._asking("look for", path) as connection:
            return connection.ask(b"E", path)

    def names(self, folder: str) -> list[str]:
        """All of them, by one request."""
        with self._asking("list", folder) as connection:
            connection.ask(b"L", folder)
            return sorted(connection.text() for _ in range(connection.number()))

    def delete(self, paths: Sequence[str]) -> None:
        """One by one."""
        for path in paths:
            with self._asking("delete", path) as connection:
                connection.ask(b"D", path)

    def delete_folder(self, folder: str) -> None:
        """Delete a directory with all in it; nothing happens if there is none."""
        with self._asking("delete", folder) as connection:
            connection.ask(b"X", folder)

    def make_directory(self, path: str) -> None:
        """Create a directory and all above it; nothing happens if it is there."""
        with self._asking("create", path) as connection:
            connection.ask(b"M", path)

    @contextmanager
    def _asking(self, verb: str, path: str) -> Iterator[_Connection]:
        """A connection for one request; none is used again that was broken off within one."""
        idle = _idle.setdefault(self, [])
        try:
            try:
                connection = idle.pop()
            except IndexError:
                connection = _Connection(self.options)
            try:
                yield connection
            except _RefusedError:
                idle.append(connection)
                raise
            except BaseException:
                connection.close()
                raise
            idle.append(connection)
        except (OSError, _RefusedError) as error:
            raise refused(verb, path, error) from error


# Connections of this process that nobody uses now; each thread takes one and brings it back.
_idle: dict[HadoopStore, list[_Connection]] = {}


class _Connection:
    """A connection to the JVM, by one thread at a time (``Served.java`` has the other end)."""

    def __init__(self, options: Sequence[tuple[str, str]]) -> None:
        port, token = Path(_place()).read_text().split()
        self._socket = socket.create_connection(("127.0.0.1", int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        words = [word for option in options for word in option]
        self._socket.sendall(
            token.encode() + _NUMBER.pack(len(options)) + b"".join(map(_text, words))
        )
        self._file = self._socket.makefile("rb", _CHUNK)

    def close(self) -> None:
        """Break it off."""
        self._file.close()
        self._socket.close()

    def ask(self, what: bytes, path: str, data: Any = None, more: bytes = b"") -> bool:
        """Make a request; whether it was done, and what was asked for is there.

        Raises:
            _RefusedError: the file system refuses.
        """
        self._socket.sendall(what + _text(path) + more)
        if data is not None:
            view = memoryview(data).cast("B")  # Arrow's buffers are of signed bytes
            for at in range(0, len(view), _CHUNK):
                chunk = view[at : at + _CHUNK]
                self._socket.sendall(_NUMBER.pack(len(chunk)))
                self._socket.sendall(chunk)
            self._socket.sendall(_NUMBER.pack(0))
        answer = self._exactly(1)
        if answer == b"E":
            raise _RefusedError(self.text())
        return answer == b"Y"

    def chunks(self) -> Iterator[bytes]:
        """The bytes of a file."""
        while size := self.number():
            if size < 0:
                raise _RefusedError(self.text())
            yield self._exactly(size)

    def number(self) -> int:
        """One."""
        (number,) = _NUMBER.unpack(self._exactly(_NUMBER.size))
        return int(number)

    def text(self) -> str:
        """One."""
        return self._exactly(self.number()).decode()

    def _exactly(self, size: int) -> bytes:
        data: bytes = self._file.read(size)
        if len(data) < size:
            raise ConnectionResetError("the JVM beside this process has broken off")
        return data


def served_at(place: str) -> None:
    """Say where the driver's JVM has written how it is reached; workers find theirs."""
    _drivers[:] = [place]


def _place() -> str:
    return _drivers[0] if _drivers else f"{executor_folder()}/{_NAME}"


def _text(text: str) -> bytes:
    data = text.encode()
    return _NUMBER.pack(len(data)) + data
