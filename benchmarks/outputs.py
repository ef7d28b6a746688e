"""How fast one lane, and two, publish rows outside: to Kafka and to PostgreSQL.

``python benchmarks/outputs.py [--runs N] [--write]``. Servers are those of the tests, on the cores
that the lanes have (PostgreSQL without fsync). Each lane is a process that has a million rows of
100 bytes in memory, and publishes them as the executor's task does: by opening the lane, reading
its marker, and transactions. What Spark does before is not in it: the rows' way through the channel
is that of any stage.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
from _quick import usual
from _results import Results, arguments

import absflow
from absflow.columnar.publishing import LanePublication, publish

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "spark"))
from kafka_broker import broker
from kafka_client import make_topic
from postgres_server import postgres

ROWS, BATCH = usual(1_000_000, 200_000), 10_000
KEYS = 200_000
LANES = (1, 2)


def batches(*, again: bool) -> Iterator[pa.RecordBatch]:
    """Rows of 100 bytes: an id of 8, a key of 8, a value of 84; ids come again, or are new."""
    chance = np.random.default_rng(1)
    for begin in range(0, ROWS, BATCH):
        ids = chance.integers(0, KEYS, BATCH) if again else np.arange(begin, begin + BATCH)
        keys = pa.array([f"k{number:07d}" for number in ids])
        yield pa.record_batch([pa.array(ids), keys, pa.array(["x" * 84] * BATCH)], SCHEMA)


SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.string()), ("value", pa.string())])


def run_lane(sink: absflow.TransactionalSink, lane: str, again: bool) -> tuple[float, float]:
    """When a lane's publication began and ended."""
    rows = [*batches(again=again)]
    made = LanePublication(lane, 1, 1, 1, 1, sink.transaction_bytes)
    begun = time.perf_counter()
    publish(made, sink.open, sink.marker, rows)
    return begun, time.perf_counter()


def speed(sink: absflow.TransactionalSink, lanes: int, again: bool) -> float:
    """Rows per second over all lanes, from the first begin to the last end."""
    names = [f"lane-{time.time_ns()}-{number}" for number in range(lanes)]
    with ProcessPoolExecutor(lanes, mp_context=get_context("spawn")) as pool:
        took = [pool.submit(run_lane, sink, name, again) for name in names]
        begun, ended = zip(*(each.result() for each in took), strict=True)
    return lanes * ROWS / (max(ended) - min(begun))


def main(runs: int, write: bool) -> None:
    """Each destination, each number of lanes, so often."""
    results = Results("outputs", "rows/s")
    with tempfile.TemporaryDirectory() as folder, broker(Path(folder)) as running:
        servers = running.servers
        make_topic(servers, "out", 4)
        with postgres() as server:
            sinks: dict[str, tuple[absflow.TransactionalSink, bool]] = {
                "Kafka, bytes": (
                    absflow.KafkaSink(servers, "out", key="key", value="value"),
                    False,
                ),
                "Kafka, JSON": (absflow.KafkaSink(servers, "out", key="key"), False),
                "PostgreSQL, appended": (absflow.SqlSink(server.url, "appended"), False),
                "PostgreSQL, by key": (absflow.SqlSink(server.url, "by_key", key="id"), True),
            }
            for case, (sink, again) in sinks.items():
                sink.prepare(None, SCHEMA)  # type: ignore[arg-type]
                # Two that write the same keys in any order would lock each other out.
                for lanes in LANES[:1] if again else LANES:
                    found = [speed(sink, lanes, again) for _ in range(runs)]
                    results.add(case, f"{lanes} lane{'s' if lanes > 1 else ''}", found)
                results.show(case)
    if write:
        results.write()


if __name__ == "__main__":
    given = arguments("Rows that go outside.", "of each", 3).parse_args()
    main(given.runs, given.write)
