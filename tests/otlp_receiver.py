"""A receiver of OTLP over HTTP, as a collector is one: for what the real exporter sends.

One that is slow answers nobody until it is closed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PATIENCE_S = 60


class Receiver(ThreadingHTTPServer):
    """What it has got: spans, and the newest value of each metric by name and attributes."""

    daemon_threads = True

    def __init__(self, *, slow: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.changed = threading.Condition()
        self.spans: list[Span] = []
        self.values: dict[str, dict[tuple[tuple[str, str], ...], Any]] = {}
        self.units: dict[str, str] = {}
        self.services: set[str] = set()
        self.requests = 0
        self.slow = slow
        self.let_go = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def children(self, span: Span) -> list[Span]:
        return [each for each in self.spans if each.parent_span_id == span.span_id]

    def wait(self, met: Any, patience_s: float = PATIENCE_S) -> None:
        """Until a condition over what has come is met."""
        deadline = time.monotonic() + patience_s
        with self.changed:
            while not met():
                left = deadline - time.monotonic()
                assert left > 0, (sorted(self.values), [span.name for span in self.spans])
                self.changed.wait(left)

    def take(self, path: str, body: bytes) -> None:
        with self.changed:
            self.requests += 1
            if path == "/v1/traces":
                self._take_spans(ExportTraceServiceRequest.FromString(body))
            elif path == "/v1/metrics":
                self._take_metrics(ExportMetricsServiceRequest.FromString(body))
            self.changed.notify_all()

    def _take_spans(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            self.services.add(attributes(resource.resource)["service.name"])
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def _take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            for metric in (m for scope in resource.scope_metrics for m in scope.metrics):
                data = getattr(metric, metric.WhichOneof("data"))
                self.units[metric.name] = metric.unit
                found = self.values.setdefault(metric.name, {})
                for point in data.data_points:
                    found[tuple(sorted(attributes(point).items()))] = point


def attributes(message: Any) -> dict[str, Any]:
    """The attributes of a resource, a span or a point; of a list its values."""
    return {each.key: _plain(each.value) for each in message.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    return getattr(value, kind)


def value_of(point: Any) -> float:
    return float(getattr(point, point.WhichOneof("value")))


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.slow:
            with self.server.changed:
                self.server.requests += 1
                self.server.changed.notify_all()
            self.server.let_go.wait()
        else:
            self.server.take(self.path, body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def receiver(*, slow: bool = False) -> Iterator[Receiver]:
    """One that runs for the time of a block."""
    server = Receiver(slow=slow)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.let_go.set()
        server.shutdown()
        server.server_close()
        thread.join()
