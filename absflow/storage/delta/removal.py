"""Files taken out of a Delta table by a partition column, without a job of Spark.

Delta's own DELETE puts the table's state together to find them, which takes seconds beside a job
that keeps every core busy. Here the log has said which they are, and Delta commits that they go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from absflow.storage.clock import now_ms
from absflow.storage.delta.classes import delta_classes
from absflow.storage.delta.live_files import LiveFile, LiveFiles

__all__ = ["remove_files"]

# Each goes through Py4J by itself.
_MOST = 1000


def remove_files(
    spark: SparkSession,
    path: str,
    gone: Callable[[LiveFile], bool],
    newest: Callable[[], LiveFiles | None],
) -> bool:
    """Take files out of a table, in one commit.

    What others add meanwhile stays. Of two that take the same file out Delta refuses the second.

    Args:
        spark: the session.
        path: the table's.
        gone: whether a file is to go.
        newest: the table's files as they are at the call; None if they are not known.

    Returns:
        False if it is for Delta to find them, and nothing was done.
    """
    scala = delta_classes(spark.sparkContext._jvm)
    session: Any = spark._jsparkSession
    with scala.active(session):
        transaction = scala.delta_log.forTable(session, path).startTransaction()
        # Only now: what was removed before this transaction is not looked at by Delta any more.
        found = newest()
        if found is None:
            return False
        removes = [_remove(name, file) for name, file in found.files.items() if gone(file)]
        if len(removes) > _MOST:
            return False
        if removes:
            # Delta looks for both when it writes its history.
            counts = {"numRemovedFiles": len(removes), "numDeletedRows": 0}
            transaction.registerSQLMetrics(session, scala.metrics(session, counts))
            operation = scala.delete(scala.nothing)
            transaction.commitIfNeeded(scala.actions(removes), operation, scala.map({}))
    return True


def _remove(name: str, file: LiveFile) -> dict[str, Any]:
    return {
        "remove": {
            "path": name,
            "deletionTimestamp": now_ms(),
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": dict(file.partition),
            "size": file.size,
        }
    }
