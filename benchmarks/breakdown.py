"""Where the time of a micro-batch goes, for a job of one stage and for one of two.

``python benchmarks/breakdown.py [--rows N] [--runs N] [--write]``. A running sum; medians over some
warm micro-batches, of the first stage's query, of: the phases that Spark reports; within
``addBatch`` the Spark job that reads, packs, runs the stage and writes files, and what is left,
which is planning in Python and Delta's commit; and the processor time of the JVM, of the driver's
Python and of the Python workers, each by micro-batch. Below it the limits: a query that brings the
same pages to an empty ``applyInPandasWithState``, a bare Delta commit of one row, and what the
memory's bandwidth makes of a copy of all rows and all state. With ``--write`` the figures go to
``docs/figures``; they are for this machine and this run only.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from _memory import jvm_pid
from _quick import QUICK, usual
from _results import Results, arguments
from _running_sum import add, configure, session
from _workloads import WORKLOADS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import absflow
from absflow.columnar.pieces import PAGE_BYTES
from absflow.spark.start.ranges import choose_ranges
from absflow.spark.stream.chain import by_range
from absflow.spark.stream.pages import PAGE_TYPE, data_pages
from absflow.storage.delta import tables
from absflow.storage.delta.transactions import DriverRows, append_once

PHASES = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")
WARM = usual(60, 12)
CASE, KEYS = WORKLOADS["1 M uniform keys"], 1_000_000
OUTPUT = "k long, total long"
WHOLE = "whole micro-batch"
Times = dict[str, list[float]]
_TICKS = os.sysconf("SC_CLK_TCK") / 1000


def cpu_ms(jvm: int) -> dict[str, float]:
    """Processor time so far, by kind of process."""
    used = {"JVM": 0.0, "driver's Python": 0.0, "Python workers": 0.0}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_text()
        except OSError:  # gone in the meantime
            continue
        ticks = (int(fields[11]) + int(fields[12])) / _TICKS
        if int(folder.name) == jvm:
            used["JVM"] += ticks
        elif int(folder.name) == os.getpid():
            used["driver's Python"] += ticks
        elif "pyspark.daemon" in command:
            used["Python workers"] += ticks
    return used


def job(spark: SparkSession, stages: int, rows: DataFrame, root: str) -> absflow.Job:
    """A chain of running sums."""
    configure(
        spark,
        {
            "storage.path": f"{root}/job",
            "checkpoint.interval": "1h",
            "key-groups": "16",
            "edges": "channel",
        },
    )
    made = absflow.Job("breakdown", spark)
    given: Any = made.source("rows", rows)
    for number in range(stages):
        given = made.stage(
            f"stage{number}", given, key="k", state="total long", output=OUTPUT, process=_process
        )
    made.sink("out", given, absflow.DeltaSink(f"{root}/out"))
    return made


def _process(rows: Any, state: Any, context: absflow.Context) -> absflow.Result:
    if "v" not in rows.column_names:
        rows = rows.rename_columns(["k", "v"])
    return add(rows, state, context)


def spark_jobs(
    spark: SparkSession, run_id: str
) -> dict[str, tuple[float, list[tuple[str, float]]]]:
    """Of each batch of a query: the time of its Spark job, and of the job's stages."""
    store = spark.sparkContext._jsc.sc().statusStore()
    every = store.jobsList(None)
    found = {}
    for number in range(every.size()):
        one = every.apply(number)
        if not (one.completionTime().isDefined() and one.description().isDefined()):
            continue
        description = one.description().get().splitlines()
        batch = next((line for line in description if line.startswith("batch = ")), None)
        if batch is None or f"runId = {run_id}" not in description or one.numCompletedStages() < 2:
            continue
        ids = one.stageIds()
        stages = [store.lastStageAttempt(ids.apply(place)) for place in range(ids.size())]
        took = [
            (each.stageId(), _ms(each.submissionTime(), each.completionTime()))
            for each in stages
            if each.submissionTime().isDefined() and each.completionTime().isDefined()
        ]
        names = ("read and pack", "shuffle, stage, unpack and write")
        parts = [(name, ms) for name, (_, ms) in zip(names, sorted(took), strict=False)]
        found[batch.split()[-1]] = _ms(one.submissionTime(), one.completionTime()), parts
    return found


def _ms(begun: Any, ended: Any) -> float:
    return float(ended.get().getTime() - begun.get().getTime())


