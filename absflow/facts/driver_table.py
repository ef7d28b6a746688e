"""A table of facts that only the driver writes, one commit for each fact.

Each commit carries a transaction id that rises with the driver's incarnation, and is looked up in
the log afterwards: a write that returned without a commit (Delta skips a transaction id that is not
new) is an error, not a success. Where no lock keeps two drivers apart, a driver's first commit to
each table holds no fact: behind it no older driver can commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from absflow.errors import FencedError, StorageError
from absflow.facts.fence import Fence
from absflow.storage.delta import tables, transactions
from absflow.storage.delta.log import LogTail
from absflow.storage.files import Files

__all__ = ["DriverTable", "fact_rows"]


def fact_rows(spark: SparkSession, files: Files, path: str) -> list[dict[str, Any]]:
    """The rows of a driver's table; none if it is not there."""
    if not files.names(f"{path}/_delta_log"):
        return []
    return tables.rows_of(spark, path)


class DriverTable:
    """A table of facts that only the driver writes."""

    def __init__(
        self,
        spark: SparkSession,
        files: Files,
        path: str,
        schema: pa.Schema,
        app_id: str,
        incarnation: int,
        fence: Fence,
    ) -> None:
        """Create the table if it is not there."""
        tables.create(spark, path, schema, properties=tables.JOB_PROPERTIES)
        self._fence = fence
        self._spark = spark
        self._path = path
        self._schema = schema
        self._app_id = app_id
        self._incarnation = incarnation
        self._written = 0
        self._log = LogTail(files.read, files.names, path)

    def rows(self) -> list[dict[str, Any]]:
        """All rows."""
        return tables.rows_of(self._spark, self._path)

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Append facts in one commit and see it in the log.

        Raises:
            FencedError: if there is a newer driver.
            StorageError: if it was not committed.
        """
        self._fence.check()
        self._commit([dict(row) for row in rows])

    def claim(self) -> None:
        """Commit no row, so that no older driver can commit any more; errors as for a fact."""
        self._commit([])

    def _commit(self, rows: list[dict[str, Any]]) -> None:
        self._written += 1
        version = (self._incarnation << 32) + self._written
        table = pa.Table.from_pylist(rows, schema=self._schema)
        facts = transactions.DriverRows(self._spark, table)
        try:
            note = {"incarnation": self._incarnation}
            transactions.append_once(facts, self._path, self._app_id, version, note, if_empty=True)
        except (PySparkException, Py4JError) as error:
            raise StorageError(f"could not append to {self._path!r}: {error}") from error
        commits = self._log.advance()
        if not any(c.transactions.get(self._app_id) == version for c in commits):
            newest = self._log.transactions.get(self._app_id, -1)
            raise FencedError(
                f"a commit to {self._path!r} was skipped: the log has driver incarnation "
                f"{newest >> 32}, this driver is {self._incarnation}. Another driver runs on this "
                "storage root, so this one has stopped; start one driver only"
            )
