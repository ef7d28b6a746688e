"""The chain job on a cluster, with storage root and sink at a place, until SIGTERM.

``python in_cluster.py ROOT PLACE [NAME=VALUE ...]`` runs it over the files in ``ROOT/a``, with this
Spark conf. It is slow on the executor of one worker (:data:`STRAGGLER`), as a machine can be.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from chain import SETTINGS, chain, expected
from cluster import Cluster, python_path
from delta import configure_spark_with_delta_pip
from diamond import to_group
from outside_sinks import STRAGGLER, add_outside
from places import Place
from processes import bury, tail
from reading import assert_same_rows, files_read, rows_of, stage_of, state_at
from session import builder

import absflow

STRAGGLES_S = 1.5
PATIENCE_S = 300
Found = TypeVar("Found")


class Driver:
    """The driver, and what its job has come to.

    Attributes:
        process: a process of its own.
        place: where it writes.
    """

    def __init__(self, process: subprocess.Popen[bytes], place: Place) -> None:
        self.process, self.place = process, place

    def wait(self, condition: Callable[[], Found | None]) -> Found:
        """Look until there is something, while the job runs."""
        log = self.place.root / "driver.log"
        end = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            assert self.process.poll() is None, tail(log)
            assert time.monotonic() < end, tail(log)
            time.sleep(0.05)
        return found

    def completed(self) -> list[dict[str, Any]]:
        """The manifests of its checkpoints."""
        self.place.fetch("job/checkpoints")
        if not any((self.place.root / "job/checkpoints/_delta_log").glob("*.json")):
            return []
        rows = rows_of(self.place.root / "job/checkpoints").to_pylist()
        found = [row for row in rows if row["kind"] == "COMPLETED"]
        return sorted(found, key=lambda row: row["checkpoint_id"])

    def await_files(self, count: int) -> None:
        """Until a checkpoint holds so many files."""
        self.wait(
            lambda: any(
                files_read(row, "left", "a") >= count and files_in_flight(row) == 0
                for row in self.completed()
            )
        )

    def end(self) -> int:
        """Let it end by SIGTERM, and compare with pandas; how many checkpoints were compared."""
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0, tail(self.place.root / "driver.log")
        root, checkpoints = self.place.root, self.completed()
        for path in ("sink", "job/state"):
            self.place.fetch(path)
        last = expected(root, files_read(checkpoints[-1], "left", "a"))
        assert_same_rows(rows_of(root / "sink").to_pandas(), last["sink"], ["id"])
        for row in checkpoints:
            due = expected(root, files_read(row, "left", "a"))
            both = (("left", "k"), ("tally", "g"))
            for stage, key in both[:1] if files_in_flight(row) else both:
                state = state_at(None, root / "job", row, stage, key)
                assert_same_rows(state, due[stage], [key])
        return len(checkpoints)


def files_in_flight(row: dict[str, Any]) -> int:
    """How many channels of the last stage have rows in flight."""
    return len(stage_of(row, "tally")["in_flight"] or ())


@contextmanager
def driver(cluster: Cluster, place: Place, more: Mapping[str, str]) -> Iterator[Driver]:
    """The driver, which is dead behind the block."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": python_path()}
    environment |= {"PYSPARK_PYTHON": sys.executable}
    paths = {f"spark.{role}.extraClassPath": place.class_path for role in ("driver", "executor")}
    given = {**cluster.conf(), **place.conf(), **(paths if place.class_path else {}), **more}
    with (place.root / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, __file__, str(place.root), place.uri),
                *(f"{name}={value}" for name, value in given.items()),
            ],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield Driver(process, place)
    finally:
        bury(process)


def straggling(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """As :func:`~diamond.to_group`, slowly on one machine."""
    if STRAGGLER in os.getcwd():
        time.sleep(STRAGGLES_S)
    return to_group(rows, state, context)


def main(root: Path, place: str, more: Mapping[str, str]) -> None:
    """Run the job in this process."""
    start = builder()
    own = {"storage.path": f"{place}/job", "savepoint.on-sigterm": "true", **SETTINGS}
    for name, value in ({f"spark.absflow.{n}": v for n, v in own.items()} | {**more}).items():
        start = start.config(name, value)
    spark = configure_spark_with_delta_pip(start).getOrCreate()
    job = chain(spark, root, f"{place}/sink", bounded=False, process=straggling)
    add_outside(job)
    job.start().await_termination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], dict(word.split("=", 1) for word in sys.argv[3:]))
