"""``engines.py`` on Flink SQL: one JSON line with the rows/s of each run.

``python _engines_flink.py KEYS BACKEND MINI_BATCH RUNS``, by a python that has apache-flink, and
with Java. All of it runs in the JVM: rows of Flink's own generator (``datagen``), ``GROUP BY``, and
``blackhole``, which forgets. The state is on the heap (``hashmap``) or in RocksDB, checkpoints are
exactly once, every 10 s. With ``on`` rows are taken in mini-batches of up to 50,000 or 1 s.
"""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

from _flink import Watch, configuration
from _periods import RUN_S, WARM_S, WARM_TIMES
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import StreamTableEnvironment

MINI_BATCH = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1s",
    "table.exec.mini-batch.size": "50000",
}


def main(keys: int, backend: str, mini_batch: bool, runs: int, root: Path) -> list[float]:
    """Rows per second of each run."""
    conf, port = configuration(root, {"state.backend.type": backend})
    env = StreamExecutionEnvironment.get_execution_environment(conf)
    tables = StreamTableEnvironment.create(env)
    for key, value in (MINI_BATCH if mini_batch else {}).items():
        tables.get_config().set(key, value)
    tables.execute_sql(
        "CREATE TABLE given (k BIGINT, v BIGINT) WITH ('connector' = 'datagen', "
        f"'rows-per-second' = '1000000000', 'fields.k.min' = '0', 'fields.k.max' = '{keys - 1}', "
        "'fields.v.min' = '0', 'fields.v.max' = '8')"
    )
    tables.execute_sql(
        "CREATE TABLE forgotten (k BIGINT, n BIGINT, total BIGINT, latest BIGINT, "
        "PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'blackhole')"
    )
    run = tables.execute_sql(
        "INSERT INTO forgotten SELECT k, COUNT(v), SUM(v), LAST_VALUE(v) FROM given GROUP BY k"
    ).get_job_client()
    watch = Watch(port, run.get_job_id())
    while watch.read(0)[1] == 0:
        pass
    time.sleep(WARM_S)
    while watch.read(0)[1] < WARM_TIMES * keys:
        pass
    seen = [watch.read(0)]
    before = watch.checkpoints()
    for _ in range(runs):
        time.sleep(RUN_S - 2)
        seen.append(watch.read(0))
    if watch.checkpoints() == before:
        sys.exit("no checkpoint has completed")
    run.cancel().result()
    return [
        (after[1] - before[1]) / (after[0] - before[0])
        for before, after in itertools.pairwise(seen)
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as there:
        given = sys.argv[1:]
        speeds = main(int(given[0]), given[1], given[2] == "on", int(given[3]), Path(there))
        print(json.dumps({"rows/s": speeds}))
