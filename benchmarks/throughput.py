"""Rows per second of keyed state: absflow's forms beside what Spark, Bytewax and PyFlink have.

``python benchmarks/throughput.py [--case NAME ...] [--only PEER ...] [--rows N] [--runs N]
[--write]``. Every peer does the work of ``_workloads.py`` on the same Parquet files. Those on Spark
read one a micro-batch and append what they emit to a Delta table: a row per touched key (per row: a
row per row). A JVM compiles what it runs often for a minute and longer, at the cost of what it
runs; so a round of the quick ones is not counted, nor are the first micro-batches of any, in which
keys are new. A run is 20 s of a job that goes on, in whole micro-batches, or one that takes longer:
rows by the time from its first trigger to the next run's. absflow, Bytewax and PyFlink take a
checkpoint every 10 s, and their runs have whole periods of it. In each of absflow's retention
compacts, deletes and vacuums, with its largest share of a job's time (``_housekeeping.py``).
Bytewax and PyFlink forget what they emit;
``_throughput_bytewax.py`` and ``_throughput_flink.py`` say how they are measured. Both have
environments of their own, which ``make bench`` makes.

How the peers are tuned: all on Spark have two shuffle partitions for two cores, whole-stage code
generation and FAIR scheduling as absflow has them. The built-in aggregation runs with both of
Spark's state stores, in memory and RocksDB with changelog checkpointing; the faster one is what
others are compared with. ``transformWithStateInPandas`` needs RocksDB; ``applyInPandasWithState``
has the store in memory, which is the faster one here. absflow runs the ``StatefulProcessor`` of the
one and the function of the other as they are. It has 16 key groups, and in the first
case 128 as well, which is its default. Beside the speeds stands the longest time without a row, and
the most memory that a Python worker of absflow or Spark had, loads included. With ``--write`` the
figures go to ``docs/figures``, those of cases that did not run stay; they are for this machine and
this run only.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _forms import OneKey, Processor, aggregates, columnar
from _housekeeping import ALL, SETTINGS
from _memory import Memory, jvm_pid
from _on_spark import ROCKS, FailedError, measured
from _periods import RUN_S, Runs
from _quick import QUICK, usual
from _results import Peer, Results, arguments
from _running_sum import configure, session
from _workloads import WORKLOADS, Workload
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupStateTimeout

import absflow

HERE = Path(__file__).parent

Start = Callable[[Workload, DataFrame, str], Any]  # gives what can be stopped


def ours(form: str, function: Callable[[Workload], Any], key_groups: int = 16) -> Start:
    """A job of one stage."""

    def start(workload: Workload, rows: DataFrame, root: str) -> Any:
        spark = rows.sparkSession
        own = {"storage.path": f"{root}/job", "key-groups": str(key_groups)}
        configure(spark, {**SETTINGS, **own})
        job = absflow.Job("throughput", spark)
        stage = job.stage(
            "stage",
            job.source("rows", rows),
            key=workload.key,
            state=None if form.startswith("stateful-processor") else workload.state,
            output=workload.output,
            process=function(workload),
            form=form,
        )
        job.sink("out", stage, absflow.DeltaSink(f"{root}/out"))
        return job.start()

    return start


def _append(frame: DataFrame, root: str, mode: str = "append") -> StreamingQuery:
    def write(batch: DataFrame, _number: int) -> None:
        batch.write.format("delta").mode("append").save(f"{root}/out")

    writer = frame.writeStream.outputMode(mode).foreachBatch(write)
    return writer.option("checkpointLocation", f"{root}/checkpoint").start()


def plain(workload: Workload, rows: DataFrame, root: str) -> StreamingQuery:
    """The function per key, as Spark runs it."""
    made = rows.groupBy(*workload.key).applyInPandasWithState(
        OneKey(workload).__call__,
        workload.output,
        workload.state,
        "append",
        GroupStateTimeout.NoTimeout,
    )
    return _append(made, root)


def processor(workload: Workload, rows: DataFrame, root: str) -> StreamingQuery:
    """The function per key, as Spark's newer interface has it."""
    grouped = rows.groupBy(*workload.key)
    made = grouped.transformWithStateInPandas(
        Processor(workload), workload.output, "Append", "None"
    )
    return _append(made, root)


