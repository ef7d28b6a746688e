"""What the real exporters send, and that nobody waits for a collector that does not take it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from otlp_receiver import attributes, receiver, value_of

from absflow.errors import SettingsError
from absflow.telemetry import otel
from absflow.telemetry.names import Sample
from absflow.telemetry.otel import OpenTelemetry
from absflow.telemetry.spans import Span

SPAN = Span(
    "checkpoint",
    1_000,
    1_500,
    {"absflow.checkpoint.id": 7},
    (
        Span("stage", 1_000, 1_200, {"absflow.stage": "a"}, (Span("sync", 1_000, 1_100),)),
        Span("finalise", 1_400, 1_500),
    ),
    error="no report from b",
)
SAMPLES = [
    Sample("absflow_checkpoint_pending", 2),
    Sample("absflow_state_keys", 12, {"stage": "a"}),
    Sample("absflow_checkpoint", 3, {"outcome": "aborted", "error_type": "EXPIRED"}),
]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Soon sent, and only what a test says of the environment."""
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    yield
    for thread in threading.enumerate():
        if thread.name == "absflow-otel-close":
            thread.join()


def test_a_collector_gets_metrics_and_trees_of_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """By OpenTelemetry's names, units and attributes, with the times that the spans have."""
    with receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        sent = OpenTelemetry("flights", 3, "1", lambda: SAMPLES)
        sent.end(SPAN)
        sent.record(Sample("absflow_checkpoint_duration_seconds", 0.3, {"kind": "savepoint"}))
        collector.wait(lambda: len(collector.spans) == 4)
        collector.wait(lambda: "absflow.checkpoint.duration" in collector.values)
        sent.close()
    (root,) = collector.named("checkpoint")
    assert collector.services == {"flights"}
    assert attributes(root) == {
        "absflow.job": "flights",
        "absflow.attempt": 3,
        "absflow.checkpoint.id": 7,
    }
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (10**9, 15 * 10**8)
    assert root.status.message == "no report from b"
    assert not root.parent_span_id
    stage, finalise = collector.children(root)
    assert [stage.name, finalise.name] == ["stage", "finalise"]
    assert [child.name for child in collector.children(stage)] == ["sync"]
    assert len({span.trace_id for span in collector.spans}) == 1
    job = ("absflow.job", "flights")
    (pending,) = collector.values["absflow.checkpoint.pending"].items()
    assert (pending[0], value_of(pending[1])) == ((job,), 2)
    assert [*collector.values["absflow.state.keys"]] == [(job, ("absflow.stage", "a"))]
    (count,) = collector.values["absflow.checkpoint.count"]
    assert count == (job, ("error.type", "EXPIRED"), ("outcome", "aborted"))
    (duration,) = collector.values["absflow.checkpoint.duration"].values()
    assert (duration.count, duration.sum) == (1, 0.3)
    assert collector.units["absflow.checkpoint.duration"] == "s"


def test_the_environment_names_the_service_and_what_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
        sent = OpenTelemetry("flights", 1, "1", lambda: SAMPLES)
        sent.end(SPAN)
        collector.wait(lambda: len(collector.spans) == 4)
        sent.close()
        sent.wait(60)
    assert collector.services == {"mine"}
    assert collector.values == {}


def test_what_is_left_at_the_end_still_goes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the back of whoever has ended the job."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    with receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        sent = OpenTelemetry("flights", 1, "1", lambda: SAMPLES)
        sent.end(SPAN)
        sent.close()
        collector.wait(lambda: len(collector.spans) == 4)
        collector.wait(lambda: "absflow.state.keys" in collector.values)


@pytest.mark.parametrize("slow", [True, False])
def test_a_collector_that_hangs_or_refuses_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slow: bool
) -> None:
    """Thousands of spans are dropped, the end comes at once, and the exporter says why."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600" if slow else "1")
    caplog.set_level(logging.ERROR)
    with receiver(slow=slow) as collector:
        url = collector.url
        if not slow:
            collector.shutdown()
            collector.server_close()  # so nobody listens there
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        sent = OpenTelemetry("flights", 1, "1", lambda: SAMPLES)
        for _ in range(3_000):
            sent.end(SPAN)
        if slow:
            collector.wait(lambda: collector.requests >= 1)
        sent.close()
        assert sent._closing.is_alive() or not slow  # it hangs there, and not here
        collector.let_go.set()
        sent.wait(60)
    assert collector.spans == []


def test_what_is_not_there_is_said_before_a_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    otel.check()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")
    with pytest.raises(SettingsError, match=r"'carrier-pigeon' \(as OTEL_EXPORTER_OTLP_PROTOCOL"):
        otel.check()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    otel.check()
    monkeypatch.setattr(otel, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'absflow\[otel\]'"):
        otel.check()
