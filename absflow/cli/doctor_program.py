"""What ``absflow doctor`` has spark-submit run: it looks at a session and its workers."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import SparkSession

from absflow.errors import VersionError
from absflow.spark.versions import Check, session_checks, session_here
from absflow.spark.worker.installed import found_on_workers, worker_checks

__all__ = ["main"]


def main() -> None:
    """Write the checks, as JSON, into the file that the first argument names."""
    spark = SparkSession.builder.appName("absflow doctor").getOrCreate()
    checks = [*session_checks(session_here(spark)), *_workers(spark)]
    file = Path(sys.argv[1])
    file.write_text(json.dumps([asdict(check) for check in checks]), encoding="utf-8")
    spark.stop()


def _workers(spark: SparkSession) -> list[Check]:
    try:
        return worker_checks(found_on_workers(spark.sparkContext))
    except VersionError as error:
        return [Check("workers", str(error), "an answer of each", "mend this first", False)]
