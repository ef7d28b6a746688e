"""What an old job's facts cost: a start, a plan of retention and the commands, by their number.

The tables are generated (``_fact_tables.py``): 100, 1,000 and 3,000,000 checkpoints of ten stages,
of which ten are kept, with a log of a week and a summary that is 500 checkpoints old. Each size has
a process of its own. Measured are the pieces that read facts, not the start of a cluster: the
decision, the claim's tables with the recovery of the coordinator, the inventory with a plan, and
the commands, each a process. All is done twice: the first time much of it is Spark's own beginning.
``python benchmarks/facts.py [--checkpoints N ...] [--folder PATH]``; memory is of the driver
(Python) and its JVM.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _fact_tables
from _memory import Memory
from _running_sum import configure, session
from pyspark.sql import SparkSession

import absflow
from absflow.facts.claim import Claim
from absflow.facts.inventory import JobInventory, gather
from absflow.facts.lock import hold
from absflow.facts.spark_reader import SparkStorageReader
from absflow.graph.description import describe, fingerprint, topology
from absflow.protocol.coordinator.messages import Policy
from absflow.protocol.retention.inventory import RetentionPolicy
from absflow.protocol.retention.plan import explain, plan
from absflow.spark.model import JobSpec
from absflow.spark.start.decision import decide_start
from absflow.spark.start.row_order import row_order_now
from absflow.storage.root import StorageRoot

STAGES = 10
_CASES = ("the first time", "again")
_COMMANDS = {
    "absflow history": ["history"],
    "absflow show": ["show"],
    "absflow gc --dry-run": ["gc", "--dry-run", "--retained", str(_fact_tables.KEPT)],
}


def keep(rows: Any, state: Any, context: absflow.Context) -> absflow.Result:
    """Never called."""
    raise NotImplementedError


def declared(spark: SparkSession, root: Path) -> JobSpec:
    """A job of ten stages, one behind the other."""
    configure(spark, {"storage.path": str(root), "edges": "channel", "key-groups": "2"})
    job = absflow.Job("facts", spark)
    (root.parent / "in").mkdir(exist_ok=True)
    node = job.source("rows", spark.readStream.schema("k long, v long").parquet(f"{root}/../in"))
    for number in range(STAGES):
        node = job.stage(
            f"stage-{number}",
            node,
            key="k",
            state="v long",
            output="k long, v long",
            process=keep,
        )
    return job._checked()


def timed(what: str, seconds: dict[str, float], act: Callable[[], Any]) -> Any:
    """What it gives; how long it took goes into ``seconds``."""
    started = time.monotonic()
    given = act()
    seconds[what] = round(time.monotonic() - started, 2)
    return given


def start(root: StorageRoot, job: JobSpec, seconds: dict[str, float]) -> None:
    """The pieces of a start that read facts."""
    decision = timed("decision", seconds, lambda: decide_start(root, job))
    lock = hold(root.layout.root, lambda: None)
    try:
        policy = job.settings.restart_policy
        claim = Claim(root, "facts", fingerprint(job.graph), lock, decision.rows, policy)
        facts = timed("tables of the claim", seconds, lambda: claim.tables(1))
        limits = Policy(10_000, 60_000, 0, 1, 0, 60_000, None)
        graph = topology(job.graph)
        coordinator, _ = timed(
            "recovery", seconds, lambda: facts.recover(graph, limits, 0, None, full=False)
        )
        assert coordinator.completed is not None
        assert coordinator.next_id == coordinator.completed_id + 1
    finally:
        lock.release()


def planned(root: StorageRoot, seconds: dict[str, float]) -> JobInventory:
    """A plan of retention."""
    policy = RetentionPolicy(_fact_tables.KEPT, _fact_tables.COMPACTED_EVERY)
    reader = SparkStorageReader(root.spark)
    found = timed("inventory", seconds, lambda: gather(reader, root.layout, {}))
    timed("plan", seconds, lambda: plan(found.inventory, policy))
    explain(found.inventory, policy)
    return found


def commands(root: Path, newest: int, seconds: dict[str, float]) -> None:
    """Each command, in a process of its own."""
    for name, command in _COMMANDS.items():
        more = [str(newest)] if command == ["show"] else []
        run = [sys.executable, "-m", "absflow.cli.main", *command, *more, "--storage", str(root)]
        timed(name, seconds, lambda run=run: subprocess.run(run, check=True, capture_output=True))


def measure(count: int, folder: Path) -> dict[str, Any]:
    """All pieces at so many checkpoints."""
    spark = session("facts")
    job = declared(spark, folder / "job")
    order = row_order_now(spark)
    graph = {
        name: {**stage, "table": name, "ranges": [0], "order": order}
        for name, stage in describe(job.graph).items()
    }
    _fact_tables.start(folder / "job", graph)
    root = StorageRoot.open(spark, str(folder / "job"))
    found: dict[str, Any] = {}
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    for case in _CASES:
        seconds: dict[str, float] = {}
        gc.collect()
        spark.sparkContext._jvm.java.lang.System.gc()
        own = _resident()
        with Memory(jvm) as memory:
            start(root, job, seconds)
            there = planned(root, seconds)
        assert there.known.done_count == count, there.known
        assert there.known.there == list(range(count - _fact_tables.KEPT + 1, count + 1))
        commands(folder / "job", count, seconds)
        python = max(0.0, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000) - own)
        found[case] = {**seconds, "driver MB more": round(python), "JVM MB": round(memory.jvm)}
    spark.stop()
    return found


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main(counts: list[int], kept: Path | None, *, only_write: bool) -> None:
    """Each size in a process of its own, then all beside each other."""
    results = {}
    for count in counts:
        with tempfile.TemporaryDirectory() as temporary:
            folder = kept / str(count) if kept else Path(temporary) / "new"
            if not folder.exists():
                _fact_tables.write(folder / "job", count, [f"stage-{n}" for n in range(STAGES)])
            print(f"{count:,} checkpoints:", _fact_tables.sizes(folder / "job"), flush=True)
            if only_write:
                continue
            one = [sys.executable, __file__, "--one", str(count), str(folder)]
            done = subprocess.run(one, check=True, stdout=subprocess.PIPE, text=True)
        results[count] = json.loads(done.stdout.strip().splitlines()[-1])
        print(results[count], flush=True)
    if only_write:
        return
    for case in _CASES:
        print(f"\n{case:<24}" + "".join(f"{count:>12,}" for count in counts))
        for what in results[counts[0]][case]:
            row = "".join(f"{results[count][case][what]:>12,}" for count in counts)
            print(f"{what:<24}{row}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=int, nargs="*", default=[100, 1000, 3_000_000])
    parser.add_argument("--folder", type=Path, help="keeps the tables, or has them")
    parser.add_argument("--only-write", action="store_true", help="write the tables, measure later")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(int(given.one[0]), Path(given.one[1]))))
    else:
        main(given.checkpoints, given.folder, only_write=given.only_write)
