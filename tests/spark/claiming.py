"""The chain job as one of several drivers that start at once on a store without a lock.

``python claiming.py ROOT NAME COUNT``: the driver decides what to do, then waits until ``COUNT``
drivers have decided, and only then claims the job. The store is a local directory with one thing
more: a commit is put if absent between processes too, which Delta's log store for local files
ensures in one only.
"""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chain import SETTINGS, chain

from absflow.facts import lock
from absflow.spark.start import attempt
from absflow.storage.delta import tables, transactions

PATIENCE_S = 300


def alone(path: Path, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, in one process at a time."""

    def held(*args: Any, **named: Any) -> Any:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return function(*args, **named)

    return held


def together(root: Path, name: str, count: int, decide: Callable[..., Any]) -> Callable[..., Any]:
    """The decision, which is taken by all before any goes on."""

    def decided(*args: Any) -> Any:
        decision = decide(*args)
        (root / f"{name}.decided").touch()
        end = time.monotonic() + PATIENCE_S
        while len(list(root.glob("*.decided"))) < count:
            if time.monotonic() > end:
                raise TimeoutError("the other drivers have not come so far")
            time.sleep(0.02)
        return decision

    return decided


def main(root: Path, name: str, count: int) -> None:
    """Run the job in this process."""
    from session import builder, with_delta

    start = builder().config("spark.absflow.storage.path", str(root / "job"))
    for key, value in SETTINGS.items():
        start = start.config(f"spark.absflow.{key}", value)
    spark = with_delta(start).getOrCreate()
    lock.local_directory = lambda root: None
    transactions.append_once = alone(root / "commit", transactions.append_once)
    tables.create = alone(root / "commit", tables.create)
    attempt.decide_start = together(root, name, count, attempt.decide_start)
    chain(spark, root).start().await_termination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
