"""What metrics are called, what their values are, and JSON lines; no JVM."""

from __future__ import annotations

import json
import logging
import re
import urllib.error
import urllib.request
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from prometheus_client.parser import text_string_to_metric_families

from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import FailureReason, Manifest, StageManifest, StageReport
from absflow.protocol.coordinator.messages import WriteAbort
from absflow.protocol.event_time import EventTime
from absflow.protocol.load import Backlog, Load
from absflow.protocol.watermarks import InputTime, StageTime
from absflow.spark.control.progress import Progress, SinkProgress, StageProgress
from absflow.spark.control.telemetry import of_progress, spark_name
from absflow.telemetry.coordinator import aborted, completed
from absflow.telemetry.happenings import (
    BatchRan,
    Happening,
    JobEnded,
    JobStarted,
    Published,
    QueryRestarted,
    Restored,
    StageDone,
    Step,
)
from absflow.telemetry.lines import JsonFormatter, log, set_format
from absflow.telemetry.metrics import Tally, measured, newest
from absflow.telemetry.names import ATTRIBUTES, METRICS, MetricKind, Sample
from absflow.telemetry.prometheus import Histograms, MetricsServer, text_of

SECOND = 1_000_000
TIME = EventTime(StageTime({"a": InputTime(5 * SECOND), "b": InputTime(8 * SECOND)}, 5 * SECOND))
LOAD = Load(0.5, 0.25, (Backlog("a", 1, 20, 300, 4_000),))
REPORT = StageReport("x", 7, 3, bytes_changed=10, keys_total=4, bytes_total=40, time=TIME)
DONE = completed(
    Manifest(7, 6, 1_000, (StageManifest(REPORT, (7,), load=LOAD),)), None, 1, 3_000, (2_500, 3_000)
)
FAILED = aborted(WriteAbort(Barrier(8, 7, 7, 4_000), FailureReason.EXPIRED), None, 1, 5_000)
HAPPENED: tuple[Happening, ...] = (
    JobStarted("file:/job", 1, 1, 0),
    Restored("file:/job#6", 2, 12, (Step("plan", 0, 500),)),
    StageDone(replace(REPORT, rows_out=30)),
    StageDone(replace(REPORT, rows_out=None)),
    BatchRan("x", 40),
    DONE,
    FAILED,
    Published("out", 7, 6, 1, 0, 3_000, 3_200),
    QueryRestarted(("x", "y"), "stages 'x', 'y'"),
    JobEnded("a newer driver", fenced=True),
)


def progress(watermark: datetime | None) -> Progress:
    stage = StageProgress(3, 500, 10.0, LOAD, watermark, 2, 1)
    return Progress(7, 1, (8,), {"x": stage}, sinks={"out": SinkProgress(6, 1, 2.5, 3, "down")})


def values(samples: list[Sample]) -> dict[tuple[object, ...], float]:
    return {(s.name, *s.labels.values()): s.value for s in samples}


def test_a_metric_has_one_name_in_three_spellings() -> None:
    """With the unit as suffix where it is one of Prometheus' base units."""
    assert len({metric.otel for metric in METRICS.values()}) == len(METRICS)
    suffixes = {"s": "_seconds", "By": "_bytes"}
    for name, metric in METRICS.items():
        assert re.fullmatch(r"absflow(\.[a-z_]+)+", metric.otel)
        assert name.endswith(suffixes.get(metric.unit, "")), metric
        assert metric.shown.endswith("_total") is (metric.kind is MetricKind.COUNTER)
        assert set(metric.labels) <= ATTRIBUTES.keys()
        assert name.split("_")[:2] == metric.otel.split(".")[:2]


def test_every_sample_is_of_a_metric_with_its_labels() -> None:
    tally = Tally(["x"])
    for happening in HAPPENED:
        tally.add(happening)
    now = of_progress(progress(datetime(2026, 1, 1, tzinfo=timezone.utc)), 2_000_000_000)
    histograms = [sample for h in HAPPENED for sample in measured(h)]
    for sample in (*tally.samples(), *now, *histograms):
        metric = METRICS[sample.name]
        assert sample.labels.keys() <= set(metric.labels), sample
        assert (sample in histograms) is (metric.kind is MetricKind.HISTOGRAM)
    assert {METRICS[s.name] for s in histograms} == {
        metric for metric in METRICS.values() if metric.kind is MetricKind.HISTOGRAM
    }


