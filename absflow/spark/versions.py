"""What must be installed for a job to run, checked at every start and by ``absflow doctor``.

A restore rewrites Spark's own offset files, an append goes through Delta's own transaction
(:mod:`absflow.storage.delta.classes`), and the per-key form calls Spark's own conversions. None of
these is a public interface, and each may change with any version. So a start on another version is
refused with one line for each difference, before anything is read.

This module imports nothing of what it looks for.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from absflow.errors import VersionError
from absflow.settings.session_keys import DELTA_CATALOG, DELTA_EXTENSION, DELTA_PACKAGE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "DELTA",
    "JAVA",
    "PANDAS",
    "PYARROW",
    "SPARK",
    "Check",
    "FoundSession",
    "check_packages",
    "check_versions",
    "java_check",
    "package_checks",
    "packages_here",
    "refuse_wrong",
    "session_checks",
    "session_here",
]

SPARK = "4.2.0"
DELTA = "4.4.0"
# At least.
JAVA = 17
PYARROW = "18"
# At least, and below.
PANDAS = ("2.2", "3")

_PACKAGES = ("pyspark", "delta-spark", "pandas", "pyarrow")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be as absflow needs it, and how it was found.

    Attributes:
        what: the thing.
        found: how it is here.
        expected: how it must be.
        remedy: what to do if it is not.
        holds: whether it is.
    """

    what: str
    found: str
    expected: str
    remedy: str
    holds: bool

    def __str__(self) -> str:
        """One line for people."""
        if self.holds:
            return f"{self.what}: {self.found}"
        return f"{self.what}: found {self.found}, expected {self.expected}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class FoundSession:
    """What runs in the JVM.

    Attributes:
        spark: the version of its Spark.
        java: of Java, the first number.
        delta: of the Delta jar; None if there is none.
        extensions: ``spark.sql.extensions``.
        catalog: ``spark.sql.catalog.spark_catalog``.
    """

    spark: str
    java: int
    delta: str | None
    extensions: str
    catalog: str


def check_versions(spark: SparkSession) -> None:
    """See that absflow knows the internals of what runs here.

    Raises:
        VersionError: it does not; one line for each difference.
    """
    refuse_wrong([*package_checks(packages_here()), *session_checks(session_here(spark))])


def check_packages() -> None:
    """See that what absflow imports is installed in a version that has what it imports.

    Raises:
        VersionError: it is not; one line for each difference.
    """
    refuse_wrong(c for c in package_checks(packages_here()) if c.what != "delta-spark")


def refuse_wrong(checks: Iterable[Check]) -> None:
    """Raise a VersionError of the checks that do not hold, if there are any."""
    wrong = [str(check) for check in checks if not check.holds]
    if wrong:
        raise VersionError("\n".join(wrong))


def packages_here() -> dict[str, str | None]:
    """The version of each package that a driver needs; None if it is not installed."""
    return {name: _version_of(name) for name in _PACKAGES}


def package_checks(versions: Mapping[str, str | None]) -> list[Check]:
    """Of the packages in a Python, by their versions.

    >>> [str(c) for c in package_checks({"pyspark": "4.0.1", "pyarrow": None})]
    ... # doctest: +NORMALIZE_WHITESPACE
    ['pyspark: found 4.0.1, expected 4.2.0; pip install pyspark==4.2.0',
     "pyarrow: found none, expected 18 or newer; pip install 'pyarrow>=18'"]
    """
    least, below = PANDAS
    due: dict[str, tuple[str, str, Callable[[str], bool]]] = {
        "pyspark": (SPARK, f"pyspark=={SPARK}", lambda v: v == SPARK),
        "delta-spark": (DELTA, f"delta-spark=={DELTA}", lambda v: v == DELTA),
        "pandas": (
            f"{least} or newer, but below {below}",
            f"'pandas>={least},<{below}'",
            lambda v: _numbers(least) <= _numbers(v) < _numbers(below),
        ),
        "pyarrow": (
            f"{PYARROW} or newer",
            f"'pyarrow>={PYARROW}'",
            lambda v: _numbers(v) >= _numbers(PYARROW),
        ),
    }
    made = []
    for name, version in versions.items():
        expected, wanted, fits = due[name]
        holds = version is not None and fits(version)
        made.append(Check(name, version or "none", expected, f"pip install {wanted}", holds))
    return made


def java_check(java: int | None) -> Check:
    """Of a Java of this first number; None if there is none."""
    return Check(
        what="Java",
        found="none" if java is None else str(java),
        expected=f"{JAVA} or newer",
        remedy=f"install one, and set JAVA_HOME to it (Spark {SPARK} does not start without)",
        holds=java is not None and java >= JAVA,
    )


def session_checks(found: FoundSession) -> list[Check]:
    """Of a session."""
    return [
        java_check(found.java),
        Check(
            "Spark",
            found.spark,
            SPARK,
            f"unset SPARK_HOME, or point it to Spark {SPARK}",
            found.spark == SPARK,
        ),
        Check(
            "Delta jar",
            found.delta or "none",
            DELTA,
            f"give --packages {DELTA_PACKAGE}, or build the session by "
            "configure_spark_with_delta_pip",
            found.delta == DELTA,
        ),
        _conf_check("spark.sql.extensions", found.extensions, DELTA_EXTENSION),
        _conf_check("spark.sql.catalog.spark_catalog", found.catalog, DELTA_CATALOG),
    ]


def _conf_check(key: str, value: str, wanted: str) -> Check:
    return Check(
        what=key,
        found=value or "none",
        expected=wanted,
        remedy="set it before the session is made",
        holds=wanted in (part.strip() for part in value.split(",")),
    )


def session_here(spark: SparkSession) -> FoundSession:
    """What runs in the JVM of a session."""
    jvm: Any = spark.sparkContext._jvm
    java = jvm.java.lang.System.getProperty("java.specification.version")
    return FoundSession(
        spark=spark.version,
        java=_numbers(java.removeprefix("1."))[0],
        delta=_delta_jar(jvm),
        extensions=spark.conf.get("spark.sql.extensions", "") or "",
        catalog=spark.conf.get("spark.sql.catalog.spark_catalog", "") or "",
    )


def _version_of(package: str) -> str | None:
    if package == "pyspark":  # that of a Spark in SPARK_HOME is no installed package
        try:
            import pyspark
        except ImportError:
            return None
        return str(pyspark.__version__)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _delta_jar(jvm: Any) -> str | None:
    """The version of the Delta jar; a step to a class that is not there gives a package."""
    version = jvm.io.delta.package.VERSION
    return str(version()) if callable(version) else None
