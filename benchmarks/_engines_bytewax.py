"""``engines.py`` on Bytewax: one JSON line with the rows/s of each run, and its longest pause.

``python _engines_bytewax.py KEYS RUNS``, by a python that has bytewax. One worker, with recovery
into SQLite every 10 seconds. Rows are made thousands at a time by numpy; what comes to the sink is
counted and forgotten. ``_bytewax.py`` says what a run is.
"""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import json
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import numpy as np
from _bytewax import BATCH, Batches, run
from _periods import WARM_S, WARM_TIMES, Runs, runs_of

Row = tuple[int, ...]


def fold(state: Row | None, value: int) -> tuple[Row, Row]:
    """Count, sum and last value."""
    n, total, _ = state or (0, 0, 0)
    new = n + 1, total + value, value
    return new, new


def generated(keys: int) -> Batches:
    """Rows without end."""
    begun = time.monotonic()
    for number in count():
        random = np.random.default_rng([1, number])
        names = map(str, random.integers(0, keys, BATCH).tolist())
        items = list(zip(names, random.integers(0, 9, BATCH).tolist(), strict=True))
        warm = time.monotonic() > begun + WARM_S and number * BATCH >= WARM_TIMES * keys
        yield items, warm


def main(keys: int, runs: int, recovery: Path) -> Runs:
    """The rows/s of each run, and the longest time in it without a row."""
    from bytewax.recovery import init_db_dir

    init_db_dir(recovery, 1)
    seen = run({"rows": lambda: generated(keys)}, fold, runs, str(recovery))
    return runs_of(seen.rows, [at for at in seen.epochs if at >= (seen.warm or 0)], runs)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as there:
        speeds, pauses = main(int(sys.argv[1]), int(sys.argv[2]), Path(there))
        print(json.dumps({"rows/s": speeds, "longest pause": pauses}))
