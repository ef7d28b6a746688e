"""What an old job's facts cost: a start, a plan of retention and the commands, by their number.

``python benchmarks/facts.py [--runs N] [--checkpoints N ...] [--folder PATH] [--write]``. The
tables are generated (``_fact_tables.py``): 100, 1,000 and 3,000,000 checkpoints of ten stages, of
which ten are kept, with a summary that is 500 checkpoints old, and with logs as retention leaves
them. The job's ten queries are real, but have nothing to read. It has taken one checkpoint before
anything is measured. The sizes take turns, and a run is a new process for each:

- a start: from ``job.start()`` to the first trigger, in a JVM that has done nothing yet, and the
  most memory in use until then, of the driver (Python) and of its JVM;
- then a plan of retention, as the driver's thread makes it: what is there, and what is to go; the
  median of five, behind two that are not counted;
- each command, from its process's start to its end, with default options.

Prints medians; with ``--write`` the figures go to ``docs/figures``. ``--folder`` keeps the tables,
and takes them from there the next time.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _fact_tables
from _memory import Memory, jvm_pid
from _quick import usual
from _results import Results, arguments
from _running_sum import configure, session
from pyspark.sql import SparkSession

import absflow
from absflow.facts.inventory import gather
from absflow.facts.spark_reader import SparkStorageReader
from absflow.graph.description import describe
from absflow.protocol.retention.inventory import RetentionPolicy
from absflow.protocol.retention.plan import plan
from absflow.spark.start.row_order import row_order_now
from absflow.storage.layout import Layout

STAGES = 10
START, PLAN = "a start, to the first trigger", "a plan of retention"
DRIVER, JVM = "a start: the driver, in Python", "a start: its JVM"
COMMANDS = {
    "absflow history": ["history"],
    "absflow show": ["show"],
    "absflow gc --dry-run": ["gc", "--dry-run"],
}
_WARM, _PLANS, _PATIENCE_S = 2, 5, 600


def keep(rows: Any, state: Any, context: absflow.Context) -> absflow.Result:
    """Never called."""
    raise NotImplementedError


def declared(spark: SparkSession, root: Path) -> absflow.Job:
    """A job of ten stages, one behind the other, each with a query of its own."""
    settings = {"edges": "channel", "key-groups": "2", "checkpoint.interval": "1s"}
    settings["checkpoint.retained"] = str(_fact_tables.KEPT)
    configure(spark, {**settings, "storage.path": str(root)})
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
    return job


def begin(count: int, folder: Path) -> None:
    """Write the tables, and let the job go on behind them until it has taken a checkpoint."""
    _fact_tables.write(folder / "job", count, [f"stage-{n}" for n in range(STAGES)])
    print(f"{count:,} checkpoints:", _fact_tables.sizes(folder / "job"), flush=True)


def prepare(folder: Path) -> None:
    """Have the job go on behind the tables, until it has taken a checkpoint."""
    spark = session("facts")
    job = declared(spark, folder / "job")
    graph = {
        name: {**stage, "table": name, "ranges": [0], "order": row_order_now(spark)}
        for name, stage in describe(job._checked().graph).items()
    }
    _fact_tables.start(folder / "job", graph)
    run = job.start()
    wait(lambda: run.progress().completed > 0)
    run.stop()
    spark.stop()


def wait(until: Callable[[], bool]) -> None:
    """Until it is so."""
    ends = time.monotonic() + _PATIENCE_S
    while not until():
        assert time.monotonic() < ends, "this takes too long"
        time.sleep(0.005)


def measure(count: int, folder: Path) -> dict[str, float]:
    """A start and plans, in this process."""
    spark = session("facts")
    job = declared(spark, folder / "job")
    jvm = jvm_pid(spark)
    log = Path(Layout(str(folder / "job")).barriers) / "_delta_log"
    version = max(int(name.stem) for name in log.glob("*.json"))
    gc.collect()
    with Memory(jvm) as memory:
        began = time.monotonic()
        run = job.start()
        wait((log / f"{version + 1:020d}.json").exists)
        took = time.monotonic() - began
    python = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    run.stop()
    reader, layout = SparkStorageReader(spark), Layout(str(folder / "job"))
    plans = []
    for _ in range(_WARM + _PLANS):
        began = time.monotonic()
        found = gather(reader, layout, {})
        plan(found.inventory, RetentionPolicy(_fact_tables.KEPT))
        plans.append(time.monotonic() - began)
    assert found.known.done_count > count, found.known
    assert len(found.known.there) <= 10 * _fact_tables.KEPT, found.known
    spark.stop()
    return {START: took, DRIVER: python, JVM: memory.jvm, PLAN: statistics.median(plans[_WARM:])}


def commands(newest: int, root: Path) -> dict[str, float]:
    """Each command, in a process of its own."""
    found = {}
    for name, command in COMMANDS.items():
        more = [str(newest)] if command == ["show"] else []
        run = [sys.executable, "-m", "absflow.cli.main", *command, *more, "--storage", str(root)]
        began = time.monotonic()
        subprocess.run(run, check=True, capture_output=True)
        found[name] = time.monotonic() - began
    return found


def in_process(*given: str) -> str:
    """The last line that this program prints if it is called so."""
    done = subprocess.run(
        [sys.executable, __file__, *given], check=True, stdout=subprocess.PIPE, text=True
    )
    return next(iter(done.stdout.strip().splitlines()[-1:]), "")


def main(given: argparse.Namespace, folder: Path) -> None:
    """The sizes in turns."""
    for count in given.checkpoints:
        place = folder / str(count)
        if not place.exists():
            begin(count, place)
        if not given.only_write and not (place / "job" / "work").exists():
            in_process("--prepare", str(place))
    if given.only_write:
        return
    names = {count: f"{count:,} checkpoints" for count in given.checkpoints}
    seconds = Results("facts", "s", tuple(names.values())[:-1])
    memory = Results("facts_memory", "MB", tuple(names.values())[:1])
    for _ in range(given.runs):
        for count, name in names.items():
            place = folder / str(count)
            found = json.loads(in_process("--one", str(count), str(place)))
            found |= commands(count + 1, place / "job")
            print(name, {what: round(value, 2) for what, value in found.items()}, flush=True)
            for what, value in found.items():
                results = memory if what in {DRIVER, JVM} else seconds
                results.runs.setdefault(what, {}).setdefault(name, []).append(value)
    for results in (seconds, memory):
        for case in results.runs:
            results.show(case)
        if given.write:
            results.write()


if __name__ == "__main__":
    parser = arguments("What an old job's facts cost.", "of each size")
    sizes = usual([100, 1000, 3_000_000], [100, 10_000])
    parser.add_argument("--checkpoints", type=int, nargs="*", default=sizes)
    parser.add_argument("--folder", type=Path, help="keeps the tables, or has them")
    parser.add_argument("--only-write", action="store_true", help="write the tables, measure later")
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    called = parser.parse_args()
    if called.prepare:
        prepare(called.prepare)
    elif called.one:
        print(json.dumps(measure(int(called.one[0]), Path(called.one[1]))))
    elif called.folder:
        main(called, called.folder)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(called, Path(temporary))