def built_in(workload: Workload, rows: DataFrame, root: str) -> StreamingQuery:
    """Spark's own aggregation in the JVM."""
    grouped = rows.groupBy(*workload.key).agg(*aggregates(workload))
    return _append(grouped, root, "update")


BUILT_IN, PLAIN = "built-in aggregation", "applyInPandasWithState"
_EACH = Peer("exactly once", "each micro-batch")
_OURS = Peer("exactly once", "10 s")
ON_SPARK: dict[str, tuple[Start, dict[str, str], Peer]] = {
    "absflow, columnar": (ours("arrow", columnar), {}, _OURS),
    "absflow, columnar, 128 key groups": (ours("arrow", columnar, 128), {}, _OURS),
    "absflow, per row": (ours("per-row", lambda workload: workload.fold), {}, _OURS),
    "absflow, per key": (ours("per-key", lambda workload: OneKey(workload).__call__), {}, _OURS),
    "absflow, StatefulProcessor": (ours("stateful-processor-in-pandas", Processor), {}, _OURS),
    f"{BUILT_IN}, memory": (built_in, {}, _EACH),
    f"{BUILT_IN}, RocksDB": (built_in, ROCKS, _EACH),
    "transformWithStateInPandas": (processor, ROCKS, _EACH),
    PLAIN: (plain, {}, _EACH),
}
# Name -> program, its environment, its arguments behind folder and case.
OTHERS: dict[str, tuple[str, str, Peer]] = {
    "Bytewax, 1 worker": ("bytewax", "1", Peer("at least once", "10 s")),
    "Bytewax, 2 workers": ("bytewax", "2", Peer("at least once", "10 s")),
    "PyFlink, process": ("flink", "process", Peer("exactly once", "10 s")),
    "PyFlink, thread": ("flink", "thread", Peer("exactly once", "10 s")),
}

# A micro-batch of fewer has barriers alone.
LEAST_ROWS = 1_000
# For each run, as many as the quickest may need; so many more before.
FILES, WARM_FILES = usual(90, 50), 30
# One run of absflow waits for a plan of retention, which takes as long as two of the others.
LEAST_RUNS = usual(2, 1)
# Those on Spark that warm its JVM up in no time.
EARLY = ("absflow, columnar", "absflow, per row", f"{BUILT_IN}, memory", f"{BUILT_IN}, RocksDB")
_FAST = (*EARLY, "Bytewax, 1 worker", "Bytewax, 2 workers")
_QUICK = ("absflow, columnar", f"{BUILT_IN}, RocksDB")
_MANY_KEYS, _BY_KEY_CASE = "10 M keys, 1 % a batch", "100 k uniform keys, one by one"
_BY_KEY = ("absflow, per key", "absflow, StatefulProcessor", "transformWithStateInPandas", PLAIN)
FEW: dict[str, tuple[str, ...]] = {
    **{case: usual(_FAST, _QUICK) for case in WORKLOADS},
    "100 k uniform keys": usual(
        (*_FAST, "absflow, columnar, 128 key groups"),
        (EARLY[0], *EARLY[2:], "absflow, columnar, 128 key groups"),
    ),
    _BY_KEY_CASE: usual(
        (*_BY_KEY, "PyFlink, process", "PyFlink, thread"), ("absflow, per key", PLAIN)
    ),
    _MANY_KEYS: _QUICK,
}
CASES = usual(
    [*WORKLOADS],
    ["100 k uniform keys", "1 M uniform keys", "NEXMark 17, (auction, day)", _BY_KEY_CASE],
)


