"""A real Prometheus that scrapes one target, with the alerts of ``monitoring/``."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import yaml

ALERTS = Path(__file__).parents[1] / "monitoring" / "alerts.yml"
PATIENCE_S = 300


def program(name: str) -> str:
    """Where it is."""
    found = shutil.which(name)
    assert found, f"no {name} is installed: apt-get install prometheus"
    return found


def await_alert(alert: str, port: int, folder: Path) -> None:
    """Let it scrape ``/metrics`` of a port of this machine until an alert fires."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = free.getsockname()[1]
    # A scrape may take as long as the interval, which on a busy machine is more than a second.
    conf = {
        "global": {"scrape_interval": "5s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [
            {"job_name": "absflow", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(conf))
    command = [program("prometheus"), f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{own}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while alert not in _firing(own):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.5)
    finally:
        process.kill()
        process.wait()


def _firing(port: int) -> set[str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/alerts", timeout=10) as answer:
            alerts = json.load(answer)["data"]["alerts"]
    except OSError:  # it is not up yet
        return set()
    return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}
