"""A seeded job with a known answer: two roots, three stages, a diamond with unequal lag.

::

    a ==> [left]  ==> [join] --> sink
     \\=> [right] ==/
    b ---/

``spark-submit points.py generator.py ROOT SINKS SINK_MODE`` runs it over the files below ``ROOT``
until there is a file ``ROOT/finish``; with ``tail`` behind that, there is a fourth stage between
``join`` and the sink, and the edge between them can be direct. With ``outside=KIND,WHERE,NAME`` its
rows go outside, too (:mod:`outside`). ``right`` is slow, so that rows of
``left`` are held for it. Every row has an id of its own, a key, and its number among the rows of
its key; ``left`` and ``right`` count the rows of a key themselves and put that number beside it. A
group is a function of the key, so rows of one key that take the same way stay in order to the very
end.

:func:`expected_sink` and :func:`expected_states` are the answer, by plain pandas.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from outside import outside_sink, state_sink
from pyspark.sql import SparkSession

import absflow

__all__ = ["SINK_MODES", "expected_sink", "expected_states", "files_of", "source_files"]

ROWS = "id long, k string, g long, seq long, v long"
OUTPUT = "id long, via string, k string, g long, seq long, nth long, v long"
# A file may have no key but null.
SCHEMA = pa.schema(
    [(n, pa.string() if n == "k" else pa.int64()) for n in ("id", "k", "g", "seq", "v")]
)
KEYS, GROUPS = 11, 5
# Ids of rows on their way to a stage, by stage and channel.
InFlight = Mapping[str, Mapping[str, Sequence[int]]]
NOTHING: InFlight = {}
SLOW_S = 0.1  # what a key group of `right` takes for each of its batches of `a`
SINK_MODES = ("immediate", "on-checkpoint")


def source_files(folder: Path, seed: int, rows: int, first_id: int) -> Iterator[Path]:
    """Write a file at every ``next``: of a random size around ``rows``, whole or not at all.

    Args:
        folder: created.
        seed: of sizes, keys and values.
        rows: a file has up to twice as many, and at least one.
        first_id: 0 or 1; ids rise by 2, so that those of two sources differ.
    """
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    seen = dict.fromkeys(range(KEYS), 0)
    number = 0
    while True:
        keys = random.integers(0, KEYS, int(random.integers(1, 2 * rows)))
        records = []
        for key, value in zip(keys.tolist(), random.integers(-100, 100, len(keys)), strict=True):
            seen[key] += 1
            records.append(
                {
                    "id": first_id,
                    "k": f"k{key}" if key else None,
                    "g": key % GROUPS,
                    "seq": seen[key],
                    "v": int(value),
                }
            )
            first_id += 2
        path, aside = folder / f"{number:06d}.parquet", folder / f".{number:06d}"
        pq.write_table(pa.Table.from_pylist(records, schema=SCHEMA), aside)
        os.utime(aside, (1_000_000 + number, 1_000_000 + number))  # Spark reads the oldest first
        aside.rename(path)
        number += 1
        yield path


def files_of(root: Path, source: str) -> list[Path]:
    """The files of a source in the order in which Spark reads them."""
    return sorted((root / source).glob("*.parquet"))


def _read(root: Path, source: str, count: int | None) -> pd.DataFrame:
    parts = [pd.read_parquet(path) for path in files_of(root, source)[:count]]
    return pd.concat(parts) if parts else pd.DataFrame(columns=["id", "k", "g", "seq", "v"])


def _behind(
    root: Path, a: int | None, b: int | None, in_flight: InFlight, join: bool
) -> pd.DataFrame:
    """The rows of all ways that have come to the end of ``left`` and ``right``, or of ``join``."""
    parts = []
    for via, source, count in (("a left", "a", a), ("a right", "a", a), ("b right", "b", b)):
        stage = via.partition(" ")[2]
        late = {*in_flight.get(stage, {}).get(source, ())}
        late |= {*in_flight.get("join", {}).get(stage, ())} if join else set()
        rows = _read(root, source, count).assign(via=via)
        parts.append(rows[~rows["id"].isin(late)])
    rows = pd.concat(parts)
    return rows.assign(nth=rows["seq"])[["id", "via", "k", "g", "seq", "nth", "v"]]


def expected_sink(
    root: Path, a: int | None = None, b: int | None = None, in_flight: InFlight = NOTHING
) -> pd.DataFrame:
    """The sink after the first ``a`` and ``b`` files (default: all) but for what is in flight."""
    return _behind(root, a, b, in_flight, join=True)


def expected_states(
    root: Path, a: int, b: int, in_flight: InFlight = NOTHING
) -> dict[str, pd.DataFrame]:
    """The state of every stage after the first ``a`` and ``b`` files but for what is in flight."""
    joined = expected_sink(root, a, b, in_flight)
    rows = _behind(root, a, b, in_flight, join=False)
    rows = rows.assign(from_b=rows["via"].str.startswith("b").astype("int64"))
    left, right = (rows[rows["via"].str.endswith(side)] for side in ("left", "right"))
    counted = {"n": ("id", "size"), "total": ("v", "sum")}
    return {
        "left": left.groupby("k", dropna=False).agg(**counted).reset_index(),
        "right": right.groupby("k", dropna=False)
        .agg(n=("id", "size"), n_b=("from_b", "sum"), total=("v", "sum"))
        .assign(n=lambda s: s["n"] - s["n_b"])
        .reset_index(),
        "join": joined.groupby("g").agg(**counted, ids=("id", "sum")).reset_index(),
        "tail": joined.groupby("via").agg(**counted, ids=("id", "sum")).reset_index(),
    }


def _sums(state: pa.Table, name: str, key: Any, amounts: Any) -> Any:
    """The sums of the touched keys with ``amounts`` added to those of their rows' keys."""
    sums = state[name].fill_null(0).to_numpy().copy()
    np.add.at(sums, key, amounts)
    return sums


