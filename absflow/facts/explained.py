"""Errors of Spark about the files of a job, in absflow's words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.errors.exceptions import captured
from pyspark.sql import SparkSession

from absflow.errors import DamagedError, StorageError
from absflow.facts.damage import damage_error, file_in, set_error
from absflow.facts.spark_reader import SparkStorageReader
from absflow.protocol.checkpoints import SetDigest
from absflow.storage.delta import tables
from absflow.storage.layout import Layout

__all__ = ["check_sets", "damage_in", "explain_errors", "explained"]

# By storage root, who can say more of the text of an error.
_roots: dict[str, Callable[[str], DamagedError | None]] = {}
_convert = captured.convert_exception


def damage_in(text: str, spark: SparkSession, layout: Layout) -> DamagedError | None:
    """What is to be said of an error of Spark that is about a file below a storage root."""
    found = file_in(text, layout.root)
    return damage_error(SparkStorageReader(spark), layout, *found) if found else None


@contextmanager
def explained(spark: SparkSession, layout: Layout) -> Iterator[None]:
    """Within the block, an error of Spark about a file below the root is a DamagedError.

    One of Java that is about something else is a StorageError.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if (damage := damage_in(str(error), spark, layout)) is not None:
            # The JVM's stack says nothing that the message does not.
            raise damage from None
        if not isinstance(error, Py4JJavaError):
            raise
        raise StorageError(
            f"Spark could not read or write under {layout.root!r}: "
            f"{error.java_exception.toString()}; the driver and every executor must reach it"
        ) from error


def check_sets(
    spark: SparkSession,
    layout: Layout,
    table: str,
    due: Iterable[SetDigest],
    seen: Mapping[int, SetDigest],
) -> None:
    """See that the sets of a state history have the rows that were written.

    Raises:
        DamagedError: one has not.
    """
    for digest in due:
        found = seen.get(digest.set_id, SetDigest(digest.set_id, 0, 0))
        if found != digest:
            files = tables.read(spark, layout.state(table)).inputFiles()
            mine = [path for path in files if f"/set_id={digest.set_id}/" in path]
            reader = SparkStorageReader(spark)
            raise set_error(reader, layout, table, digest, found, mine)


def explain_errors(spark: SparkSession, layout: Layout) -> None:
    """From now on, whatever a frame over the tables of this root says of a damaged file.

    A frame fails when it is run, in anybody's hands. Where PySpark makes its errors of those of the
    JVM, this one is made, too; a handler beside that would be lost with the next session.
    """
    _roots[layout.root] = lambda text: damage_in(text, spark, layout)
    captured.convert_exception = _converted  # type: ignore[assignment]


def _converted(error: Any) -> Any:
    if error is not None and error.toString().startswith("org.apache.spark.SparkException"):
        jvm: Any = SparkContext._jvm
        text = getattr(jvm, "org.apache.spark.util.Utils").exceptionString(error)
        for explain in list(_roots.values()):
            if (damage := explain(text)) is not None:
                return damage
    return _convert(error)
