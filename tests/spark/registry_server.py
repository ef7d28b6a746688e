"""A real schema registry for the tests: Apicurio's, which has Confluent's interface, in memory.

Its archive comes from the Java registry as the broker's jars do. 2.6 is the last that runs on
Java 17.
"""

from __future__ import annotations

import base64
import os
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kafka_broker import jars, java
from processes import answers, free_ports, servers

__all__ = ["registry", "with_password"]

_APICURIO = "io.apicurio:apicurio-registry-app:2.6.13.Final:all:tar.gz"
_START_S = 90


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """The URL of one that runs for the time of a block.

    Raises:
        RuntimeError: it did not come up; with the end of its log.
    """
    (archive,) = jars({_APICURIO: False}, folder)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (port,) = free_ports(1)
    command = [java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    classes = os.pathsep.join(str(folder / each) for each in ("*", "lib/*"))
    command += ["-cp", classes, "io.quarkus.runner.GeneratedMain"]
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with servers({"registry": command}, folder, lambda: answers(f"{url}/subjects"), _START_S):
        yield url


@contextmanager
def with_password(url: str, user: str, password: str) -> Iterator[str]:
    """The URL of a proxy that hands on to a registry what comes with a user's password."""
    due = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    host, path = url.partition("/apis")[::2]

    class Proxy(BaseHTTPRequestHandler):
        def _hand_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
            if self.headers.get("Authorization") != due:
                self._answer(401, b'{"error_code": 40101, "message": "who are you?"}')
                return
            kept = {k: v for k, v in self.headers.items() if k in ("Accept", "Content-Type")}
            asked = urllib.request.Request(host + self.path, body, kept, method=self.command)
            try:
                with urllib.request.urlopen(asked, timeout=30) as found:
                    self._answer(found.status, found.read())
            except urllib.error.HTTPError as error:
                self._answer(error.code, error.read())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _hand_on

        def log_message(self, *_: object) -> None:
            """The tests' output is not for this."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/apis{path}"
    finally:
        server.shutdown()
        server.server_close()
