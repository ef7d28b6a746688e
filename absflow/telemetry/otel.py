"""Metrics and spans to OpenTelemetry, as the ``OTEL_*`` environment variables say.

The SDK has a thread for the metrics and one for the spans, which alone talk to the collector. What
waits for them is bounded; what does not fit is dropped. So a collector that hangs holds nobody up:
who records a value or ends a span only puts it into memory, and the end of a job does not wait.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from absflow.errors import SettingsError
from absflow.telemetry.names import ATTRIBUTES, BUCKETS, METRICS, Metric, MetricKind, Sample
from absflow.telemetry.spans import Span

__all__ = ["OpenTelemetry", "check"]

_LOG = logging.getLogger(__name__)
_SCOPE = "absflow"
_SIGNALS = ("METRICS", "TRACES")
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_NS = 1_000_000


def check() -> None:
    """Refuse what an :class:`OpenTelemetry` would be refused.

    Raises:
        SettingsError: a package is missing, or the environment asks for what there is not.
    """
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise _not_installed("the package opentelemetry-sdk")
    for signal in _SIGNALS:
        _exporter(signal)


class OpenTelemetry:
    """What one driver's run of a job sends."""

    def __init__(
        self, job: str, attempt: int, version: str, samples: Callable[[], Iterable[Sample]]
    ) -> None:
        """Begin to send the samples, every ``OTEL_METRIC_EXPORT_INTERVAL``.

        Args:
            job: the job's name; of the service, too, unless the environment names it.
            attempt: the job's attempt.
            version: absflow's.
            samples: all gauges and counters as they are now.

        Raises:
            SettingsError: as :func:`check`.
        """
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        to_metrics, to_traces = (_exporter(signal) for signal in _SIGNALS)
        resource = _resource(job)
        readers = [PeriodicExportingMetricReader(to_metrics.load()())] if to_metrics else []
        self._meters = MeterProvider(
            metric_readers=readers, resource=resource, shutdown_on_exit=False
        )
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        if to_traces:
            self._tracers.add_span_processor(BatchSpanProcessor(to_traces.load()()))
        self._tracer = self._tracers.get_tracer(_SCOPE, version)
        self._of = {"absflow.job": job}
        self._of_spans = {**self._of, "absflow.attempt": attempt}
        self._samples = samples
        self._closing = threading.Thread(target=self._close, name="absflow-otel-close", daemon=True)
        meter = self._meters.get_meter(_SCOPE, version)
        self._histograms = {
            metric.name: meter.create_histogram(
                metric.otel,
                unit=metric.unit,
                description=metric.words,
                explicit_bucket_boundaries_advisory=BUCKETS,
            )
            for metric in METRICS.values()
            if metric.kind is MetricKind.HISTOGRAM
        }
        for metric in METRICS.values():
            self._observe(meter, metric)

    def record(self, sample: Sample) -> None:
        """Add a value to a histogram."""
        self._histograms[sample.name].record(sample.value, self._attributes(sample.labels))

    def end(self, span: Span) -> None:
        """A span is over, and all of its children are."""
        from opentelemetry.context import Context

        self._span(span, Context(), self._of_spans)

    def close(self) -> None:
        """Send what there is and stop, in a thread of its own."""
        self._closing.start()

    def wait(self, patience_s: float) -> None:
        """Wait until that is done, if it was begun."""
        if self._closing.is_alive():
            self._closing.join(patience_s)

    def _close(self) -> None:
        for what, shutdown in (
            ("metrics", self._meters.shutdown),
            ("spans", self._tracers.shutdown),
        ):
            try:
                shutdown()
            except Exception:  # of any exporter; the job has ended
                _LOG.warning("the last %s could not be sent", what, exc_info=True)

    def _observe(self, meter: Any, metric: Metric) -> None:
        """Have a gauge or a counter looked at whenever metrics are sent."""
        from opentelemetry.metrics import CallbackOptions, Observation

        def look(_: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(sample.value, self._attributes(sample.labels))
                for sample in self._samples()
                if sample.name == metric.name
            ]

        create = {
            MetricKind.GAUGE: meter.create_observable_gauge,
            MetricKind.COUNTER: meter.create_observable_counter,
        }.get(metric.kind)
        if create is not None:
            create(metric.otel, [look], unit=metric.unit, description=metric.words)

    def _attributes(self, labels: Mapping[str, str]) -> dict[str, str]:
        return self._of | {ATTRIBUTES[name]: value for name, value in labels.items()}

    def _span(self, span: Span, parent: Any, also: Mapping[str, Any]) -> None:
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        said = {**also, **span.attributes}
        begin_ns = span.begin_ms * _NS
        made = self._tracer.start_span(span.name, parent, attributes=said, start_time=begin_ns)
        within = set_span_in_context(made, parent)
        for child in span.children:
            self._span(child, within, self._of)
        if span.error:
            made.set_status(Status(StatusCode.ERROR, span.error))
        made.end(span.end_ms * _NS)


def _resource(job: str) -> Any:
    """What the environment says of the service; its name is the job's if that names none."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    found = Resource.create()
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: job}))
    return found


def _exporter(signal: str) -> EntryPoint | None:
    """Where the exporter is that the environment asks for; None for none."""
    variable = f"OTEL_{signal}_EXPORTER"
    chosen = os.environ.get(variable, "").strip() or "otlp"
    if chosen == "none":
        return None
    if chosen == "otlp":
        variables = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        given = (name for name in variables if os.environ.get(name, "").strip())
        variable = next(given, variables[1])
        protocol = os.environ.get(variable, "").strip() or "http/protobuf"
        chosen = _PROTOCOLS.get(protocol, protocol)
    found = entry_points(group=f"opentelemetry_{signal.lower()}_exporter", name=chosen)
    for entry in found:
        return entry
    raise _not_installed(f"the exporter {chosen!r} (as {variable} says)")


def _not_installed(what: str) -> SettingsError:
    return SettingsError(
        f"spark.absflow.telemetry.otel is true, but {what} is not installed; "
        "pip install 'absflow[otel]' on the driver"
    )
