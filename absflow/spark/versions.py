"""The versions of Spark and Delta that absflow runs on, checked at every start.

A restore rewrites Spark's own offset files, an append goes through Delta's own transaction
(:mod:`absflow.storage.delta.classes`), and the per-key form calls Spark's own conversions. None of
these is a public interface, and each may change with any version. So a start on another version is
refused with one sentence for each difference, before anything is read.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from absflow.errors import VersionError

__all__ = ["DELTA", "JAVA", "SPARK", "FoundVersions", "check_versions", "problems"]

SPARK = "4.2.0"
DELTA = "4.4.0"
# At least.
JAVA = 17

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


@dataclass(frozen=True, slots=True)
class FoundVersions:
    """What runs here.

    Attributes:
        spark: of the JVM's Spark.
        pyspark: of the Python package.
        delta: of the Delta jar in the JVM; None if there is none.
        delta_spark: of the Python package; None if it is not installed.
        java: of the JVM, its first number.
        extensions: ``spark.sql.extensions``.
    """

    spark: str
    pyspark: str
    delta: str | None
    delta_spark: str | None
    java: int
    extensions: str


def check_versions(spark: SparkSession) -> None:
    """See that absflow knows the internals of what runs here.

    Raises:
        VersionError: it does not.
    """
    found = problems(_find(spark))
    if found:
        raise VersionError("; ".join(found))


def problems(found: FoundVersions) -> list[str]:
    """What is not as absflow needs it, each with what to do.

    >>> problems(FoundVersions(SPARK, SPARK, DELTA, DELTA, 21, _EXTENSION))
    []
    """
    wrong = []
    if found.java < JAVA:
        wrong.append(f"found Java {found.java}, absflow needs {JAVA} or newer: set JAVA_HOME")
    if found.spark != SPARK:
        wrong.append(
            f"found Spark {found.spark}, absflow knows the internals of {SPARK} only: unset "
            f"SPARK_HOME, or point it to Spark {SPARK}"
        )
    if found.pyspark != SPARK:
        wrong.append(f"found pyspark {found.pyspark}: pip install pyspark=={SPARK}")
    if found.delta is None:
        wrong.append(
            "found no Delta jar in the JVM: add --packages "
            f"io.delta:delta-spark_{SPARK.rpartition('.')[0]}_2.13:{DELTA}"
        )
    elif found.delta != DELTA:
        wrong.append(
            f"found the Delta jar {found.delta}, absflow knows the internals of {DELTA} only: put "
            "that version into --packages"
        )
    if found.delta_spark != DELTA:
        seen = f"delta-spark {found.delta_spark}" if found.delta_spark else "no package delta-spark"
        wrong.append(f"found {seen}: pip install delta-spark=={DELTA}")
    if _EXTENSION not in found.extensions:
        wrong.append(
            f"found spark.sql.extensions={found.extensions!r}: set it to {_EXTENSION}, and "
            "spark.sql.catalog.spark_catalog to org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
    return wrong


def _find(spark: SparkSession) -> FoundVersions:
    jvm: Any = spark.sparkContext._jvm
    try:
        delta_spark = importlib.metadata.version("delta-spark")
    except importlib.metadata.PackageNotFoundError:
        delta_spark = None
    java = jvm.java.lang.System.getProperty("java.specification.version")
    numbers = re.findall(r"\d+", java.removeprefix("1."))
    return FoundVersions(
        spark=spark.version,
        pyspark=pyspark.__version__,
        delta=_delta_jar(jvm),
        delta_spark=delta_spark,
        java=int(numbers[0]),
        extensions=spark.conf.get("spark.sql.extensions", "") or "",
    )


def _delta_jar(jvm: Any) -> str | None:
    """The version of the Delta jar; a step to a class that is not there gives a package."""
    version = jvm.io.delta.package.VERSION
    return str(version()) if callable(version) else None
