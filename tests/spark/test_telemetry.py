"""A running job as others see it: a collector, Prometheus, Spark's sinks, readers of its log."""

from __future__ import annotations

import json
import logging
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from chain import chain, check, conf, run, wait
from diamond import write_source
from failing import slow
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from otlp_receiver import Receiver, attributes, receiver, value_of
from processes import free_ports
from prometheus_client.parser import text_string_to_metric_families
from prometheus_server import await_alert
from pyspark.sql import SparkSession
from session import settings

import absflow
from absflow.spark.control import telemetry
from absflow.telemetry.lines import EVENTS, set_format
from absflow.telemetry.names import METRICS

pytestmark = pytest.mark.spark

ALL = {
    "telemetry__otel": "true",
    "telemetry__prometheus_port": "0",
    "telemetry__spark_metrics": "true",
    "log__format": "json",
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is sent or set is sent or set soon; afterwards lines are text again."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    monkeypatch.setattr(telemetry, "_LOOK_S", 0.5)
    yield
    set_format("text")


def url_in(said: str) -> str:
    """The endpoint that a log names."""
    (url,) = re.findall(r"metrics for Prometheus: (http://[\d.]+:\d+/metrics)", said)
    return url


def scraped(url: str) -> dict[tuple[Any, ...], float]:
    """What Prometheus would read."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def registry(spark: SparkSession) -> Any:
    """Where Spark's sinks read."""
    system = spark._jvm.org.apache.spark.SparkEnv.get().metricsSystem()
    fields = system.getClass().getDeclaredFields()
    (field,) = (f for f in fields if f.getType().getName().endswith(".MetricRegistry"))
    field.setAccessible(True)
    return field.get(system)


def reported(spark: SparkSession, folder: Path) -> dict[str, float]:
    """What Spark's CSV sink writes of absflow's, by name behind the application's."""
    folder.mkdir()
    given = spark._jvm.java.util.Properties()
    given.setProperty("directory", str(folder))
    spark._jvm.org.apache.spark.metrics.sink.CsvSink(given, registry(spark)).report()
    return {
        file.name.partition(".driver.")[2].removesuffix(".csv"): float(
            file.read_text().splitlines()[-1].rpartition(",")[2]
        )
        for file in folder.glob("*.driver.absflow.*.csv")
    }


def spans_of(collector: Receiver, name: str, key: str) -> Mapping[Any, Any]:
    return {attributes(span)[f"absflow.{key}"]: span for span in collector.named(name)}


def test_a_job_is_seen_by_all_who_listen(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While it runs; at its end they get the last of it, and then nothing is left."""
    write_source(tmp_path / "a", files=3, rows=60, seed=5)
    with receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with settings(spark, conf(tmp_path, **ALL)):
            running = chain(spark, tmp_path, bounded=False, mode="on-checkpoint").start()
            wait(lambda: running.progress().completed >= 2, running)
            wait(lambda: running.progress().sinks["out"].published >= 2, running)
            url = url_in(capsys.readouterr().err)
            # What is scraped may be a second old, and each of the two comes on a way of its own.
            wait(lambda: completed_at_least(2, scraped(url)), running)
            seen, progress = scraped(url), running.progress()
            csv = reported(spark, tmp_path / "csv")
            last = running.stop(savepoint=True)
        collector.wait(lambda: last in spans_of(collector, "checkpoint", "checkpoint.id"))
        collector.wait(lambda: last in spans_of(collector, "publish", "checkpoint.id"))
    check_scrape(seen, progress)
    assert csv["absflow.chain.attempt"] == 1
    assert csv["absflow.chain.checkpoint.last_completed.id"] >= 1
    assert csv["absflow.chain.state.keys.left"] == seen["absflow_state_keys", ("stage", "left")]
    assert "absflow.chain.channel.backlog.rows.tally.left" in csv
    check_spans(collector, last)
    check_values(collector)
    assert (
        spark._jvm.org.apache.spark.SparkEnv.get()
        .metricsSystem()
        .getSourcesByName("absflow.chain")
        .isEmpty()
    )
    assert not any("absflow.chain" in name for name in registry(spark).getNames())
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=60)


LAST_ID = ("absflow_checkpoint_last_completed_id",)
COMPLETED = ("absflow_checkpoint_total", ("kind", "checkpoint"), ("outcome", "completed"))


def completed_at_least(checkpoints: int, seen: Mapping[tuple[Any, ...], float]) -> bool:
    return min(seen.get(LAST_ID, 0), seen.get(COMPLETED, 0)) >= checkpoints


def check_scrape(seen: Mapping[tuple[Any, ...], float], progress: absflow.Progress) -> None:
    names = {name for name, *_ in seen}
    suffixes = {"_bucket", "_count", "_sum"}
    known = {m.shown for m in METRICS.values()}
    known |= {m.name + suffix for m in METRICS.values() for suffix in suffixes}
    assert names <= known
    assert seen["absflow_driver_running",] == seen["absflow_attempt",] == 1
    assert seen["absflow_checkpoint_interval_seconds",] == 1
    assert 2 <= seen[LAST_ID] <= progress.checkpoint_id
    assert 2 <= seen[COMPLETED] <= progress.completed
    rows = ("direction", "in"), ("stage", "tally")
    assert seen[("absflow_stage_rows_total", *rows)] <= progress.stages["tally"].total_rows
    assert seen["absflow_sink_published_id", ("sink", "out")] >= 1
    aligned = ("kind", "checkpoint"), ("mode", "aligned")
    assert seen[("absflow_checkpoint_duration_seconds_count", *aligned)] >= 1
    for stage in ("left", "tally"):
        of = ("stage", stage)
        assert 0 <= seen["absflow_stage_busy_ratio", of] <= 1
        assert seen["absflow_stage_batch_duration_seconds_count", of] >= 1
    assert seen["absflow_channel_backlog_rows", ("input", "left"), ("stage", "tally")] >= 0


def check_spans(collector: Receiver, last: int | None) -> None:
    """Each checkpoint in a trace of its own, with both stages and all of their phases."""
    found = spans_of(collector, "checkpoint", "checkpoint.id")
    assert last in found
    said = attributes(found[last])
    assert said["absflow.checkpoint.kind"] == "savepoint"
    assert said["absflow.checkpoint.outcome"] == "completed"
    assert said["absflow.job"] == "chain"
    for root in found.values():
        stages = [c for c in collector.children(root) if c.name == "stage"]
        assert sorted(attributes(s)["absflow.stage"] for s in stages) == ["left", "tally"]
        for stage in stages:
            phases = [phase.name for phase in collector.children(stage)]
            assert phases == ["start_delay", "alignment", "sync", "commit", "async"]
        assert any(child.name == "finalise" for child in collector.children(root))
    published = spans_of(collector, "publish", "checkpoint.id")
    assert published.keys() <= found.keys()
    assert attributes(published[last])["absflow.sink"] == "out"
    assert len({root.trace_id for root in [*found.values(), *published.values()]}) == len(
        [*found, *published]
    )


def check_values(collector: Receiver) -> None:
    """By the names of OpenTelemetry, those that every job has."""
    names = {metric.otel for metric in METRICS.values()}
    assert collector.values.keys() <= names
    keys = collector.values["absflow.state.keys"]
    stages = {dict(of)["absflow.stage"]: value_of(point) for of, point in keys.items()}
    assert stages.keys() == {"left", "tally"}
    assert all(value > 0 for value in stages.values())
    assert {dict(of)["absflow.job"] for of in keys} == {"chain"}


def test_a_restore_is_a_span_with_its_steps(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a driver that goes on where it was has none."""
    write_source(tmp_path / "a", files=2, rows=60, seed=5)
    first = run(spark, tmp_path)
    with receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        last = run(spark, tmp_path, telemetry__otel="true", restore__from="latest")
        collector.wait(lambda: collector.named("restore"))
        collector.wait(lambda: "absflow.restore.count" in collector.values)
        collector.wait(lambda: last in spans_of(collector, "checkpoint", "checkpoint.id"))
        (root,) = collector.named("restore")
        seen = collector.requests
        run(spark, tmp_path, telemetry__otel="true")
        collector.wait(lambda: collector.requests > seen)
        assert collector.named("restore") == [root]
    assert attributes(root)["absflow.restore.origin"].endswith(f"#{first}")
    assert attributes(root)["absflow.attempt"] == 2
    steps = collector.children(root)
    done = [step.name for step in steps]
    assert done == ["plan", *["read", "load", "positions"] * 2, "sinks"]
    assert attributes(steps[1])["absflow.stage"] == ["left"]
    (count,) = collector.values["absflow.restore.count"].values()
    assert value_of(count) in (0, 1)


def test_a_log_of_json_has_a_line_for_each_transition(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its fields; nothing is said twice, and nothing else is on the stream."""
    logging.getLogger("absflow").setLevel(logging.DEBUG)
    try:
        with settings(spark, conf(tmp_path, log__format="json")):
            write_source(tmp_path / "a", files=1, rows=60, seed=5)
            started = chain(spark, tmp_path, mode="on-checkpoint").start()
            assert started.await_termination(timeout=300)
    finally:
        logging.getLogger("absflow").setLevel(logging.NOTSET)
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line[:1] == "{"]
    lines = [line for line in said if "event" in line]
    assert {line["event"] for line in lines} <= EVENTS.keys()
    assert {(line["job"], line["attempt"]) for line in lines} == {("chain", 1)}
    assert all(line["level"] == logging.getLevelName(EVENTS[line["event"]]) for line in lines)
    last = started.finished_checkpoint
    mine = [line for line in lines if line.get("checkpoint_id") == last]
    counts = {each: sum(line["event"] == each for line in mine) for each in EVENTS}
    for event, count in {
        "checkpoint.triggered": 1,
        "stage.reported": 2,
        "stage.durable": 2,
        "checkpoint.finalising": 1,
        "checkpoint.completed": 1,
        "publication.done": 1,
        "job.finished": 1,
    }.items():
        assert counts[event] == count, (event, mine)
    assert [line["event"] for line in lines][-1] == "job.ended"


@pytest.mark.parametrize("slow", [True, False])
def test_a_job_does_not_wait_for_a_collector(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    """One that takes requests and answers none, and one that is not there: the answer is whole."""
    write_source(tmp_path / "a", files=3, rows=60, seed=5)
    with receiver(slow=slow) as collector:
        if not slow:
            collector.shutdown()
            collector.server_close()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600" if slow else "1")
        last = run(spark, tmp_path, telemetry__otel="true")
        if slow:
            collector.wait(lambda: collector.requests > 0)
        assert collector.spans == []
    check(spark, tmp_path, last, 3)


def test_a_port_that_is_taken_is_tried_again(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By a driver before this one, as a rule; the job runs meanwhile."""
    write_source(tmp_path / "a", files=1, rows=60, seed=5)
    caplog.set_level(logging.INFO, logger="absflow")
    (port,) = free_ports(1)
    given = conf(tmp_path, telemetry__prometheus_port=str(port))
    with socket.create_server(("127.0.0.1", port)) as taken, settings(spark, given):
        running = chain(spark, tmp_path, bounded=False).start()
        wait(lambda: running.progress().completed >= 1, running)
        assert "the endpoint for Prometheus failed; the job goes on" in caplog.text
        taken.close()
        wait(lambda: "metrics for Prometheus" in caplog.text, running)
        assert scraped(url_in(caplog.text))["absflow_attempt",] == 1
        running.stop()


def test_a_job_whose_checkpoints_fail_wakes_somebody(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a real Prometheus that scrapes its driver; and each of them is a span that has failed."""
    write_source(tmp_path / "a", files=2, rows=60, seed=5)
    (port,) = free_ports(1)
    given = conf(
        tmp_path,
        checkpoint__interval="500ms",
        checkpoint__timeout="100ms",
        checkpoint__tolerable_failed="1000",
        telemetry__prometheus_port=str(port),
        telemetry__otel="true",
    )
    with receiver() as collector, settings(spark, given):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        running = chain(spark, tmp_path, bounded=False, process=slow).start()
        await_alert("AbsflowCheckpointsAborted", port, tmp_path)
        seen = scraped(f"http://127.0.0.1:{port}/metrics")
        collector.wait(lambda: len(collector.named("checkpoint")) >= 2)
        running.stop()
    expired = ("error_type", "EXPIRED"), ("kind", "checkpoint"), ("outcome", "aborted")
    assert seen[("absflow_checkpoint_total", *expired)] >= 2
    span = collector.named("checkpoint")[0]
    assert span.status.code == Status.StatusCode.STATUS_CODE_ERROR
    assert attributes(span)["error.type"] == "EXPIRED"
    assert "no report from" in span.status.message
