"""What a checkpoint costs when only some keys have changed since the last one.

``python benchmarks/incremental.py [--keys N] [--runs N] [--write]``. A running sum of so many keys
takes a checkpoint every few seconds; between two of them a file brings a row for each key of a
share of them. Prints, for each share, the medians of the time of a checkpoint from trigger to
completion, of what the snapshot adds to its micro-batch, of its append beside the stream, and of
the bytes that it wrote to the state history, also by the bytes of as many rows of a full one. With
``--write`` the figures go to ``docs/figures``; they are for this machine and this run only.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _quick import usual
from _results import Results, arguments
from _running_sum import configure, session, sums
from deltalake import DeltaTable

SHARES = (0.0, 0.001, 0.01, 0.1, 1.0)
WARM = usual(4, 1)  # a JVM compiles for long
SETTINGS = {"checkpoint.interval": usual("4s", "2s"), "key-groups": "16"}


class Job:
    """The job, and what its tables say of its checkpoints."""

    def __init__(self, root: Path, keys: int) -> None:
        """Start it, with a row for each key."""
        self._source, self._storage, self._files = root / "rows", root / "job", 0
        self._source.mkdir()
        self._keys, self._random = keys, np.random.default_rng(1)
        self.feed(1.0)
        spark = session("incremental", "6g")
        configure(spark, {**SETTINGS, "storage.path": str(self._storage)})
        reader = spark.readStream.schema("k long, v long").parquet(str(self._source))
        self.run = sums("incremental", spark, reader, str(root / "out")).start()

    def feed(self, share: float) -> int:
        """A file with a row for each of some keys; how many."""
        count = round(self._keys * share)
        if count:
            keys = self._random.choice(self._keys, count, replace=False)
            rows = pa.table({"k": keys, "v": np.ones(count, dtype=np.int64)})
            aside = self._source.parent / "aside"
            pq.write_table(rows, aside)
            aside.rename(self._source / f"{self._files:04d}.parquet")
            self._files += 1
        return count

    def completed(self) -> list[dict[str, Any]]:
        """The completed checkpoints, oldest first."""
        table = DeltaTable(str(self._storage / "checkpoints")).to_pyarrow_table()
        rows = [row for row in table.to_pylist() if row["kind"] == "COMPLETED"]
        return sorted(rows, key=lambda row: row["checkpoint_id"])

    def checkpoint(self, share: float) -> dict[str, Any]:
        """The checkpoint that holds a new share of changed keys, and nothing else; its bytes."""
        newest = self._next(0)["checkpoint_id"]
        due = self.feed(share)
        while True:
            fact = self._next(newest)
            changed = fact["stages"][0]["rows_changed"]
            if changed == due:  # its files are there until its set is compacted away
                return {**fact, "bytes": self._written(fact["checkpoint_id"])}
            assert changed == 0, (changed, due)  # the file came behind the barrier
            newest = fact["checkpoint_id"]

    def _next(self, newest: int) -> dict[str, Any]:
        while True:
            facts = [row for row in self.completed() if row["checkpoint_id"] > newest]
            if facts:
                return facts[-1] if newest == 0 else facts[0]
            time.sleep(0.1)

    def _written(self, checkpoint_id: int) -> int:
        """Bytes of the files of a set."""
        table = DeltaTable(str(self._storage / "state" / "sums"))
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return sum(a["size_bytes"] for a in actions if a["partition.set_id"] == checkpoint_id)


def main(keys: int, runs: int, write: bool) -> None:
    """Each share in turn, several times over."""
    results = {
        name: Results(f"incremental_{name.split()[0]}", unit)
        for name, unit in {
            "time": "ms, trigger to completion",
            "sync": "ms, in the micro-batch",
            "append": "ms, beside the stream",
            "bytes": "kB written",
        }.items()
    }
    with tempfile.TemporaryDirectory() as root:
        job = Job(Path(root), keys)
        try:
            while not any(f["stages"][0]["rows_changed"] == keys for f in job.completed()):
                time.sleep(0.2)
            found: dict[float, list[dict[str, Any]]] = {share: [] for share in SHARES}
            for _ in range(WARM + runs):
                for share in SHARES:
                    found[share].append(job.checkpoint(share))
            for share, facts in found.items():
                peer = f"{share:.1%} of the keys changed"
                for fact in facts[WARM:]:
                    stage = fact["stages"][0]
                    measured = {
                        "time": fact["duration_ms"],
                        "sync": stage["sync_ms"],
                        "append": stage["async_ms"],
                        "bytes": fact["bytes"] / 1000,
                    }
                    for name, value in measured.items():
                        runs_of = results[name].runs.setdefault(f"{keys:,} keys", {})
                        runs_of.setdefault(peer, []).append(value)
        finally:
            job.run.stop()
    for one in results.values():
        one.show(f"{keys:,} keys")
        if write:
            one.write()


if __name__ == "__main__":
    parser = arguments("Checkpoints of which little has changed.", "of each share")
    parser.add_argument("--keys", type=int, default=1_000_000)
    given = parser.parse_args()
    main(given.keys, given.runs, given.write)
