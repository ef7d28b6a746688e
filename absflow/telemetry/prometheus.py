"""Metrics in Prometheus' text format, and a server of them for a running driver."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family

from absflow.telemetry.loopback import is_for, is_local
from absflow.telemetry.names import BUCKETS, METRICS, MetricKind, Sample

__all__ = ["CONTENT_TYPE", "Histograms", "MetricsServer", "text_of"]

_LOG = logging.getLogger(__name__)
_LEAST_WAIT_S = 0.1


class Histograms:
    """What was measured, in buckets; any thread may add and look."""

    def __init__(self) -> None:
        """Nothing was."""
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, tuple[tuple[str, str], ...]], list[int]] = {}
        self._sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def record(self, sample: Sample) -> None:
        """Add a value."""
        key = sample.name, tuple(sample.labels.items())
        with self._lock:
            counts = self._counts.setdefault(key, [0] * (len(BUCKETS) + 1))
            counts[bisect_left(BUCKETS, sample.value)] += 1
            self._sums[key] = self._sums.get(key, 0.0) + sample.value

    def families(self) -> list[Family]:
        """As the library has them."""
        found: dict[str, Family] = {}
        bounds = [*(repr(bound) for bound in BUCKETS), "+Inf"]
        with self._lock:
            for (name, labels), counts in self._counts.items():
                words = METRICS[name].words
                family = found.setdefault(name, Family(name, words, MetricKind.HISTOGRAM.value))
                total = 0
                for bound, count in zip(bounds, counts, strict=True):
                    total += count
                    family.add_sample(f"{name}_bucket", {**dict(labels), "le": bound}, total)
                family.add_sample(f"{name}_count", dict(labels), total)
                family.add_sample(f"{name}_sum", dict(labels), self._sums[name, labels])
        return [*found.values()]


def text_of(samples: Iterable[Sample], histograms: Histograms | None = None) -> bytes:
    """All of it as Prometheus reads it; a metric without a value is not named."""
    registry = CollectorRegistry()
    registry.register(_Collector(samples, histograms))
    return bytes(generate_latest(registry))


class _Collector:
    """A collector, as the library calls it."""

    def __init__(self, samples: Iterable[Sample], histograms: Histograms | None) -> None:
        self._families: dict[str, Family] = {}
        for sample in samples:
            metric = METRICS[sample.name]
            family = self._families.setdefault(
                metric.name, Family(metric.name, metric.words, metric.kind.value)
            )
            family.add_sample(metric.shown, dict(sample.labels), sample.value)
        self._histograms = histograms.families() if histograms else []

    def collect(self) -> Iterator[Any]:
        yield from self._families.values()
        yield from self._histograms


class MetricsServer(ThreadingHTTPServer):
    """Answers ``/metrics`` while it serves, in a thread of its own.

    On loopback it answers nobody who means another machine; elsewhere everybody, for the figures
    have names of stages, and no state.
    """

    daemon_threads = True
    # A driver that follows another on this machine need not wait for the system to forget it.
    allow_reuse_address = True

    def __init__(self, host: str, port: int, text: Callable[[], bytes]) -> None:
        """Listen and answer.

        Args:
            host: the address to listen on.
            port: the port; 0 for one that is free.
            text: the metrics as they are now.

        Raises:
            OSError: somebody else listens there, or this machine has no such address.
        """
        super().__init__((host, port), _Handler)
        self.text = text
        self.is_local = is_local(host)
        self.url = f"http://{host}:{self.server_port}/metrics"
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_LEAST_WAIT_S,), name="absflow-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An answer that somebody did not wait for is no news."""
        _LOG.debug("no answer for %s", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version = "absflow"
    sys_version = ""
    timeout = 10  # of a client that says nothing

    def do_GET(self) -> None:
        """The metrics."""
        if self.server.is_local and not is_for(
            self.server.server_port, self.headers.get("Host", "")
        ):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"this server is not who you ask for\n")
        elif self.path.partition("?")[0] != "/metrics":
            self._send(HTTPStatus.NOT_FOUND, b"there is /metrics\n")
        else:
            self._answer()

    def _answer(self) -> None:
        try:
            text = self.server.text()
        except Exception:  # of whatever is asked for the values; the next scrape may do better
            _LOG.warning("the metrics could not be read", exc_info=True)
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, b"see the driver's log\n")
        else:
            self._send(HTTPStatus.OK, text, CONTENT_TYPE)

    def _send(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each scrape."""
