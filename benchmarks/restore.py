"""How long a job with much state takes to be there again, beside what Spark alone has to offer.

``python benchmarks/restore.py [--keys N ...] [--runs N] [--memory 6g] [--timers]``. The state is a
running sum of as many keys, with ``--timers`` in a second job with a timer for each key, too, and
written by ``Job.write_savepoint``; then, several times over, in one warm JVM:

* *restore*: ``start()`` with ``restore.from``, into an attempt of its own, until the batch that
  restores the state has been committed, and phase by phase;
* *savepoint* of the running job, full;
* *rescale*: from ``stop(savepoint=True)`` until a restore with half the key groups and twice the
  shuffle partitions has committed a batch of new rows;
* *start*: the job goes on from Spark's own checkpoint, until it has committed a batch of new rows.

Beside it a plain ``groupBy("k").agg(sum("v"))`` of the same keys, with either of Spark's state
stores: its start from its own checkpoint, and the batch that builds its state out of one row per
key, which is what Spark alone needs for another number of shuffle partitions. Before each start the
state stores are unloaded, as if the process were a new one. Prints medians (of each phase, too) and
the most memory that was seen; figures are for this machine and this run only.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from _memory import Memory, jvm_pid
from _quick import usual
from _running_sum import session, sums
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import absflow
from absflow.storage.layout import Layout

NEW_ROWS = 1_000
FAR_AWAY_S = 4_102_444_800  # the year 2100
PATIENCE_S = 600
GROUPS, RESCALED = ("128", "2"), ("64", "4")
STORES = {
    "default": "HDFSBackedStateStoreProvider",
    "RocksDB": "RocksDBStateStoreProvider",
}
_STATE = "org.apache.spark.sql.execution.streaming.state"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"

Times = dict[str, list[float]]


class Folder:
    """A folder of one scale: source, storage root, and when what was written there."""

    def __init__(self, root: Path) -> None:
        """Use an empty folder."""
        self.root = root
        self.source = root / "rows"
        self.source.mkdir()
        self.sink = str(root / "out")
        self.layout = Layout(str(root / "job"))
        self._files = 0

    def feed(self, keys: range) -> None:
        """A new file of the source, with a row for each of ``keys``."""
        rows = pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(keys, pa.int64())})
        aside = self.root / "aside"
        pq.write_table(rows, aside)
        self._files += 1
        aside.rename(self.source / f"{self._files:04d}.parquet")

    def written(self, path: str) -> float:
        """When a file was written; waits for it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with suppress(FileNotFoundError):
                return Path(path).stat().st_mtime
            time.sleep(0.01)
        raise TimeoutError(f"{path!r} was not written in {PATIENCE_S} s")


def unload(spark: SparkSession) -> None:
    """Let Spark forget the state that it has in memory."""
    stores = getattr(getattr(spark._jvm, f"{_STATE}.StateStore$"), "MODULE$")
    stores.unloadAll()


@contextmanager
def timed(times: Times, name: str) -> Iterator[None]:
    """Note the seconds that a block takes."""
    since = time.time()
    yield
    times[name].append(time.time() - since)


def batches(checkpoint: str) -> int:
    """How many batches a query has committed."""
    return len(list(Path(checkpoint, "commits").glob("[0-9]*")))


