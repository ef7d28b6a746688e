"""The settings of Spark and Delta that a job needs, or is better with, beside those of absflow."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

__all__ = [
    "DELTA_CATALOG",
    "DELTA_EXTENSION",
    "DELTA_PACKAGE",
    "SESSION_KEYS",
    "SessionKey",
    "comment",
    "session_lines",
]

# For --packages.
DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


@dataclass(frozen=True, slots=True)
class SessionKey:
    """One setting of the session.

    Attributes:
        name: the whole key.
        value: what to set it to.
        doc: why, for ``conf/absflow.conf``; "" for one that belongs to the key before it.
        local: right on local disks only.
    """

    name: str
    value: str
    doc: str
    local: bool = False


SESSION_KEYS = (
    SessionKey(
        "spark.jars.packages",
        DELTA_PACKAGE,
        "Delta, in the one version that absflow knows. Without these three a start is refused.",
    ),
    SessionKey("spark.sql.extensions", DELTA_EXTENSION, ""),
    SessionKey("spark.sql.catalog.spark_catalog", DELTA_CATALOG, ""),
    SessionKey(
        "spark.scheduler.mode",
        "FAIR",
        "A stage's history append must not queue behind the micro-batches.",
    ),
    SessionKey(
        "spark.sql.shuffle.partitions",
        "8",
        "Each micro-batch of each stage runs so many tasks; a few per core are enough.",
    ),
    SessionKey(
        "spark.databricks.delta.snapshotPartitions",
        "1",
        "The tables of a job have few files; one task is enough to know them.",
    ),
    SessionKey(
        "spark.log.level",
        "ERROR",
        "At its own level, INFO, Spark logs ten megabytes a minute of a job that has nothing to "
        "do. What absflow says is Python's logging, and does not change with it.",
    ),
    SessionKey("spark.ui.showConsoleProgress", "false", ""),
    SessionKey(
        "spark.delta.logStore.file.impl",
        "io.delta.storage.LocalLogStore",
        "Only on local disks, and where Hadoop has no native library (as in a PySpark from pip): "
        "the default starts two processes for each commit.",
        local=True,
    ),
)


def comment(text: str) -> list[str]:
    """A text as lines of comment in a properties file."""
    return [f"# {line}" for line in textwrap.wrap(text, 98)]


def session_lines(*, local: bool) -> list[str]:
    """These settings as lines of a properties file.

    Args:
        local: whether those for local disks are set; else they stand there as comments.
    """
    lines: list[str] = []
    for key in SESSION_KEYS:
        if key.doc:
            lines += ["", *comment(key.doc)]
        off = "" if local or not key.local else "# "
        lines.append(f"{off}{key.name:<{50 - len(off)}} {key.value}")
    return lines[1:]