def measure(
    spark: SparkSession, stages: int, source: Path, runs: int
) -> tuple[Times, dict[str, float]]:
    """Run the job; what its micro-batches took, ms, and their processor time, ms by micro-batch."""
    jvm = jvm_pid(spark)
    with tempfile.TemporaryDirectory() as root:
        reader = spark.readStream.schema(CASE.rows).option("maxFilesPerTrigger", 1)
        run = job(spark, stages, reader.parquet(str(source)), root).start()
        done, before = batches(spark, WARM), cpu_ms(jvm)
        begun = len(done)
        done = batches(spark, begun + runs)
        after, count = cpu_ms(jvm), len(done) - begun
        jobs = spark_jobs(spark, str(done[0].runId))
        run.stop()
    times: Times = defaultdict(list)
    for progress in done[begun:]:
        taken = progress.durationMs
        times[WHOLE].append(taken["triggerExecution"])
        for phase in PHASES:
            times[phase].append(taken.get(phase, 0))
        took, parts = jobs.get(str(progress.batchId), (0.0, []))
        for name, ms in parts:
            times[f"of addBatch: {name}"].append(ms)
        times["of addBatch: planning and Delta's commit"].append(taken["addBatch"] - took)
    return times, {name: (after[name] - before[name]) / count for name in before}


def batches(spark: SparkSession, due: int) -> list[Any]:
    """The micro-batches with rows of the first query, once there are so many."""
    while True:
        for query in spark.streams.active:
            # All of their progress costs the query time: asked for once.
            if (query.name or "").endswith("stage0") and (newest := query.lastProgress) is not None:
                if newest.batchId + 1 >= due:
                    return [p for p in query.recentProgress if p.numInputRows >= 1000]
        time.sleep(0.2)


def limits(spark: SparkSession, source: Path, runs: int) -> Times:
    """What no stage can be faster than, ms."""
    spec = absflow.Job("limits", spark)
    rows = spec.source("rows", spark.readStream.schema(CASE.rows).parquet(str(source)))
    stage = spec.stage("stage0", rows, key="k", state="total long", output=OUTPUT, process=_process)
    spec.sink("out", stage, absflow.DeltaSink(tempfile.mkdtemp()))
    declared = spec._checked().graph.stages["stage0"]
    reader = spark.readStream.schema(CASE.rows).option("maxFilesPerTrigger", 1)
    pages = data_pages(reader.parquet(str(source)), declared, "rows", PAGE_BYTES, 1)

    def nothing(
        _key: tuple[Any, ...], frames: Iterator[pd.DataFrame], _state: GroupState
    ) -> Iterator[pd.DataFrame]:
        for _ in frames:
            pass
        return iter(())

    key_groups = declared.key_groups
    grouped = by_range(pages, key_groups, choose_ranges(spark, key_groups))
    empty = grouped.applyInPandasWithState(
        nothing, PAGE_TYPE, "n long", "append", GroupStateTimeout.NoTimeout
    )
    with tempfile.TemporaryDirectory() as root:
        query = (
            empty.writeStream.format("noop")
            .outputMode("append")
            .queryName("limits/stage0")
            .option("checkpointLocation", f"{root}/checkpoint")
            .start()
        )
        done = batches(spark, WARM + runs)[WARM:]
        query.stop()
        row, seconds = pa.table({"n": [1]}), []
        tables.create(spark, f"{root}/table", row.schema)
        for number in range(WARM + runs):
            since = time.monotonic()
            append_once(DriverRows(spark, row), f"{root}/table", "breakdown", number, {})
            seconds.append(time.monotonic() - since)
    return {
        "an empty applyInPandasWithState, same pages": [
            float(p.durationMs["triggerExecution"]) for p in done
        ],
        "a bare Delta commit of one row": [1000 * each for each in seconds[WARM:]],
        "a copy of the rows and of all state in memory": _copies_ms(done[0].numInputRows, runs),
    }


def _copies_ms(rows: int, runs: int) -> list[float]:
    """Two columns of 64 bits for each row and each key, by one core."""
    columns = np.ones(2 * (rows + KEYS), dtype=np.int64)
    to = columns.copy()
    times = []
    for _ in range(runs):
        since = time.monotonic()
        np.copyto(to, columns)
        times.append((time.monotonic() - since) * 1000)
    return times


def main(rows: int, runs: int, write: bool) -> None:
    """Both jobs, then the limits."""
    spark = session("breakdown", "6g")
    results = Results("breakdown", "ms", (WHOLE,))
    with tempfile.TemporaryDirectory() as folder:
        CASE.write(Path(folder), WARM + 2 * runs + 4, rows)
        if not QUICK:  # in a JVM's first job much is compiled
            measure(spark, 1, Path(folder), runs)
        for stages in (1, 2):
            times, used = measure(spark, stages, Path(folder), runs)
            if stages == 1:
                times |= limits(spark, Path(folder), runs)
            name = f"{stages} stage{'s' * (stages > 1)}"
            results.runs[f"{name}, first one: time"] = times
            results.show(f"{name}, first one: time")
            results.runs[f"{name}: processor time"] = {what: [ms] for what, ms in used.items()}
            results.show(f"{name}: processor time")
    spark.stop()
    if write:
        results.write()


if __name__ == "__main__":
    parser = arguments(
        "Where the time of a micro-batch goes.", "micro-batches that are counted", quick=3
    )
    parser.add_argument("--rows", type=int, default=200_000, help="in a micro-batch")
    given = parser.parse_args()
    main(given.rows, given.runs, given.write)
