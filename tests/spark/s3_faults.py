"""Requests to the S3 server of the tests that go wrong as they do in the world."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

__all__ = ["Fault", "answered"]

# The second is longer than any client waits.
SLOW_S, HANGS_S = 0.5, 40.0
_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
Application = Callable[..., Iterable[bytes]]


class Fault(str, Enum):
    """What becomes of a request."""

    REFUSED = "refused"
    """503, and nothing was done."""
    UNANSWERED = "unanswered"
    """It is done, and its caller gets 503."""
    CUT = "cut"
    """The connection ends in the middle: half of what is sent arrives, or half of the answer."""
    SLOW = "slow"
    """Its answer comes late."""
    HANGS = "hangs"
    """Its answer comes when nobody waits for it any more."""
    STALE = "stale"
    """A listing is that of the last time."""


_WAITS_S = {Fault.SLOW: SLOW_S, Fault.HANGS: HANGS_S}


def answered(
    fault: Fault, application: Application, environ: dict[str, Any], start: Callable[..., Any]
) -> Iterable[bytes]:
    """A request with a fault; not of a listing that is stale, which the server knows itself."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if fault in _WAITS_S:
        time.sleep(_WAITS_S[fault])
        return application(environ, start)
    if fault is Fault.CUT:
        connection: socket.socket = environ["werkzeug.socket"]
        if length:
            environ["wsgi.input"].read(length // 2)
            connection.shutdown(socket.SHUT_RDWR)
            return []
        return _half(application(environ, start), connection)
    if fault is Fault.UNANSWERED:
        list(application(environ, lambda *_: None))
    elif length:
        environ["wsgi.input"].read(length)
    start("503 Slow Down", [("Content-Type", "application/xml")])
    return [_BUSY]


def _half(answer: Iterable[bytes], connection: socket.socket) -> Iterator[bytes]:
    whole = b"".join(answer)
    yield whole[: len(whole) // 2]
    connection.shutdown(socket.SHUT_RDWR)
