"""Metrics and alerts: what Prometheus sees, and when it would wake somebody.

Rules are run by Prometheus' own ``promtool`` over series that are written down here; and a real
Prometheus scrapes ``absflow serve`` of a job whose checkpoints fail. The dashboard is read by the
types that Grafana publishes: Grafana itself is in no registry that the tests can ask.
"""

import json
import logging
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from commands_run import document
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families
from prometheus_server import ALERTS, await_alert, program
from storage_roots import end_driver
from test_serve_command import ask, served

from absflow.telemetry.lines import EVENTS
from absflow.telemetry.names import METRICS

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "monitoring" / "grafana.json"
RULES = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]


def scraped(root):
    with served(root) as server:
        status, headers, text = ask(server, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_figures_are_those_of_the_commands(small):
    found = scraped(small)
    status = document(small, "status")
    last = status["last_completed"]
    assert found["absflow_checkpoint_last_completed_id",] == last["checkpoint_id"] == 8
    assert found["absflow_driver_running",] == 1
    assert found["absflow_checkpoint_pending",] == len(status["pending"])
    summary = document(small, "history")["summary"]
    assert found["absflow_checkpoint_total", ("outcome", "aborted")] == summary["aborted"]
    for stage in last["stages"]:
        of = ("stage", stage["stage"])
        assert found["absflow_state_keys", of] == stage["keys_total"]
        for backlog in stage["backlogs"] or ():
            name = "absflow_channel_backlog_rows"
            assert found[name, ("input", backlog["input"]), of] == backlog["rows"]


def test_a_driver_that_has_ended_is_seen(tmp_path):
    from shared_roots import write_small_root

    root = write_small_root(tmp_path)
    end_driver(root)
    assert scraped(root)["absflow_driver_running",] == 0


def test_rules_and_dashboard_name_metrics_that_there_are():
    there = {metric.shown for metric in METRICS.values()}
    there |= {f"{metric.name}_bucket" for metric in METRICS.values()}
    for text in (*(rule["expr"] for rule in RULES), DASHBOARD.read_text()):
        assert set(re.findall(r"absflow_\w+", text)) <= there


def within(part, whole):
    """Whether all that a document says is in another, which may say more."""
    if isinstance(part, dict):
        return all(key in whole and within(value, whole[key]) for key, value in part.items())
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(within, part, whole))
    return part == whole


def test_grafana_knows_all_that_the_dashboard_says():
    register_default_plugins()
    given = json.loads(DASHBOARD.read_text())
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))
    assert within(given, read)
    wrong = json.loads(DASHBOARD.read_text().replace('"gridPos"', '"gridPlace"'))
    assert not within(wrong, json.loads(JSONEncoder().encode(Dashboard.from_json(wrong))))


def test_prometheus_can_read_what_the_dashboard_asks(tmp_path):
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    rules = [{"record": f"asked_{n}", "expr": expr} for n, expr in enumerate(asked)]
    assert len(rules) > 20
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    subprocess.run([program("promtool"), "check", "rules", str(file)], check=True)


def test_the_docs_have_every_event_and_every_alert():
    """That they have every metric is seen by tests/test_docs.py: it is generated."""
    said = (ROOT / "docs" / "monitoring.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+\.\w+)` \| ([A-Z]+) \|", said, re.MULTILINE))
    assert rows == {event: logging.getLevelName(level) for event, level in EVENTS.items()}
    assert re.findall(r"^\| `(Absflow\w+)` \|", said, re.MULTILINE) == [*dict.fromkeys(ALERTED)]


