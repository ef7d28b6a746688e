"""How long checkpoints of Apache Flink take behind a backlog, aligned and unaligned.

``python benchmarks/backpressure_flink.py [--backlog S] [--pause S] [--count N]``, by a python that
has apache-flink, and with Java. The job is like that of ``backpressure.py``, in a Flink cluster
within one JVM, two subtasks of each: an endless source, a running sum that rests a tenth of
``--pause`` in each row, and a second one that rests all of it. What waits for the second one lies
in Flink's network buffers, before and behind the first one. Flink fixes their number, and wants a
power of two for their size: that which comes nearest to ``S`` seconds of the second one's work.
What is measured is the checkpoints triggered when they are full: ``N`` of them unaligned, one
aligned (which takes until what waited is done).

The columns are those of ``backpressure.py``, as Flink's REST interface has them. Flink has no
micro-batches. It copies what is in flight, so ``written`` contains the bytes in flight; their rows
are these bytes by the size of a row. Figures are for this machine and this run only.
"""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import argparse
import json
import math
import socket
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from _backlog_table import head, line
from _quick import usual

try:
    from pyflink.common import Configuration, Types, WatermarkStrategy
    from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
    from pyflink.datastream.connectors.base import Sink
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource
    from pyflink.datastream.state import ValueStateDescriptor
    from pyflink.java_gateway import get_gateway
except ImportError:
    print("nothing measured: no pyflink in this python; pip install apache-flink (2.3.0 was used)")
    sys.exit()  # without an error, so that the next program of `make bench` has its turn

# Flink's hash gives each of two subtasks half of a hundred keys, which it does not of 500.
KEYS, SUBTASKS = 100, 2
# As measured: of a row in a buffer, and of buffers that are full when the source waits.
ROW_BYTES, BUFFERS = 38, 36
TIMEOUT_S = 10
SETTINGS = {
    "execution.checkpointing.interval": "2s",
    "execution.checkpointing.timeout": "1h",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.aligned-checkpoint-timeout": "0s",
    "execution.checkpointing.storage": "filesystem",
    "parallelism.default": str(SUBTASKS),
    "restart-strategy.type": "none",
    # Within the JVM. A process of its own takes rows in bundles, and a checkpoint waits for each.
    "python.execution-mode": "thread",
    "python.pythonpath": sysconfig.get_path("purelib"),
    "python.executable": sys.executable,
    "python.client.executable": sys.executable,
    "rest.address": "127.0.0.1",
    "rest.bind-address": "127.0.0.1",
    "metrics.fetcher.update-interval": "500",
    "web.checkpoints.history": "100",
}


class Sum(KeyedProcessFunction):
    """A running sum per key that rests in each row."""

    def __init__(self, pause: float) -> None:
        self._pause = pause

    def open(self, runtime_context: Any) -> None:
        """Take hold of the state."""
        self._total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: tuple[int, int], ctx: Any) -> Iterator[tuple[int, int]]:
        """Rest, then add."""
        time.sleep(self._pause)
        key, number = value
        total = (self._total.value() or 0) + number
        self._total.update(total)
        yield key, total


