"""One job with all it writes on this disk, in a bucket and on HDFS, side by side.

``python benchmarks/stores.py [--case NAME ...] [--runs N] [--write]``. The servers are those of the
tests, on the cores that the job has: a name node and a data node for HDFS; for S3 moto, or MinIO,
if ``MINIO`` names its program (``tests/spark/minio_server.py``). In each case and turn each store
runs the same stage (``_workloads.py``, columnar form, 16 key groups, files of 200,000 rows from
this disk) into a Delta sink beside its storage root.

Where nearly all keys change from one checkpoint to the next, it takes a checkpoint every 20 s once
its keys are loaded. The 10 s behind each trigger are a job with a checkpoint every 10 s, and the
10 s behind those one without: both in one life, in turns, so that a JVM that gets warmer is in
both. Where few change, such a checkpoint would have twice the changes, and after many the state is
snapshotted whole. So there it takes one every 10 s until that has happened, which is one round of
what such a job does, and is compared with the second halves of these 10 s, in which there is no
checkpoint: each has been completed by then.

Then comes the time from a start that restores the newest checkpoint to the commit of its state.
Every other turn goes through the stores the other way round. Beside that stands what the bare store
takes for a file of 8 MB, and for one of 1 kB, by the clients that the workers have. With
``--write`` the figures go to ``docs/figures``; they are for this machine and this run only.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from _forms import columnar
from _quick import usual
from _results import Results, arguments
from _running_sum import configure, session
from _workloads import WORKLOADS, Workload
from pyspark.sql import SparkSession

import absflow
from absflow.facts.spark_reader import SparkStorageReader
from absflow.storage.files import Files
from absflow.storage.session import wait_little

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "spark"))
from hdfs_server import hdfs
from minio_server import Minio, s3
from on_store import class_path

PAIRS, WARM_S, EARLY_S = usual(4, 1), usual(10, 2), usual(90, 5)
ROWS, FILES = 200_000, usual(500, 150)
CASES = usual(
    ["100 k uniform keys", "1 M uniform keys", "10 M keys, 1 % a batch"], ["100 k uniform keys"]
)
# Of these few keys change from one checkpoint to the next.
ROUNDS = ["10 M keys, 1 % a batch"]
WITH_S = WITHOUT_S = 10
NEVER, OFTEN = "1h", f"{WITH_S + WITHOUT_S}s"
SIZES = {"8 MB": (8 << 20, 16), "1 kB": (1 << 10, 200)}
_PATIENCE_S = 900


@dataclass
class Job:
    """The job of one case on one store.

    Attributes:
        spark: the session; nothing else may stream in it.
        workload: of the case.
        source: a folder of its files.
        place: a new folder of the store.
    """

    spark: SparkSession
    workload: Workload
    source: Path
    place: str

    def start(self, interval: str, **more: str) -> absflow.Run:
        """Start it, or have it go on."""
        given = {"storage.path": f"{self.place}/job", "key-groups": "16", **more}
        configure(self.spark, {**given, "checkpoint.interval": interval})
        reader = self.spark.readStream.schema(self.workload.rows).option("maxFilesPerTrigger", 1)
        job = absflow.Job("stores", self.spark)
        stage = job.stage(
            "stage",
            job.source("rows", reader.parquet(str(self.source))),
            key=self.workload.key,
            state=self.workload.state,
            output=self.workload.output,
            process=columnar(self.workload),
        )
        job.sink("out", stage, absflow.DeltaSink(f"{self.place}/out"))
        return job.start()

    def warm(self) -> None:
        """Run it for a while, and restore it, for what comes behind."""
        run = self.start(OFTEN)
        run.await_termination(timeout=EARLY_S)
        run.stop()
        self.restored()

    def speeds(self, run: absflow.Run) -> tuple[float, float]:
        """Rows per second in the 10 s behind the triggers of checkpoints, and in those between."""
        self._await(run, lambda moments: len(moments) > self.workload.loads)
        run.await_termination(timeout=WARM_S)
        since = time.time()
        run.await_termination(timeout=(PAIRS + 2) * (WITH_S + WITHOUT_S))
        moments = self._await(run, lambda moments: sum(at > since for at, _ in moments) > 1)
        last, triggers = moments[-1][0] - WITH_S - WITHOUT_S, self._triggers()
        pairs = [
            (_rows(moments, at, WITH_S), _rows(moments, at + WITH_S, WITHOUT_S))
            for at in triggers
            if since < at < last
        ]
        assert len(pairs) >= PAIRS, (triggers, since, last)
        with_, without = np.sum(pairs, axis=0)
        return with_ / len(pairs) / WITH_S, without / len(pairs) / WITHOUT_S

    def one_round(self, run: absflow.Run) -> tuple[float, float]:
        """Rows per second from the load on until the state was snapshotted whole; and beside that.

        The latter in the second halves of the 10 s behind triggers. A round ends 10 s behind the
        trigger of the full snapshot.
        """
        self._await(run, lambda moments: len(moments) > self.workload.loads)
        # The second checkpoint behind a load may be full once more.
        run.await_termination(timeout=WARM_S + 2 * WITH_S)
        since, reader = time.time(), SparkStorageReader(self.spark, follows=True)
        facts, columns = f"{self.place}/job/checkpoints", ["kind", "base_id", "triggered_at"]
        looked = full_at = 0.0

        def done(_: object) -> bool:
            nonlocal looked, full_at
            now = time.time()
            if not full_at and now - looked > WITH_S / 2:
                looked = now
                found = reader.table(facts, columns).to_pylist()
                whole = [r for r in found if r["kind"] == "COMPLETED" and r["base_id"] == 0]
                full = (row["triggered_at"].timestamp() for row in whole)
                full_at = next((at for at in full if at > since), 0.0)
            return bool(full_at) and now - full_at > 2 * WITH_S

        moments, triggers = self._await(run, done), self._triggers()
        end = full_at + WITH_S
        beside = [
            _rows(moments, at + WITH_S / 2, WITH_S / 2)
            for at in triggers
            if since < at < end - WITH_S / 2
        ]
        print(f"{len(beside)} checkpoints, the last one of the whole state", flush=True)
        often = _rows(moments, since, end - since) / (end - since)
        return often, statistics.mean(beside) / (WITH_S / 2)

    def _triggers(self) -> list[float]:
        found = absflow.history(self.spark, f"{self.place}/job").checkpoints()
        return [at for (at,) in found.selectExpr("double(triggered_at)").collect()]

    def _await(
        self, run: absflow.Run, ready: Callable[[list[tuple[float, int]]], bool]
    ) -> list[tuple[float, int]]:
        """When each micro-batch began and its rows, once they are such."""
        (query,) = self.spark.streams.active
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            moments = [
                (datetime.fromisoformat(progress.timestamp).timestamp(), progress.numInputRows)
                for progress in query.recentProgress
                if progress.numInputRows
            ]
            if ready(moments):
                return moments
            assert not run.await_termination(timeout=0.5)
        raise TimeoutError(f"not so far in {_PATIENCE_S} s: {run.progress()}")

    def restored(self) -> float:
        """Seconds until a start has the newest checkpoint's state, committed."""
        since = time.monotonic()
        run = self.start(NEVER, **{"restore.from": "latest"})
        configure(self.spark, {"restore.from": ""})
        while run.progress().stages["stage"].batch_id < 0:
            assert not run.await_termination(timeout=0.02)
        took = time.monotonic() - since
        run.stop()
        return took


