"""A server of the checkpoint page, live, and of the state of single keys.

It answers a few paths and reads no file by a name that anybody sends: what a browser asks for are
stages, checkpoints and values of keys, which go to the same reader as those of the command line.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from absflow.cli.reader import Reader
from absflow.cli.report.compare import read_compared, read_one
from absflow.cli.report.keys import read_keys
from absflow.cli.report.metrics import CONTENT_TYPE as _METRICS
from absflow.cli.report.metrics import metrics
from absflow.cli.report.read import SHOWN, read_page
from absflow.cli.report.render import (
    render,
    render_compared,
    render_keys,
    render_problem,
)
from absflow.errors import AbsflowError
from absflow.telemetry.loopback import is_for, is_local

__all__ = ["PageServer"]

# A page that was read so lately is shown again.
_FRESH_S = 2.0
_COOKIE = "absflow"
_HTML = "text/html; charset=utf-8"
# Nobody sends as much by accident.
_LONGEST_PATH = 8192


class PageServer(ThreadingHTTPServer):
    """Shows one job.

    Attributes:
        url: of the page, with the token if there is one.
        token: what a browser must bring; empty if only this machine reaches the server.
    """

    daemon_threads = True

    def __init__(self, reader: Reader, host: str, port: int, properties_file: Path | None) -> None:
        """Listen, but answer nobody yet.

        Args:
            reader: of the storage root.
            host: the address to listen on.
            port: the port; 0 for one that is free.
            properties_file: may say what retention keeps.

        Raises:
            OSError: somebody else listens there.
        """
        super().__init__((host, port), _Handler)
        self.token = "" if is_local(host) else secrets.token_urlsafe(24)
        shown = f"[{host}]" if ":" in host else host
        query = f"?token={self.token}" if self.token else ""
        self.url = f"http://{shown}:{self.server_port}/{query}"
        self._reader = reader
        self._properties_file = properties_file
        self._lock = threading.Lock()
        self._made: tuple[float, str] = (float("-inf"), "")

    def page(self) -> str:
        """The checkpoint page as it is now, or was just now."""
        with self._lock:  # whoever comes meanwhile has the same page
            at, text = self._made
            if time.monotonic() - at > _FRESH_S:
                page = read_page(self._reader.again(), SHOWN, self._properties_file)
                text = render(page, live=True)
                self._made = time.monotonic(), text
            return text

    def metrics(self) -> str:
        """For Prometheus."""
        reader = self._reader.again()
        return metrics(reader.status(), reader.history(1)).decode()

    def keys(self, query: Mapping[str, str]) -> str:
        """The state of a stage, or of one key of it."""
        return render_keys(read_keys(self._reader.again(), query))

    def compared(self, query: Mapping[str, str]) -> str:
        """Two checkpoints beside each other."""
        return render_compared(read_compared(self._reader.again(), query))

    def checkpoint(self, query: Mapping[str, str]) -> str:
        """One checkpoint, however old."""
        return render_compared(read_one(self._reader.again(), query))


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "absflow"
    sys_version = ""

    def do_GET(self) -> None:
        """The page, or the state of keys."""
        split = urlsplit(self.path)
        query = dict(parse_qsl(split.query, keep_blank_values=True))
        answers: dict[str, tuple[str, Callable[[], str]]] = {
            "/": (_HTML, self.server.page),
            "/keys": (_HTML, lambda: self.server.keys(query)),
            "/compare": (_HTML, lambda: self.server.compared(query)),
            "/checkpoint": (_HTML, lambda: self.server.checkpoint(query)),
            "/metrics": (_METRICS, self.server.metrics),
        }
        if len(self.path) > _LONGEST_PATH:
            self._say(HTTPStatus.REQUEST_URI_TOO_LONG, "the address is too long")
        elif not self._is_for_us():
            self._say(HTTPStatus.MISDIRECTED_REQUEST, "this server is not who you ask for")
        elif not self._may(query.get("token", "")):
            self._say(HTTPStatus.FORBIDDEN, "open the address that `absflow serve` has printed")
        elif split.path not in answers:
            self._say(HTTPStatus.NOT_FOUND, "there is no such page")
        else:
            self._answer(*answers[split.path])

    def _answer(self, kind: str, made: Callable[[], str]) -> None:
        try:
            self._send(HTTPStatus.OK, made(), kind)
        except AbsflowError as error:
            self._say(HTTPStatus.NOT_FOUND, " ".join(str(error).split()))

    def _is_for_us(self) -> bool:
        if self.server.token:
            return True
        return is_for(self.server.server_port, self.headers.get("Host", ""))

    def _may(self, given: str) -> bool:
        token = self.server.token
        if not token:
            return True
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        except CookieError:
            cookie = None
        brought = (given, cookie.value if cookie else "")
        return any(hmac.compare_digest(each.encode(), token.encode()) for each in brought)

    def _say(self, status: HTTPStatus, words: str) -> None:
        self._send(status, render_problem(words))

    def _send(self, status: HTTPStatus, text: str, kind: str = _HTML) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        if self.server.token and status is HTTPStatus.OK:
            rules = "HttpOnly; SameSite=Strict; Path=/"
            self.send_header("Set-Cookie", f"{_COOKIE}={self.server.token}; {rules}")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: an address may have a token."""
