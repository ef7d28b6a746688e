"""``engines.py`` on Pathway: one JSON line with the rows/s of each run.

``python _engines_pathway.py KEYS RUNS``, by a python that has pathway. Its snapshots of operators
ask for a licence key, so it runs without any: an upper bound, of what it does without a guarantee.
A table of rows in memory is grouped and forgotten. What a start takes is left out: a run is the
rows that one table has more than another, by the time that they take more.
"""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from _quick import usual

ROWS = usual(3_000_000, 1_000_000)


def seconds(keys: int, rows: int) -> float:
    """How long so many rows take, from a table in memory on."""
    import numpy as np
    import pandas as pd
    import pathway as pw

    random = np.random.default_rng(1)
    frame = pd.DataFrame({"k": random.integers(0, keys, rows), "v": random.integers(0, 9, rows)})
    table = pw.debug.table_from_pandas(frame)
    made = table.groupby(pw.this.k).reduce(
        pw.this.k,
        n=pw.reducers.count(),
        total=pw.reducers.sum(pw.this.v),
        latest=pw.reducers.latest(pw.this.v),
    )
    pw.io.null.write(made)
    begun = time.monotonic()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return time.monotonic() - begun


def main(keys: int, runs: int) -> list[float]:
    """Rows per second of each run; a process for each table."""
    env = {**os.environ, "PATHWAY_THREADS": "2"}

    def took(rows: int) -> float:
        command = [sys.executable, __file__, str(keys), "rows", str(rows)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
        return float(done.stdout.splitlines()[-1])

    return [ROWS / (took(2 * ROWS) - took(ROWS)) for _ in range(runs)]


if __name__ == "__main__":
    if sys.argv[2] == "rows":
        print(seconds(int(sys.argv[1]), int(sys.argv[3])))
    else:
        print(json.dumps({"rows/s": main(int(sys.argv[1]), int(sys.argv[2]))}))
