"""What is installed where the workers run, asked before anything of a job does."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from pyspark import SparkContext
from pyspark.sql import SparkSession

from absflow.errors import VersionError
from absflow.spark.versions import Check, package_checks, refuse_wrong
from absflow.spark.worker.asking import SilentWorkersError, ask_workers

__all__ = ["check_workers", "found_on_workers", "worker_checks"]

# What is asked for, by its name as a package.
_ASKED = ("pyarrow", "pandas")


def check_workers(spark: SparkSession, more: Collection[str] = ()) -> None:
    """See that the workers' Python has what a stage needs.

    Costs nothing where that is this very Python, else a small job of Spark.

    Args:
        spark: the session.
        more: packages that sinks need there.

    Raises:
        VersionError: it has not; one line for each difference.
    """
    context = spark.sparkContext
    if str(context.master).startswith("local") and _is_this(context.pythonExec):
        return
    refuse_wrong(worker_checks(found_on_workers(context, more)))


def found_on_workers(
    context: SparkContext, more: Collection[str] = ()
) -> dict[str, dict[str, str | None]]:
    """The versions of packages by where they were found, in words; as many looks as cores.

    Args:
        context: Spark's.
        more: packages beside those of each stage.

    Raises:
        VersionError: no worker answers.
    """

    def look(_numbers: Iterable[int]) -> Iterator[tuple[str, dict[str, str | None]]]:
        import importlib.metadata
        import importlib.util
        import platform
        import sys

        def version(name: str) -> str | None:
            try:
                return importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                return None

        found = {name: version(name) for name in asked}
        found["absflow"] = "there" if importlib.util.find_spec("absflow") else None
        yield f"{sys.executable} on {platform.node()}", found

    asked = (*_ASKED, *more)
    try:
        return dict(ask_workers(context, look))
    except SilentWorkersError as error:
        raise VersionError(
            f"workers: found none that answers ({error}), expected Python "
            f"{sys.version_info[0]}.{sys.version_info[1]} at {context.pythonExec!r} on each "
            "machine; set PYSPARK_PYTHON to it"
        ) from error


def worker_checks(found: Mapping[str, Mapping[str, str | None]]) -> list[Check]:
    """Of what was found on workers."""
    made = []
    for place, versions in found.items():
        checks = package_checks({name: versions[name] for name in _ASKED})
        checks += [
            Check(name, version or "none", "it", f"pip install {name}", version is not None)
            for name, version in versions.items()
            if name not in _ASKED
        ]
        made += [
            replace(
                check,
                what=f"{check.what} on workers ({place})",
                remedy=f"{check.remedy} there, or set PYSPARK_PYTHON to a Python that has it",
            )
            for check in checks
        ]
    return made


def _is_this(program: str) -> bool:
    """Whether a program is this Python, in this environment: under one name of several."""
    found = shutil.which(program)
    if found is None:
        return False
    pair = (found, sys.executable)
    folders, files = ({look(path) for path in pair} for look in (_folder, os.path.realpath))
    return len(folders) == len(files) == 1


def _folder(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))