def measure(
    spark: SparkSession, peer: str, case: str, source: Path, runs: int, *, early: bool = False
) -> tuple[Runs, float]:
    """Of each run rows per second and the longest pause; the most MB that a Python worker had."""
    start, conf, _ = ON_SPARK[peer]
    does = None
    if peer.startswith("absflow") and not early:
        does = ALL if "uniform" in case else ("VACUUM",)
    workload, files = WORKLOADS[case], len(list(source.iterdir()))
    reader = spark.readStream.schema(workload.rows).option("maxFilesPerTrigger", 1)

    def warm(moments: list[tuple[float, int]]) -> float | None:
        """Once the keys are loaded."""
        some = [at for at, rows in moments if rows >= LEAST_ROWS]
        if len(some) >= files:
            raise FailedError("it has read all files")
        return some[workload.loads] if len(some) > workload.loads else None

    jvm = jvm_pid(spark)
    with Memory(jvm) as seen:
        try:
            found = measured(
                spark,
                lambda root: start(workload, reader.parquet(str(source)), root),
                conf,
                warm,
                runs,
                does=does,
            )
        except FailedError as error:
            print(f"{peer} is not measured, for it failed: {error}")
            return ([], []), 0.0
    return found, seen.worker


def measure_other(peer: str, case: str, source: Path, runs: int) -> Runs:
    """As :func:`measure`; nothing if it does not run here, and why."""
    name, given, _ = OTHERS[peer]
    return run_program(peer, name, f"_throughput_{name}.py", [str(source), case, given, str(runs)])


def run_program(peer: str, name: str, program: str, given: list[str]) -> Runs:
    """Have a program measure in the environment of this name."""
    python = HERE.parent / f".venv-{name}" / "bin" / "python"
    if not python.exists():
        print(f"{peer} is not measured: there is no {python}; make bench makes it")
        return [], []
    command = [str(python), str(HERE / program), *given]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        print(f"{peer} is not measured, for it failed: {done.stderr.splitlines()[-1:]}")
        return [], []
    found = json.loads(done.stdout.splitlines()[-1])
    return found["rows/s"], found.get("longest pause", [])


def main(cases: list[str], peers: list[str], rows: int, runs: int, write: bool) -> None:
    """Each case, each peer in turn."""
    spark = session("throughput", "6g")
    promises = {name: peer for name, (*_, peer) in (ON_SPARK | OTHERS).items()}
    results = Results("throughput", "rows/s", (BUILT_IN, PLAIN), peers=promises, keeps=WORKLOADS)
    pauses = Results("throughput_pause", "s, longest without a row", keeps=WORKLOADS)
    memory = Results("memory", "MB, most of one Python worker", keeps=WORKLOADS)
    for case in cases:
        workload = WORKLOADS[case]
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder)
            size = rows // 4 if QUICK and case == _BY_KEY_CASE else rows
            files = workload.loads + WARM_FILES + max(runs, LEAST_RUNS) * FILES
            workload.write(source, files, size)
            if case == cases[0]:
                # The more a JVM has compiled the faster it is: who comes first would lose by it.
                for peer in (peer for peer in peers if peer in usual(EARLY, EARLY[:1])):
                    measure(spark, peer, case, source, 1, early=True)
            for peer in (peer for peer in peers if peer in FEW[case]):
                if peer in ON_SPARK:
                    (speeds, longest), worker = measure(spark, peer, case, source, runs)
                    if worker and not peer.startswith(BUILT_IN):
                        memory.add(case, peer, [worker])
                else:
                    speeds, longest = measure_other(peer, case, source, runs)
                results.add(case, peer, speeds)
                pauses.add(case, peer, longest)
        for found in (results, pauses, memory):
            found.show(case)
            if write:  # now, for all of them take an hour
                found.write()
    spark.stop()


if __name__ == "__main__":
    parser = arguments("Throughput of keyed state, beside peers.", f"of {RUN_S} s or longer")
    parser.add_argument("--case", nargs="+", default=CASES, choices=[*WORKLOADS])
    parser.add_argument("--only", nargs="+", default=[*ON_SPARK, *OTHERS])
    parser.add_argument("--rows", type=int, default=200_000, help="in a micro-batch")
    given = parser.parse_args()
    main(given.case, given.only, given.rows, given.runs, given.write)
