"""Calls to a name node that go wrong, by what stands between it and its clients.

Hadoop's clients talk in frames: a length, then messages of protobuf, of which these few fields are
read. What is not to go wrong goes on as it is.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hdfs_server import Hdfs
from s3_faults import SLOW_S, Fault
from s3_server import without_numbers

__all__ = ["CHANGES", "NameNodeFaults", "name_node_faults"]

# What an error says that was made here.
MARK = "the tests let this call fail"
# Methods that change something.
CHANGES = {"create", "addBlock", "complete", "rename", "rename2", "delete", "mkdirs"}
# "hrpc", a version, a class of service, and a way to say who one is.
_GREETING = 7
_LENGTH = struct.Struct(">I")
_REFUSAL = "org.apache.hadoop.ipc.RetriableException"
_VARINT, _BYTES = 0, 2


class NameNodeFaults:
    """What is done to the calls.

    Attributes:
        hdfs: the HDFS as clients are to see it.
    """

    def __init__(self, hdfs: Hdfs, fault: Fault) -> None:
        """Let one call of each kind go wrong: of each method and path without numbers."""
        self.hdfs = hdfs
        self._fault = fault
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._failed: Counter[tuple[str, str]] = Counter()

    def counts(self) -> Counter[tuple[str, str]]:
        """The calls so far."""
        with self._lock:
            return self._counts.copy()

    def failed(self) -> Counter[tuple[str, str]]:
        """Those that went wrong."""
        with self._lock:
            return self._failed.copy()

    def hits(self, kind: tuple[str, str]) -> bool:
        """Whether it can happen to calls of this kind: of those that only ask, nothing is done."""
        return self._fault is not Fault.UNANSWERED or kind[0] in CHANGES

    def due(self, kind: tuple[str, str]) -> Fault | None:
        """What is to become of a call that has just come."""
        with self._lock:
            self._counts[kind] += 1
            if kind in self._failed or not self.hits(kind):
                return None
            self._failed[kind] += 1
            return self._fault


@contextmanager
def name_node_faults(there: Hdfs, fault: Fault) -> Iterator[NameNodeFaults]:
    """For the time of a block; data nodes and REST are as they were."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    seen = Hdfs(f"hdfs://127.0.0.1:{port}", there.rest, there.data_node)
    faults = NameNodeFaults(seen, fault)
    real = there.root.rpartition(":")[2]

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return  # it is over
            _Connection(client, socket.create_connection(("127.0.0.1", int(real))), faults)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield faults
    finally:
        # close() alone does not wake the thread that accepts.
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


class _Connection:
    """A client's, and the one to the name node that belongs to it."""

    def __init__(
        self, client: socket.socket, server: socket.socket, faults: NameNodeFaults
    ) -> None:
        self._client, self._server, self._faults = client, server, faults
        self._write = threading.Lock()
        self._unanswered: dict[int, Fault] = {}
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in (self._calls, self._answers):
            threading.Thread(target=self._until_over, args=(part,), daemon=True).start()

    def _until_over(self, part: Any) -> None:
        with suppress(OSError, EOFError):
            part()
        self._end()

    def _end(self) -> None:
        for each in (self._client, self._server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _calls(self) -> None:
        read = self._client.makefile("rb")
        self._server.sendall(_exactly(read, _GREETING))
        while True:
            frame = _frame(read)
            call, method, path = _call(frame[_LENGTH.size :])
            # Those below 0 are the connection's own.
            fault = self._faults.due((method, without_numbers(path))) if call >= 0 else None
            if fault is Fault.REFUSED:
                self._refuse(call)
                continue
            if fault is Fault.SLOW:
                time.sleep(SLOW_S)
            elif fault is not None:
                self._unanswered[call] = fault
            self._server.sendall(frame)

    def _answers(self) -> None:
        read = self._server.makefile("rb")
        while True:
            frame = _frame(read)
            ((_, call), *_) = _fields(_delimited(frame[_LENGTH.size :])[0])
            fault = self._unanswered.pop(call, None)
            if fault is Fault.CUT:
                return
            if fault is Fault.UNANSWERED:
                self._refuse(call)
            else:
                self._send(frame)

    def _refuse(self, call: int) -> None:
        header = b"".join(
            (
                _field(1, call),
                _field(2, 1),  # an error
                _field(3, 9),  # the version of the protocol
                _field(4, _REFUSAL.encode()),
                _field(5, MARK.encode()),
                _field(6, 1),  # of the application
            )
        )
        message = _varint(len(header)) + header
        self._send(_LENGTH.pack(len(message)) + message)

    def _send(self, frame: bytes) -> None:
        with self._write:
            self._client.sendall(frame)


def _call(message: bytes) -> tuple[int, str, str]:
    """Its number, its method, and the path that it is about; both empty of the connection's own."""
    header, rest = _delimited(message)
    number = next(value for field, value in _fields(header) if field == 3)
    number = (number >> 1) ^ -(number & 1)
    if number < 0:
        return number, "", ""
    named, rest = _delimited(rest)
    method = next(value.decode() for field, value in _fields(named) if field == 1)
    asked = _delimited(rest)[0] if rest else b""
    texts = (value for _, value in _fields(asked) if isinstance(value, bytes))
    path = next((text.decode() for text in texts if text.startswith(b"/")), "")
    return number, method, path


def _frame(read: Any) -> bytes:
    length = _exactly(read, _LENGTH.size)
    return length + _exactly(read, _LENGTH.unpack(length)[0])


def _exactly(read: Any, size: int) -> bytes:
    data: bytes = read.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and values of its fields: whole numbers, and bytes of whatever has a length."""
    while message:
        tag, message = _number(message)
        value: Any
        if tag & 7 == _VARINT:
            value, message = _number(message)
        elif tag & 7 == _BYTES:
            value, message = _delimited(message)
        else:
            size = 8 if tag & 7 == 1 else 4
            value, message = int.from_bytes(message[:size], "little"), message[size:]
        yield tag >> 3, value


def _delimited(message: bytes) -> tuple[bytes, bytes]:
    """A part with its length in front, and what is behind it."""
    size, message = _number(message)
    return message[:size], message[size:]


def _number(message: bytes) -> tuple[int, bytes]:
    number = shift = 0
    for place, byte in enumerate(message):
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, message[place + 1 :]
    raise EOFError


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value
