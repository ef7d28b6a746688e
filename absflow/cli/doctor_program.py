"""What ``absflow doctor`` has spark-submit run: it looks at a session and its workers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from absflow.errors import SettingsError, StorageError, VersionError
from absflow.settings.catalog import PREFIX
from absflow.settings.reading import Settings
from absflow.spark.versions import Check, session_checks, session_here
from absflow.spark.worker.asking import SilentWorkersError, ask_workers
from absflow.spark.worker.installed import found_on_workers, worker_checks
from absflow.spark.worker.probe import check_root
from absflow.storage.root import StorageRoot

__all__ = ["clock_check", "main"]

# What a person may take two clocks for equal by; a phase of a checkpoint is often shorter.
_SKEW_S = 1.0


def main() -> None:
    """Write the checks, as JSON, into the file that the first argument names."""
    spark = SparkSession.builder.appName("absflow doctor").getOrCreate()
    checks = [*session_checks(session_here(spark)), *_workers(spark)]
    checks += _job(spark, dict(spark.sparkContext.getConf().getAll()))
    file = Path(sys.argv[1])
    file.write_text(json.dumps([asdict(check) for check in checks]), encoding="utf-8")
    spark.stop()


def _workers(spark: SparkSession) -> list[Check]:
    try:
        return worker_checks(found_on_workers(spark.sparkContext))
    except VersionError as error:
        return [Check("workers", str(error), "an answer of each", "mend this first", False)]


def _job(spark: SparkSession, conf: dict[str, str]) -> Iterator[Check]:
    """Of the settings, and of the storage root that they name."""
    name = f"{PREFIX}storage.path"
    if name not in conf:
        yield Check("settings", f"none of a job, as {name} is not set", "any", "", True)
        return
    try:
        root = Settings.from_conf(conf).storage_path
    except SettingsError as error:
        yield Check("settings", str(error), "those of docs/settings.md", "correct them", False)
        return
    yield Check("settings", "each is known and has a value that it can have", "that", "", True)
    wanted = "a place where driver and workers write, and see what each other wrote"
    try:
        opened = StorageRoot.open(spark, root)
        check_root(spark, opened.files, opened.layout.root)
    except StorageError as error:
        yield Check("storage root", str(error), wanted, "mend this first", False)
        return
    yield Check("storage root", f"{root!r}, {wanted}", wanted, "", True)
    yield from _clocks(spark.sparkContext)


def _clocks(context: SparkContext) -> Iterator[Check]:
    if str(context.master).startswith("local"):
        return  # they are the driver's own

    def look(_numbers: Iterable[int]) -> Iterator[tuple[str, float]]:
        import platform
        import time

        yield platform.node(), time.time()

    before = time.time()
    try:
        found = ask_workers(context, look)
    except SilentWorkersError as error:
        yield Check("clocks", f"no worker that answers ({error})", "all", "mend this first", False)
        return
    yield clock_check(before, time.time(), found)


def clock_check(before: float, after: float, found: Iterable[tuple[str, float]]) -> Check:
    """Whether the clocks of workers go with the driver's, to a second.

    Args:
        before: the driver's clock before they were asked, in s.
        after: the same when they had answered.
        found: names of machines, and what their clocks said in between.

    >>> print(clock_check(10.0, 12.0, [("b", 12.5), ("c", 10.5)]))
    clocks: those of workers and driver differ by less than 1 s
    >>> print(clock_check(10.0, 12.0, [("b", 17.5), ("c", 6.0)]))
    ... # doctest: +NORMALIZE_WHITESPACE
    clocks: found b 5.5 s fast, c 4.0 s slow, expected less than 1 s; let NTP set them, as delays
    of checkpoints and times of rows are read from them
    """
    off = {name: max(at - after, 0.0) - max(before - at, 0.0) for name, at in found}
    wrong = [
        f"{name} {abs(by):.1f} s {'fast' if by > 0 else 'slow'}"
        for name, by in sorted(off.items())
        if abs(by) >= _SKEW_S
    ]
    if not wrong:
        same = f"those of workers and driver differ by less than {_SKEW_S:g} s"
        return Check("clocks", same, same, "", True)
    remedy = "let NTP set them, as delays of checkpoints and times of rows are read from them"
    return Check("clocks", ", ".join(wrong), f"less than {_SKEW_S:g} s", remedy, False)
