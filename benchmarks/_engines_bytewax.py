"""``engines.py`` on Bytewax: one JSON line with the rows/s of each run, and its longest pause.

``python _engines_bytewax.py KEYS RUNS``, by a python that has bytewax. One worker, with recovery
into SQLite every 10 seconds. Rows are made thousands at a time by numpy; what comes to the sink is
counted and forgotten.
"""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from _engines import RUN_S, WARM_S, WARM_TIMES

BATCH, SNAPSHOT_S = 5_000, 10
Row = tuple[int, ...]


def fold(state: Row | None, value: int) -> tuple[Row, Row]:
    """Count, sum and last value."""
    n, total, _ = state or (0, 0, 0)
    new = n + 1, total + value, value
    return new, new


def flow(keys: int, runs: int, seen: list[tuple[float, int]]) -> Any:
    """Rows to a running state per key to nowhere; ``seen`` gets when rows came, and how many."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    class Part(StatefulSourcePartition):
        def __init__(self, place: int | None) -> None:
            self.place = place or 0
            self.begun = time.monotonic()
            self.end: float | None = None

        def next_batch(self) -> list[tuple[str, int]]:
            now = time.monotonic()
            warm = now > self.begun + WARM_S and self.place * BATCH >= WARM_TIMES * keys
            if self.end is None and warm:
                # So much longer, as what is on its way comes later.
                self.end = now + (runs + 1) * RUN_S
                seen.clear()
            if self.end is not None and now > self.end:
                raise StopIteration
            random = np.random.default_rng([1, self.place])
            self.place += 1
            names = map(str, random.integers(0, keys, BATCH).tolist())
            return list(zip(names, random.integers(0, 9, BATCH).tolist(), strict=True))

        def snapshot(self) -> int:
            return self.place

    class Generated(FixedPartitionedSource):
        def list_parts(self) -> list[str]:
            return ["rows"]

        def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Part:
            return Part(resume_state)

    class Nowhere(StatelessSinkPartition):
        def write_batch(self, items: list[Any]) -> None:
            seen.append((time.monotonic(), len(items)))

    class Sink(DynamicSink):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Nowhere:
            return Nowhere()

    made = Dataflow("engines")
    rows = op.input("rows", made, Generated())
    op.output("out", op.stateful_map("fold", rows, fold), Sink())
    return made


def main(keys: int, runs: int, recovery: Path) -> dict[str, list[float]]:
    """The rows/s of each run, and the longest time in it without a row."""
    from bytewax._bytewax import cluster_main
    from bytewax.recovery import RecoveryConfig, init_db_dir

    init_db_dir(recovery, 1)
    seen: list[tuple[float, int]] = []
    cluster_main(
        flow(keys, runs, seen),
        [],
        0,
        epoch_interval=timedelta(seconds=SNAPSHOT_S),
        recovery_config=RecoveryConfig(str(recovery)),
        worker_count_per_proc=1,
    )
    since = seen[0][0]
    speeds, pauses = [], []
    for number in range(runs):
        begin, end = since + number * RUN_S, since + (number + 1) * RUN_S
        inside = [(at, rows) for at, rows in seen if begin <= at < end]
        speeds.append(sum(rows for _, rows in inside) / RUN_S)
        times = [begin, *(at for at, _ in inside), end]
        pauses.append(max(later - earlier for earlier, later in itertools.pairwise(times)))
    return {"rows/s": speeds, "longest pause": pauses}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as there:
        print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), Path(there))))