def test_a_driver_counts_from_zero() -> None:
    """Checkpoints by their end, rows by reports; and an abort counts until one completes."""
    tally = Tally(["x"])
    before = values(tally.samples())
    assert before["absflow_checkpoint", "completed", "checkpoint"] == 0
    assert before["absflow_restart", "x"] == before["absflow_fence",] == 0
    for happening in (*HAPPENED, FAILED):
        tally.add(happening)
    after = values(tally.samples())
    assert after["absflow_checkpoint", "completed", "checkpoint"] == 1
    assert after["absflow_checkpoint", "aborted", "checkpoint", "EXPIRED"] == 2
    assert after["absflow_checkpoint_aborted_since",] == 2
    assert after["absflow_stage_rows", "x", "out"] == 30
    assert after["absflow_restart", "x"] == after["absflow_restart", "y"] == 1
    assert after["absflow_restore",] == after["absflow_fence",] == 1
    assert after["absflow_checkpoint_last_completed_duration_seconds",] == 2
    assert after["absflow_watermark_drift_seconds", "x", "b"] == 3
    assert after["absflow_checkpoint_size_bytes", "x", "changed"] == 10
    assert after["absflow_checkpoint_size_bytes", "x", "total"] == 40
    tally.add(DONE)
    assert values(tally.samples())["absflow_checkpoint_aborted_since",] == 2  # it is no newer one


def test_what_is_now_takes_the_place_of_what_the_checkpoint_says() -> None:
    tally = Tally(["x"])
    tally.add(DONE)
    now = of_progress(progress(datetime.fromtimestamp(100, timezone.utc)), 160)
    found = values(newest([*tally.samples(), *now]))
    assert found["absflow_watermark_timestamp_seconds", "x"] == 100
    assert found["absflow_watermark_lag_seconds", "x"] == 60
    assert found["absflow_channel_backlog_age_seconds", "x", "a"] == 4
    assert found["absflow_late_rows", "x", "behind"] == 2
    assert found["absflow_late_rows", "x", "emitted"] == 1
    assert found["absflow_sink_published_lag_seconds", "out"] == 2.5
    assert found["absflow_sink_waiting", "out"] == 1
    names = {spark_name(Sample(name, 0)) for name, *_ in found}
    assert "checkpoint.last_completed.id" in names
    backlog = Sample("absflow_channel_backlog_rows", 0, {"input": "a", "stage": "x"})
    assert spark_name(backlog) == "channel.backlog.rows.x.a"


def test_histograms_are_those_of_prometheus() -> None:
    """A bucket has all values up to its bound, which belongs to it."""
    histograms = Histograms()
    for seconds in (0.005, 0.006, 3, 9_999):
        labels = {"stage": "x"}
        histograms.record(Sample("absflow_stage_batch_duration_seconds", seconds, labels))
    (family,) = text_string_to_metric_families(text_of([], histograms).decode())
    assert family.type == "histogram"
    found = {(s.name.rpartition("_")[2], s.labels.get("le")): s.value for s in family.samples}
    assert found["bucket", "0.005"] == 1
    assert found["bucket", "0.01"] == found["bucket", "2.5"] == 2
    assert found["bucket", "5.0"] == 3
    assert found["bucket", "+Inf"] == found["count", None] == 4
    assert found["sum", None] == pytest.approx(10_002.011)


def ask(url: str, **headers: str) -> tuple[int, str]:
    try:
        asked = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_an_endpoint_answers_this_machine_and_for_metrics_only() -> None:
    """And says that it cannot, where a value cannot be read."""
    texts = iter([b"absflow_attempt 1.0\n"])
    server = MetricsServer("127.0.0.1", 0, lambda: next(texts))
    try:
        assert ask(server.url) == (200, "absflow_attempt 1.0\n")
        assert ask(server.url)[0] == 500
        assert ask(server.url, Host="evil.example")[0] == 421
        assert ask(server.url.replace("/metrics", "/"))[0] == 404
    finally:
        server.close()


def test_a_line_of_json_has_the_words_and_the_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Once; and what other parts say is JSON, too, with the stack of an error."""
    set_format("json")
    set_format("json")  # another job of this process
    try:
        log(DONE, "flights", 2)
        raise ValueError("größer\nals 1")
    except ValueError:
        logging.getLogger("absflow.spark").warning("%s failed", "it", exc_info=True)
    finally:
        set_format("text")
    logger = logging.getLogger("absflow")
    assert not any(isinstance(each.formatter, JsonFormatter) for each in logger.handlers)
    assert logger.propagate
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert datetime.fromisoformat(first.pop("time").replace("Z", "+00:00")).tzinfo
    assert first == {
        "level": "INFO",
        "logger": "absflow.job",
        "message": "checkpoint 7 completed in 2,000 ms: 0 keys changed, 10 bytes",
        "event": "checkpoint.completed",
        "job": "flights",
        "attempt": 2,
        "checkpoint_id": 7,
        "kind": "CHECKPOINT",
        "base_id": 6,
        "duration_ms": 2000,
        "overtaken": False,
        "rows_changed": 0,
        "bytes_changed": 10,
    }
    assert second["message"] == "it failed"
    assert second["exception"].endswith("ValueError: größer\nals 1")
