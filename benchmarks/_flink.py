"""A Flink cluster within one JVM, for the benchmarks: its settings, and what its jobs say."""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import json
import re
import socket
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from pyflink.common import Configuration

# As Flink's documents advise for much state; two subtasks for two cores.
SETTINGS = {
    "execution.checkpointing.interval": "10s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.incremental": "true",
    "execution.checkpointing.storage": "filesystem",
    "state.backend.type": "rocksdb",
    "taskmanager.memory.managed.size": "1g",
    "parallelism.default": "2",
    "pipeline.object-reuse": "true",
    "restart-strategy.type": "none",
    "python.pythonpath": f"{sysconfig.get_path('purelib')}:{Path(__file__).parent}",
    "python.executable": sys.executable,
    "python.client.executable": sys.executable,
    "rest.address": "127.0.0.1",
    "rest.bind-address": "127.0.0.1",
    "metrics.fetcher.update-interval": "200",
}
_SOURCE_ROWS = re.compile(r"\d+\.Source.*\.numRecordsOut")


def configuration(root: Path, settings: Mapping[str, str]) -> tuple[Configuration, int]:
    """The conf of a cluster whose checkpoints go below ``root``, and the port that it will have."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = {"execution.checkpointing.dir": (root / "checkpoints").as_uri()}
    given |= {"rest.port": str(port), "rest.bind-port": str(port)}
    conf = Configuration()
    for key, value in {**SETTINGS, **given, **settings}.items():
        conf.set_string(key, value)
    return conf, port


class Watch:
    """What a running job says of itself."""

    def __init__(self, port: int, job: object) -> None:
        """Of the job with this id."""
        self._url = f"http://127.0.0.1:{port}/jobs/{job}"
        self._open = build_opener(ProxyHandler({})).open

    def read(self, vertex: int) -> tuple[float, int]:
        """The time, and how many rows a vertex has taken; of a source, given."""
        # Flink answers with what it has, and only then asks for what is new.
        for _ in range(2):
            time.sleep(1)
            job = self._get("")
            rows = (
                job["vertices"][vertex]["metrics"]["read-records"] if vertex else self._given(job)
            )
        if job["state"] not in ("CREATED", "RUNNING"):
            sys.exit(str(self._get("/exceptions")))
        return time.monotonic(), rows

    def checkpoints(self) -> int:
        """How many have completed."""
        return int(self._get("/checkpoints")["counts"]["completed"])

    def _given(self, job: Any) -> int:
        metrics = f"/vertices/{job['vertices'][0]['id']}/metrics"
        names = [m["id"] for m in self._get(metrics) if _SOURCE_ROWS.fullmatch(m["id"])]
        if not names:
            return 0
        found = self._get(
            f"{metrics}?get={','.join(names)}".replace("[", "%5B").replace("]", "%5D")
        )
        return sum(int(metric["value"]) for metric in found)

    def _get(self, path: str) -> Any:
        with self._open(f"{self._url}{path}", timeout=60) as answer:
            return json.load(answer)