# For each rule series by which it fires after some minutes, and such by which it does not. What a
# driver says of its interval counts; without, the rule has its own.
RUNNING, LAST = "absflow_driver_running", "absflow_checkpoint_last_completed_id"
ENDED = "absflow_checkpoint_last_completed_timestamp_seconds"
INTERVAL = "absflow_checkpoint_interval_seconds"
BACKLOG = 'absflow_channel_backlog_age_seconds{stage="b", input="a"}'
LAG = 'absflow_watermark_lag_seconds{stage="a"}'
READ = 'absflow_stage_rows_total{stage="a", direction="in"}'
CASES = (
    (
        "AbsflowCheckpointOld",
        "13m",
        {RUNNING: "1x30", ENDED: "0x30"},
        {RUNNING: "0x30", ENDED: "0x30"},
    ),
    (
        "AbsflowCheckpointOld",
        "6m",
        {RUNNING: "1x30", ENDED: "0x30", INTERVAL: "60x30"},
        {RUNNING: "1x30", ENDED: "0x30", INTERVAL: "120x30"},
    ),
    ("AbsflowNoCheckpoint", "16m", {RUNNING: "1x30"}, {RUNNING: "1x30", LAST: "1x30"}),
    (
        "AbsflowCheckpointsAborted",
        "1m",
        {"absflow_checkpoint_aborted_since": "2x30"},
        {"absflow_checkpoint_aborted_since": "1x30"},
    ),
    ("AbsflowDriverEnded", "6m", {RUNNING: "0x30"}, {RUNNING: "1x30"}),
    (
        "AbsflowSinkBehind",
        "6m",
        {LAST: "9x30", 'absflow_sink_published_id{sink="out"}': "7x30"},
        {LAST: "9x30", 'absflow_sink_published_id{sink="out"}': "8x30"},
    ),
    (
        "AbsflowBacklogOld",
        "6m",
        {RUNNING: "1x30", BACKLOG: "61x30"},
        {RUNNING: "1x30", BACKLOG: "59x30"},
    ),
    (
        "AbsflowBacklogOld",
        "6m",
        {RUNNING: "1x30", INTERVAL: "10x30", BACKLOG: "11x30"},
        {RUNNING: "1x30", INTERVAL: "600x30", BACKLOG: "61x30"},
    ),
    (
        "AbsflowWatermarkStands",
        "20m",
        {'absflow_watermark_timestamp_seconds{stage="a"}': "5x30", LAST: "1+1x30"},
        {'absflow_watermark_timestamp_seconds{stage="a"}': "5+1x30", LAST: "1+1x30"},
    ),
    # It comes 48 s further in each minute; or the source is idle, so that it stands.
    (
        "AbsflowWatermarkLags",
        "25m",
        {LAG: "0+12x40", READ: "0+100x40"},
        {LAG: "0+60x40", READ: "100x40"},
    ),
    (
        "AbsflowWatermarkLags",
        "25m",
        {LAG: "0+60x40", READ: "0+1x40"},
        {LAG: "30x40", READ: "0+100x40"},
    ),
    (
        "AbsflowLateRows",
        "1m",
        {'absflow_checkpoint_late_rows{stage="a"}': "1x30"},
        {'absflow_checkpoint_late_rows{stage="a"}': "0x30"},
    ),
    (
        "AbsflowRetentionFails",
        "61m",
        {"absflow_retention_failing": "1x90"},
        {"absflow_retention_failing": "0x90"},
    ),
)
ALERTED = [case[0] for case in CASES]


def test_every_rule_has_a_case():
    assert [rule["alert"] for rule in RULES] == [*dict.fromkeys(ALERTED)]


@pytest.mark.parametrize(("alert", "at", "fires", "calm"), CASES)
def test_it_fires_when_it_must_and_else_does_not(alert, at, fires, calm, tmp_path):
    query = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": s, "values": values} for s, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": query,
                    "eval_time": at,
                    "exp_samples": [{"labels": "{}", "value": count}],
                }
            ],
        }
        for series, count in ((fires, 1), (calm, 0))
    ]
    file = tmp_path / "tests.yml"
    document = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}
    file.write_text(yaml.safe_dump(document))
    command = [program("promtool"), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_real_prometheus_fires(small, tmp_path):
    """The newest checkpoint of this job is of January, its driver may still run."""
    with served(small) as server:
        await_alert("AbsflowCheckpointOld", server.server_port, tmp_path)
