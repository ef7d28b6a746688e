"""How long checkpoints take behind a backlog, aligned and unaligned, on the same rows.

``python benchmarks/backpressure.py [--backlog S] [--pause S] [--count N]``. Two stages, a running
sum each. The second one rests in each micro-batch, and reads a quarter of what a micro-batch of the
first one brings; with the default it is about ten times as slow. Rows are fed until the oldest that
it has not read is ``S`` seconds old, and no longer. What is measured is the checkpoints triggered
behind that backlog: ``N`` of them unaligned, one aligned (which takes until the backlog is gone).

For each mode it prints completion times, how many micro-batches of the slow stage that is, how many
rows (and bytes) the checkpoints referenced in flight, what they wrote themselves, and the share of
them that a timeout of 10 s would have expired; then a picture of the longest, each to its own
scale. Nothing in flight is copied: what a checkpoint writes is its changed keys and one row in
``checkpoints``. Figures are for this machine and this run only.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _backlog_table import head, line
from _quick import usual
from _running_sum import add, configure, session
from pyspark.sql import SparkSession
from rich.console import Console

import absflow
from absflow.cli.reader import Reader
from absflow.cli.tables import phases
from absflow.facts.records import CheckpointRecord

ROWS = 4_000
KEYS = 500
TIMEOUT_S = 10
SHAPE = "k long, total long"
SETTINGS = {
    "checkpoint.interval": "2s",
    "checkpoint.timeout": "1h",
    "edges": "channel",
    "key-groups": "4",
    # A batch of the slow stage reads one file of its channel.
    "channel.max-bytes-per-trigger": "1B",
}
MODES = {
    "aligned": {"checkpoint.mode": "aligned", "checkpoint.aligned-timeout": "never"},
    "unaligned": {"checkpoint.mode": "unaligned"},
}


@dataclass(frozen=True, slots=True)
class Slow:
    """A running sum that rests.

    Attributes:
        pause: seconds, for each key group that a batch touches.
    """

    pause: float

    def __call__(self, rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
        """Rest, then add."""
        time.sleep(self.pause)
        renamed = rows.rename_columns(["k", "v"])
        return add(renamed, state, context)


class Job:
    """The job under a folder of its own, and what it has read."""

    def __init__(self, spark: SparkSession, root: Path, mode: str, pause: float) -> None:
        """Start it with nothing to read."""
        self._source, self._files = root / "rows", 0
        self._source.mkdir(parents=True)
        self._storage = root / "job"
        configure(spark, {**SETTINGS, **MODES[mode], "storage.path": str(self._storage)})
        job = absflow.Job("backpressure", spark)
        reader = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
        rows = job.source("rows", reader.parquet(str(self._source)))
        fast = job.stage("fast", rows, key="k", state="total long", output=SHAPE, process=add)
        slow = job.stage(
            "slow", fast, key="k", state="total long", output=SHAPE, process=Slow(pause)
        )
        job.sink("out", slow, absflow.DeltaSink(str(root / "out")))
        self.run = job.start()

    def feed(self) -> None:
        """A file more than the first stage has taken, so that it is never without."""
        taken = len(list((self._storage / "work").glob("attempt=1/fast/spark/commits/[0-9]*")))
        while self._files < taken + 2:
            keys = np.random.default_rng(self._files).integers(0, KEYS, ROWS)
            table = pa.table({"k": keys, "v": np.ones(ROWS, dtype=np.int64)})
            aside = self._source.parent / "aside"
            pq.write_table(table, aside)
            self._files += 1
            aside.rename(self._source / f"{self._files:05d}.parquet")

    def commits(self, stage: str) -> list[float]:
        """When each of a stage's newest batches was committed."""
        done = (self._storage / "work").glob(f"attempt=1/{stage}/spark/commits/[0-9]*")
        return sorted(path.stat().st_mtime for path in done)

    def backlog_s(self) -> float:
        """How old the oldest row is that the slow stage has not read."""
        written = sorted(
            (path.stat().st_mtime, path)
            for path in (self._storage / "channels").glob("fast/attempt=1/_epoch=*/*.parquet")
        )
        read = len(self.commits("slow"))
        return time.time() - written[read][0] if read < len(written) else 0.0

    def checkpoints(self, since: float) -> list[CheckpointRecord]:
        """The completed ones that were triggered since."""
        records = Reader(str(self._storage)).history().shown
        done = [r for r in records if r.status.value == "COMPLETED"]
        return [r for r in done if r.triggered_at.timestamp() >= since]


def measure(
    spark: SparkSession, root: Path, mode: str, given: argparse.Namespace
) -> CheckpointRecord:
    """Build up the backlog, wait for the checkpoints behind it, and print what they took.

    Returns:
        The one that took longest.
    """
    job = Job(spark, root, mode, given.pause)
    while job.backlog_s() < given.backlog:
        assert job.run.is_active
        job.feed()
        time.sleep(0.1)
    since, behind = time.time(), job.backlog_s()
    fast, slow = (np.diff(job.commits(stage)[-20:]) for stage in ("fast", "slow"))
    wanted = given.count if mode == "unaligned" else 1
    while len(records := job.checkpoints(since)) < wanted:
        assert job.run.is_active
        time.sleep(0.5)
    job.run.stop()
    seconds = sorted((record.duration_ms or 0) / 1000 for record in records)
    middle, batch = statistics.median(seconds), float(np.median(slow))
    states = [[s for stage in r.stages for s in stage.in_flight] for r in records]
    rows, size = (
        max(sum(getattr(s, n) for s in each) for each in states) for n in ("rows", "bytes")
    )
    written = max(sum(s.report.bytes_changed for s in r.stages) for r in records)
    expired = sum(s > TIMEOUT_S for s in seconds) / len(seconds)
    print(
        line(
            mode,
            f"{len(seconds)}",
            f"{middle:.1f}",
            f"{seconds[-1]:.1f}",
            f"{middle / batch:.1f}",
            f"{rows:,}",
            f"{size / 1000:,.0f}",
            f"{written / 1000:,.0f}",
            f"{expired:.0%}",
        )
        + f"   behind {behind:.0f} s; a micro-batch: fast {float(np.median(fast)):.1f} s, "
        f"slow {batch:.1f} s, four of which read what one of the fast stage brings"
    )
    return max(records, key=lambda record: record.duration_ms or 0)


def main(given: argparse.Namespace) -> None:
    """Each mode in turn, in one JVM."""
    spark = session("backpressure")
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    print(head())
    longest = {}
    for mode in ("unaligned", "aligned"):
        with tempfile.TemporaryDirectory() as root:
            longest[mode] = measure(spark, Path(root), mode, given)
    spark.stop()
    console = Console(highlight=False, width=100)
    for mode, record in longest.items():
        console.print(f"\nthe longest {mode}, {(record.duration_ms or 0) / 1000:.1f} s:")
        console.print(phases(record))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Checkpoints behind a backlog.")
    parser.add_argument("--backlog", type=float, default=usual(60, 3), help="seconds")
    parser.add_argument("--pause", type=float, default=1.2, help="of the slow stage, seconds")
    parser.add_argument("--count", type=int, default=usual(10, 2), help="checkpoints, unaligned")
    main(parser.parse_args())