def _rows(moments: list[tuple[float, int]], begin: float, seconds: float) -> float:
    """Rows of so many seconds; a micro-batch that reaches over an end counts in part."""
    begins = [at for at, _ in moments]
    so_far = np.cumsum([0, *(rows for _, rows in moments[:-1])])
    there = np.interp([begin, begin + seconds], begins, so_far)
    return float(there[1] - there[0])


def bare(spark: SparkSession, place: str) -> dict[str, tuple[float, float]]:
    """Seconds for the PUT and for the GET of a file of each size."""
    store, folder = Files(spark).for_workers(f"{place}/bare")
    found = {}
    for name, (size, count) in SIZES.items():
        data = bytes(size)
        took: dict[str, list[float]] = defaultdict(list)
        for number in range(count):
            path = f"{folder}/{size}/{number}"
            begun = time.perf_counter()
            store.write(path, data)
            written = time.perf_counter()
            assert store.read(path) == data
            took["PUT"].append(written - begun)
            took["GET"].append(time.perf_counter() - written)
        found[name] = statistics.median(took["PUT"]), statistics.median(took["GET"])
    return found


@contextlib.contextmanager
def places(folder: Path) -> Iterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    """Where each store has room, while its server runs; the Spark conf that finds them all."""
    for name in ("s3", "hdfs", "disk"):
        (folder / name).mkdir()
    with s3(folder / "s3") as server, hdfs(folder / "hdfs", short=False) as there:
        conf = {**server.conf(), **there.conf()}
        conf["spark.driver.extraClassPath"] = class_path(folder / "s3")
        stores = {
            "disk": str(folder / "disk"),
            "S3, MinIO" if isinstance(server, Minio) else "S3, moto": server.bucket("stores"),
            "HDFS": f"{there.root}/stores",
        }
        yield stores, conf


