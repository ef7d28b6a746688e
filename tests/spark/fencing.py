"""The chain job as a driver that writes down what it commits.

``python fencing.py ROOT LOG WAIT [NAME=VALUE ...]``: every append to a table becomes a line in
``LOG`` (begun and ended on the machine's monotonic clock); the driver waits for ``WAIT`` seconds
at most for the lock of the storage root; the rest are ``spark.absflow.*`` settings.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chain import SETTINGS, chain

from absflow.facts import lock
from absflow.storage.delta import transactions


def recording(record: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
    """``transactions.append_once``, which notes each append behind it."""
    append = transactions.append_once

    def recorded(frame: Any, path: str, app_id: str, version: int, note: Any, **named: Any) -> None:
        begun = time.monotonic()
        append(frame, path, app_id, version, note, **named)
        record(
            {
                "path": path,
                "app_id": app_id,
                "version": version,
                "begun": begun,
                "ended": time.monotonic(),
            }
        )

    return recorded


def main(root: Path, log: Path, wait_s: float, settings: dict[str, str]) -> None:
    """Run the job in this process."""
    from session import builder, with_delta

    lock.TAKEOVER_WAIT_S = wait_s
    start = builder().config("spark.absflow.storage.path", str(root / "job"))
    for name, value in (SETTINGS | settings).items():
        start = start.config(f"spark.absflow.{name}", value)
    spark = with_delta(start).getOrCreate()
    with log.open("a", buffering=1) as lines:
        transactions.append_once = recording(lambda made: lines.write(json.dumps(made) + "\n"))  # type: ignore
        chain(spark, root).start().await_termination()
    spark.stop()


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        float(sys.argv[3]),
        dict(word.split("=", 1) for word in sys.argv[4:]),
    )