class Ours:
    """The job under test."""

    def __init__(self, spark: SparkSession, folder: Folder, keys: int, *, timers: bool) -> None:
        """Write its state as a savepoint."""
        self.spark, self.folder, self.keys, self.timers = spark, folder, keys, timers
        self.times: Times = defaultdict(list)
        self.run: absflow.Run | None = None
        self._set("storage.path", folder.layout.root)
        self._set("checkpoint.interval", "1h")
        self._set("key-groups", GROUPS[0])
        state = spark.range(keys).select(F.col("id").alias("k"), F.col("id").alias("total"))
        if timers:
            time = F.timestamp_seconds(FAR_AWAY_S + F.col("k"))
            timer = F.struct(time.alias("time"), F.lit("").alias("name"))
            state = state.withColumn("_processing_timers", F.array(timer))
        with timed(self.times, "write_savepoint"):
            self.savepoint = self._job().write_savepoint({"sums": state})

    def _set(self, name: str, value: str) -> None:
        self.spark.conf.set(f"spark.absflow.{name}", value)

    def _job(self) -> absflow.Job:
        reader = self.spark.readStream.schema("k long, v long")
        frame = reader.parquet(str(self.folder.source))
        on_timer = never if self.timers else None
        return sums("restored", self.spark, frame, self.folder.sink, on_timer)

    @property
    def _attempt(self) -> int:
        """The newest; 0 without any."""
        works = Path(self.folder.layout.works)
        numbers = (int(each.name.partition("=")[2]) for each in works.glob("attempt=*"))
        return max(numbers, default=0)

    def _start(self, restore: int | None = None) -> tuple[float, float]:
        """Start the job; when that began, and when a batch of new rows was committed."""
        self._set("restore.from", "" if restore is None else str(restore))
        due = 1 if restore else batches(self.folder.layout.spark_checkpoint("sums", self._attempt))
        self.folder.feed(range(NEW_ROWS))
        unload(self.spark)
        since = time.time()
        self.run = self._job().start()
        checkpoint = self.folder.layout.spark_checkpoint("sums", self._attempt)
        return since, self.folder.written(f"{checkpoint}/commits/{due}")

    def restore(self) -> None:
        """Restore the savepoint, in the shape that it has; phases by when files were written."""
        layout, attempt = self.folder.layout, self._attempt + 1
        pages = f"{layout.restored('sums', attempt)}/_SUCCESS"
        with ThreadPoolExecutor(1) as beside:  # for it is gone when batch 0 is in
            in_pages = beside.submit(self.folder.written, pages)
            since, running = self._start(self.savepoint)
        checkpoint = layout.spark_checkpoint("sums", attempt)
        marks = {
            "start of batch 0": f"{checkpoint}/metadata",
            "batch 0": f"{checkpoint}/commits/0",
            "sinks put back, ready": str(max(Path(layout.attempts, "_delta_log").glob("*.json"))),
            "start of batch 1": f"{checkpoint}/offsets/1",
            "batch 1": f"{checkpoint}/commits/1",
        }
        begun = {
            "plan, claim, tables": self.folder.written(layout.nothing(attempt)),
            "state to pages": in_pages.result(),
        }
        ended = begun | {name: self.folder.written(path) for name, path in marks.items()}
        self.times["restore"].append(self.folder.written(marks["batch 0"]) - since)
        for name, (before, at) in zip(ended, pairwise([since, *ended.values()]), strict=True):
            self.times[f"  {name}"].append(at - before)
        self.times["restore, until it runs"].append(running - since)

    def take_savepoint(self) -> None:
        """Of the running job."""
        assert self.run is not None
        with timed(self.times, "savepoint"):
            self.run.savepoint()

    def start(self) -> None:
        """Stop, and go on."""
        assert self.run is not None
        self.run.stop()
        since, running = self._start()
        self.times["start, until it runs"].append(running - since)

    def rescale(self) -> None:
        """Stop with a savepoint, restore it in another shape, and put the shape back."""
        assert self.run is not None
        since = time.time()
        taken = self.run.stop(savepoint=True)
        self._shape(RESCALED)
        _, running = self._start(taken)
        self.times["rescale, until it runs"].append(running - since)
        self.run.stop()
        self._shape(GROUPS)

    def _shape(self, shape: tuple[str, str]) -> None:
        self._set("key-groups", shape[0])
        self.spark.conf.set("spark.sql.shuffle.partitions", shape[1])