def _numbered(via: str, counter: str, rows: pa.Table, state: pa.Table, key: Any) -> absflow.Result:
    """Emit each row with its number among the rows of its key, and count it in ``counter``.

    A batch that follows a kill may take two files, though it is to take one, and Spark reads the
    files of a batch in any order; so the order of a key's rows in it is made here.
    """
    by_id = np.argsort(rows["id"].to_numpy())
    rows, key = rows.take(pa.array(by_id)), key[by_id]
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    rank = np.empty(len(key), dtype=np.int64)
    rank[order] = np.arange(len(key)) - np.searchsorted(ordered, ordered)
    before = state[counter].fill_null(0).to_numpy()
    columns = {name: rows[name] for name in ("id", "k", "g", "seq", "v")}
    output = pa.table({**columns, "via": [via] * len(key), "nth": before[key] + rank + 1})
    new = {name: state[name].fill_null(0) for name in state.column_names if name != "k"}
    new[counter] = _sums(state, counter, key, 1)
    new["total"] = _sums(state, "total", key, rows["v"].to_numpy())
    return absflow.Result(
        output=output.select(["id", "via", "k", "g", "seq", "nth", "v"]),
        state=pa.table({"k": state["k"], **new}),
    )


def left(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Number the rows of ``a``."""
    return _numbered("a left", "n", rows, state, context.key_of_row)


def right_a(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Number the rows of ``a``, slowly."""
    time.sleep(SLOW_S)
    return _numbered("a right", "n", rows, state, context.key_of_row)


def right_b(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Number the rows of ``b``."""
    return _numbered("b right", "n_b", rows, state, context.key_of_row)


def join(rows: pa.Table, state: pa.Table, context: absflow.Context) -> absflow.Result:
    """Count, and hand on what comes."""
    key = context.key_of_row
    added = {"n": 1, "total": rows["v"].to_numpy(), "ids": rows["id"].to_numpy()}
    sums = {name: _sums(state, name, key, amounts) for name, amounts in added.items()}
    keys = {name: state[name] for name in state.column_names if name not in sums}
    return absflow.Result(output=rows, state=pa.table({**keys, **sums}))


def declare(
    spark: SparkSession,
    root: Path,
    sinks: str,
    sink_mode: str,
    *,
    tail: bool,
    outside: absflow.Sink | None = None,
    state: absflow.Sink | None = None,
) -> absflow.Job:
    """The job over the files below ``root``, with its sink below ``sinks``, and some outside."""
    job = absflow.Job("generator", spark)

    def source(name: str) -> Any:
        reader = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
        return job.source(name, reader.parquet(str(root / name)))

    def stage(name: str, inputs: Any, key: str, state: str, process: Any) -> Any:
        return job.stage(name, inputs, key=key, state=state, output=OUTPUT, process=process)

    a, b = source("a"), source("b")
    one = stage("left", a, "k", "n long, total long", left)
    two = stage("right", [a, b], "k", "n long, n_b long, total long", {"a": right_a, "b": right_b})
    counts = "n long, total long, ids long"
    last = stage("join", [one, two], "g", counts, {"left": join, "right": join})
    if tail:
        last = stage("tail", last, "via", counts, join)
    job.sink("out", last, absflow.DeltaSink(f"{sinks}/sink"), mode=sink_mode)
    if outside is not None:
        job.sink("outside", last, outside, mode="on-checkpoint")
    if state is not None:
        job.sink("of-join", "join", state, of="state")
    return job


def main(root: Path, sinks: str, sink_mode: str, *more: str) -> None:
    """Run the job until it is asked to finish."""
    spark = SparkSession.builder.appName("generator").getOrCreate()
    places = [each.removeprefix("outside=") for each in more if each.startswith("outside=")]
    place = places[0].split(",") if places else None
    outside, state = (outside_sink(*place), state_sink(*place)) if place else (None, None)
    job = declare(spark, root, sinks, sink_mode, tail="tail" in more, outside=outside, state=state)
    run = job.start()
    while not run.await_termination(timeout=0.2):
        if (root / "finish").exists():
            run.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
