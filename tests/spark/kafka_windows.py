"""The job of ``windows.py`` over the events of ``kafka_clock.py``, in a process of its own.

``python kafka_windows.py ROOT SERVERS JARS [SETTING=VALUE ...]`` runs it until it is killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kafka_clock import source
from session import builder, with_delta
from windows import SETTINGS, windows

__all__ = ["main"]


def main(root: Path, servers: str, jars: str, *more: str) -> None:
    """Run the job for as long as this process lives."""
    conf = {"storage.path": str(root / "job"), **SETTINGS, "checkpoint.interval": "400ms"}
    conf |= dict(setting.split("=", 1) for setting in more)
    start = with_delta(builder()).config("spark.jars", jars).config("spark.driver.memory", "1g")
    for name, value in conf.items():
        start = start.config(f"spark.absflow.{name}", value)
    spark = start.getOrCreate()
    windows(spark, root, source(spark, servers)).start().await_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