def main(cases: list[str], runs: int, write: bool) -> None:
    """Each case, each turn, each store."""
    speeds = Results("stores", "rows/s", ("disk",), keeps=CASES)
    costs = Results("stores_checkpoints", "% that checkpoints every 10 s cost", keeps=CASES)
    restores = Results("stores_restore", "s to restore", ("disk",), keeps=CASES)
    raw = Results("stores_bare", "ms", ("disk",))
    of_runs = (speeds, costs, restores)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        with places(root) as (stores, conf):
            more = {"spark.sql.streaming.numRecentProgressUpdates": "10000"}
            spark = session("stores", "6g", {**conf, **more})
            wait_little(spark)  # as every job's start does
            for store, place in stores.items():
                for size, (put, get) in bare(spark, place).items():
                    for what, took in (("PUT", put), ("GET", get)):
                        raw.add(f"{what} of {size}", store, [took * 1000])
            for number, case in enumerate(cases):
                source = root / f"source-{number}"
                source.mkdir()
                WORKLOADS[case].write(source, WORKLOADS[case].loads + FILES, ROWS)
                if number == 0:  # JVMs compile for long: not counted
                    for place in stores.values():
                        Job(spark, WORKLOADS[case], source, f"{place}/early").warm()
                for turn in range(runs):
                    step = 1 if turn % 2 else -1
                    for store in [*stores][::step]:
                        place = f"{stores[store]}/{number}-{turn}"
                        job = Job(spark, WORKLOADS[case], source, place)
                        found = measured(job, one_round=case in ROUNDS)
                        Files(spark).delete_folder(place)
                        print(f"{case}, {store}:", *(f"{v:,.1f}" for v in found), flush=True)
                        for results, value in zip(of_runs, found, strict=True):
                            by_store = results.runs.setdefault(case, {})
                            by_store.setdefault(store, []).append(value)
            spark.stop()
    for results in (*of_runs, raw):
        for case in results.runs:
            results.show(case)
        if write:
            results.write()


def measured(job: Job, *, one_round: bool) -> tuple[float, float, float]:
    """Rows per second with checkpoints; what they cost, in %; and the seconds of a restore."""
    run = job.start(f"{WITH_S}s" if one_round else OFTEN)
    often, never = job.one_round(run) if one_round else job.speeds(run)
    run.stop()
    return often, 100 * (1 - often / never), job.restored()


if __name__ == "__main__":
    parser: argparse.ArgumentParser = arguments("Stores, side by side.", "of each store", 3)
    parser.add_argument("--case", nargs="+", default=CASES, choices=[*WORKLOADS])
    given = parser.parse_args()
    main(given.case, given.runs, given.write)