class Job:
    """The job in a cluster of its own, and what its REST interface has."""

    def __init__(self, root: Path, mode: str, given: argparse.Namespace) -> None:
        """Start it."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        size = SUBTASKS * given.backlog / given.pause * ROW_BYTES / BUFFERS
        conf = Configuration()
        for name, value in {
            **SETTINGS,
            "execution.checkpointing.unaligned.enabled": str(mode == "unaligned").lower(),
            "execution.checkpointing.dir": root.as_uri(),
            "taskmanager.memory.segment-size": f"{2 ** max(12, round(math.log2(size)))}b",
            "rest.port": str(port),
            "rest.bind-port": str(port),
        }.items():
            conf.set_string(name, value)
        env = StreamExecutionEnvironment.get_execution_environment(conf)
        shape, long = Types.TUPLE([Types.LONG(), Types.LONG()]), Types.LONG()
        stream = env.from_source(
            NumberSequenceSource(0, 2**62), WatermarkStrategy.no_watermarks(), "rows", long
        ).map(lambda number: (number % KEYS, 1), shape)
        for pause in (given.pause / 10, given.pause):
            stream = stream.key_by(lambda row: row[0], long).process(Sum(pause), shape)
        sinks = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2
        stream.sink_to(Sink(sinks.DiscardingSink()))
        self.run = env.execute_async("backpressure")
        self._open = build_opener(ProxyHandler({})).open
        self._url = f"http://127.0.0.1:{port}/jobs/{self.run.get_job_id()}"

    def answer(self, what: str = "") -> dict[str, Any]:
        """What the REST interface answers, as long as the job runs."""
        status = str(self.run.get_job_status().result())
        assert status.endswith(("INITIALIZING", "CREATED", "RUNNING")), status
        with self._open(self._url + what, timeout=60) as answer:
            return dict(json.load(answer))

    def rows(self) -> tuple[float, int, int]:
        """The time, how many rows the slow stage has read by now, and how many wait for it."""
        source, _, slow = (vertex["metrics"] for vertex in self.answer()["vertices"])
        read = slow["read-records"]
        return time.monotonic(), read, source["write-records"] - read

    def full(self) -> tuple[float, int, int]:
        """The rows once the slow stage is at work, and no more have come in three seconds."""
        seen = [self.rows()]
        while len(seen) < 4 or not seen[-4][1] or seen[-1][2] > 1.01 * seen[-4][2]:
            time.sleep(1)
            seen.append(self.rows())
        return seen[-1]

    def checkpoints(self, since: float) -> list[dict[str, Any]]:
        """The completed ones that were triggered since."""
        done = [c for c in self.answer("/checkpoints")["history"] if c["status"] == "COMPLETED"]
        return [c for c in done if c["trigger_timestamp"] / 1000 >= since]


def measure(root: Path, mode: str, given: argparse.Namespace) -> None:
    """Wait for the backlog, then for the checkpoints behind it, and print what they took."""
    job = Job(root, mode, given)
    (begun, before, behind), since = job.full(), time.time()
    records: list[dict[str, Any]] = []
    while len(records) < (given.count if mode == "unaligned" else 1):
        time.sleep(0.5)
        now, read, _ = job.rows()
        records = job.checkpoints(since)
    rate = (read - before) / (now - begun)
    job.run.cancel().result()
    seconds = sorted(record["end_to_end_duration"] / 1000 for record in records)
    size, written = (
        max(record[name] for record in records) for name in ("persisted_data", "checkpointed_size")
    )
    expired = sum(s > TIMEOUT_S for s in seconds) / len(seconds)
    print(
        line(
            f"flink {mode}",
            f"{len(seconds)}",
            f"{statistics.median(seconds):.2f}",
            f"{seconds[-1]:.2f}",
            "-",
            f"{size // ROW_BYTES:,}",
            f"{size / 1000:,.0f}",
            f"{written / 1000:,.0f}",
            f"{expired:.0%}",
        )
        + f"   behind {behind / rate:.0f} s: {behind:,} rows, of which the slow stage does "
        f"{rate:.0f} a second",
        flush=True,
    )


def main(given: argparse.Namespace) -> None:
    """Each mode in turn, in one JVM."""
    print(head())
    for mode in ("unaligned", "aligned"):
        # Flink may still be at deleting its own files.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
            measure(Path(root), mode, given)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Checkpoints of Flink behind a backlog.")
    parser.add_argument("--backlog", type=float, default=usual(60, 10), help="seconds")
    parser.add_argument("--pause", type=float, default=0.007, help="of the slow stage, seconds")
    parser.add_argument("--count", type=int, default=usual(5, 3), help="checkpoints, unaligned")
    main(parser.parse_args())