class Plain:
    """What Spark alone does, with one of its state stores."""

    def __init__(self, spark: SparkSession, folder: Folder, keys: int, store: str) -> None:
        """Use ``store`` for the queries to come."""
        self.spark, self.folder, self.keys, self.store = spark, folder, keys, store
        self.times: Times = defaultdict(list)

    def build_and_start(self) -> None:
        """Build the state in one batch of a new query, stop it, and start it again."""
        self.spark.conf.set(_PROVIDER, f"{_STATE}.{STORES[self.store]}")
        checkpoint = self.folder.root / "spark"
        shutil.rmtree(checkpoint, ignore_errors=True)
        shutil.rmtree(self.folder.source)
        self.folder.source.mkdir()
        self.folder.feed(range(self.keys))
        for name in ("build", "start"):
            unload(self.spark)
            before = batches(str(checkpoint))
            since = time.time()
            query = self._query(str(checkpoint))
            done = self.folder.written(f"{checkpoint}/commits/{before}")
            self.times[f"{self.store}: {name}"].append(done - since)
            query.stop()
            self.folder.feed(range(NEW_ROWS))
        self.spark.conf.unset(_PROVIDER)

    def _query(self, checkpoint: str) -> StreamingQuery:
        rows = self.spark.readStream.schema("k long, v long").parquet(str(self.folder.source))
        grouped = rows.groupBy("k").agg(F.sum("v").alias("total"))
        writer = grouped.writeStream.outputMode("update").format("noop")
        return writer.option("checkpointLocation", checkpoint).start()


def never(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """For timers that are not due in this century."""
    raise AssertionError(
        f"{rows.num_rows} timers of {FAR_AWAY_S} s are due at {context.time_ms} ms"
    )


def report(title: str, keys: int, times: Times) -> None:
    """Medians of what was measured."""
    print(title)
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        rate = f"{keys / middle:12,.0f} keys/s"
        print(f"  {name:<32} {middle:7.2f} s {rate}   of {len(seconds)}")


def measure(spark: SparkSession, jvm: int, keys: int, runs: int, *, timers: bool) -> None:
    """A job of absflow, at one scale."""
    with tempfile.TemporaryDirectory() as root, Memory(jvm) as seen:
        Path(root, "ours").mkdir()
        ours = Ours(spark, Folder(Path(root, "ours")), keys, timers=timers)
        for _ in range(runs):
            steps: list[Callable[[], None]]
            steps = [ours.restore, ours.take_savepoint, ours.start, ours.rescale]
            for step in steps:
                step()
        what = f"{keys:,} keys{' with a timer each' if timers else ''}"
        report(f"absflow, {what}", keys, ours.times)
        print(f"  most memory: JVM {seen.jvm:,.0f} MB, Python workers {seen.python:,.0f} MB")


def main(every: list[int], runs: int, memory: str, *, timers: bool) -> None:
    """Each scale in turn; with timers, of absflow alone, without and with them."""
    spark = session("restore", memory)
    jvm = jvm_pid(spark)
    for keys in every:
        for timed_too in (False, True) if timers else (False,):
            measure(spark, jvm, keys, runs, timers=timed_too)
        for store in () if timers else STORES:
            with tempfile.TemporaryDirectory() as root, Memory(jvm) as seen:
                plain = Plain(spark, Folder(Path(root)), keys, store)
                for _ in range(runs):
                    plain.build_and_start()
                report(f"plain Spark, {keys:,} keys", keys, plain.times)
                print(f"  most memory: JVM {seen.jvm:,.0f} MB")
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Time to restore, beside a plain start of Spark.")
    parser.add_argument("--keys", type=int, nargs="+", default=[usual(1_000_000, 200_000)])
    parser.add_argument("--runs", type=int, default=usual(3, 1))
    parser.add_argument("--memory", default="6g", help="of the driver's JVM")
    parser.add_argument("--timers", action="store_true", help="without and with timers; no peers")
    given = parser.parse_args()
    main(given.keys, given.runs, given.memory, timers=given.timers)
