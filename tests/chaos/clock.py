"""A job with event time, timers and a known answer, for the kill loop.

``spark-submit points.py clock.py ROOT SINKS SINK_MODE`` runs the job of ``tests/spark/windows.py``
over the events below ``ROOT`` to its end, with its sinks below ``SINKS``: windows of events, then
days of windows, and a memory of windows, which expires. Events are so late, or so far from it, that
a batch that takes two files behind a kill, though it is to take one, comes to the same verdict.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import SparkSession

sys.path.append(str(Path(__file__).parents[1] / "spark"))
import windows

__all__ = ["main"]


def main(root: Path, sinks: str, sink_mode: str) -> None:
    """Run the job to its end."""
    cloudpickle.register_pickle_by_value(windows)  # workers have another path
    spark = SparkSession.builder.appName("clock").getOrCreate()
    job = windows.with_memory(windows.windows(spark, root, mode=sink_mode, sinks=sinks))
    job.start().await_termination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
