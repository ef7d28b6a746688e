"""An S3 server for the tests on loopback: moto's, with its requests counted and failed as asked.

``python s3_server.py PORT`` serves until it is ended. moto keeps objects in memory, lists at once
what was put, takes uploads in parts, deletes many at once, and refuses a conditional PUT where S3
does. :class:`S3Server` starts it, and talks to it.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import answers, free_ports, servers
from s3_faults import Fault, answered

KEY, SECRET = "tests", "nobody's secret"
START_S = 60
# Requests of the tests to the server itself.
_CONTROL = "/_absflow/"


class S3Server:
    """A server that runs.

    Attributes:
        endpoint: its address.
    """

    def __init__(self, endpoint: str) -> None:
        """Of the server at ``endpoint``."""
        self.endpoint = endpoint

    def bucket(self, name: str) -> str:
        """Make a bucket; its URI for Hadoop."""
        self._ask(f"/{name}", method="PUT")
        return f"s3a://{name}"

    def counts(self) -> Counter[tuple[str, str]]:
        """The requests since it was asked last, by method and by path without numbers."""
        return self._counted("counts")

    def fail(self, method: str, path: str, times: int, fault: Fault = Fault.REFUSED) -> None:
        """Let the next requests of this kind go wrong.

        Args:
            method: of HTTP, or LIST.
            path: a regular expression that is looked for in the path.
            times: so many of them.
            fault: what becomes of them.
        """
        asked = json.dumps([method, path, times, fault.value]).encode()
        self._ask(f"{_CONTROL}fail", asked, "POST")

    def fail_each(self, fault: Fault) -> None:
        """Let one request of each kind go wrong: of each method and path without numbers."""
        self._ask(f"{_CONTROL}fail-each", json.dumps(fault.value).encode(), "POST")

    def failed(self) -> Counter[tuple[str, str]]:
        """Which went wrong since it was asked last, as :meth:`counts`."""
        return self._counted("failed")

    def conf(self) -> dict[str, str]:
        """The Spark conf by which Hadoop finds it."""
        options = {
            "endpoint": self.endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "access.key": KEY,
            "secret.key": SECRET,
            "connection.ssl.enabled": "false",
        }
        return {f"spark.hadoop.fs.s3a.{name}": value for name, value in options.items()}

    def _counted(self, what: str) -> Counter[tuple[str, str]]:
        found = json.loads(self._ask(f"{_CONTROL}{what}"))
        return Counter({(method, path): count for method, path, count in found})

    def _ask(self, path: str, data: bytes | None = None, method: str = "GET") -> bytes:
        request = urllib.request.Request(f"{self.endpoint}{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """A server in a process of its own for the time of a block; its log is in ``folder``.

    Raises:
        RuntimeError: it did not come up; with the end of its log.
    """
    (port,) = free_ports(1)
    server = S3Server(f"http://127.0.0.1:{port}")
    command, ready = [sys.executable, __file__, str(port)], f"{server.endpoint}{_CONTROL}counts"
    with servers({"s3": command}, folder, lambda: answers(ready), START_S):
        yield server


class Watched:
    """moto's application, with what is counted and failed in front of it."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        """Around ``application``."""
        self._application = application
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._due: list[list[Any]] = []
        self._of_each: Fault | None = None
        self._failed: Counter[tuple[str, str]] = Counter()
        self._listed: dict[str, list[bytes]] = {}

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        path = environ["PATH_INFO"]
        if path.startswith(_CONTROL):
            start("200 OK", [("Content-Type", "application/json")])
            return [self._answer(path.removeprefix(_CONTROL), environ)]
        method, what = _kind(environ)
        kind = method, without_numbers(what)
        url = f"{what}?{environ['QUERY_STRING']}" if method == "LIST" else ""
        with self._lock:
            self._counts[kind] += 1
            fault = self._fault(method, what, kind, url)
            if fault is not None:
                self._failed[kind] += 1
            stale = self._listed.get(url, [])
        if fault is Fault.STALE:
            start("200 OK", [("Content-Type", "application/xml")])
            return stale
        if fault is not None:
            return answered(fault, self._application, environ, start)
        answer = self._application(environ, start)
        if url:
            answer = list(answer)
            with self._lock:
                self._listed[url] = answer
        return answer

    def _fault(self, method: str, what: str, kind: tuple[str, str], url: str) -> Fault | None:
        """What is to become of a request; the lock is held."""
        due = next((d for d in self._due if d[0] == method and re.search(d[1], what)), None)
        if due is not None:
            due[2] -= 1
            self._due = [each for each in self._due if each[2]]
            return Fault(due[3])
        if self._of_each is None or kind in self._failed:
            return None
        return self._of_each if self._of_each is not Fault.STALE or url in self._listed else None

    def _answer(self, asked: str, environ: dict[str, Any]) -> bytes:
        with self._lock:
            if length := int(environ.get("CONTENT_LENGTH") or 0):
                given = json.loads(environ["wsgi.input"].read(length))
                if asked == "fail":
                    self._due.append(given)
                else:
                    self._of_each = Fault(given)
                return b"null"
            of = self._failed if asked == "failed" else self._counts
            found = [[*kind, count] for kind, count in of.items()]
            of.clear()
            return json.dumps(found).encode()


def _kind(environ: dict[str, Any]) -> tuple[str, str]:
    """The method, or LIST, and the path: of a listing the one that is listed."""
    method, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"]
    if method == "GET" and "list-type" in query:
        prefix = re.search(r"(?:^|&)prefix=([^&]*)", query)
        found = urllib.request.unquote(prefix[1]) if prefix else ""  # type: ignore[attr-defined]
        return "LIST", f"{path.rstrip('/')}/{found}"
    return method, path


def without_numbers(path: str) -> str:
    """So that paths of one purpose are one: without UUIDs, too."""
    path = re.sub(
        "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|(?<=-)[0-9a-f]{8}$", "#", path
    )
    return re.sub("[0-9]+", "#", path)


def main(port: int) -> None:
    """Serve."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, run_simple

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, *_: object) -> None:
            """Say nothing of what went well."""

    application = Watched(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=Quiet)


if __name__ == "__main__":
    main(int(sys.argv[1]))
