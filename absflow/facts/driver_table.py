"""A table of facts that only the driver writes, one commit for each fact.

Each commit carries a transaction id that rises with the driver's incarnation, and is looked up in
the log afterwards. Two drivers that start at once may have the same incarnation, and so the same
ids; Delta lets one commit of an id in and skips the other. So each commit also names its driver: a
commit that is not there under this driver's own name is an error, not a success, and an error of
the storage is none if the commit is there after all. Where no lock keeps two drivers apart, a
driver's first commit to each table holds no fact: behind it no older driver can commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from absflow.errors import FencedError, StorageError
from absflow.facts.fence import Fence
from absflow.protocol.restarts import RestartPolicy, Restarts, on_failure
from absflow.storage.delta import tables, transactions
from absflow.storage.delta.log import Commit, LogTail
from absflow.storage.files import Files

__all__ = ["DriverTable"]

_LOG = logging.getLogger(__name__)


class DriverTable:
    """A table of facts that only the driver writes.

    Attributes:
        others: the newest version that a driver other than this one may have committed, among those
            that this one has seen; -1 if there is none.
    """

    def __init__(
        self,
        spark: SparkSession,
        files: Files,
        path: str,
        schema: pa.Schema,
        app_id: str,
        incarnation: int,
        driver: str,
        fence: Fence,
        policy: RestartPolicy,
        properties: Mapping[str, str] = tables.JOB_PROPERTIES,
    ) -> None:
        """Create the table if it is not there.

        Args:
            spark: the session.
            files: reads the table's log.
            path: the table's.
            schema: its columns.
            app_id: the transactions of all drivers of the job carry it.
            incarnation: this driver's; two that start at once may have the same.
            driver: this driver's own name, which no other has.
            fence: notices a newer driver.
            policy: how often and when :meth:`insist` tries again.
            properties: of the table, if it is created.
        """
        tables.create(spark, path, schema, properties=properties)
        self._fence = fence
        self._spark = spark
        self._path = path
        self._schema = schema
        self._app_id = app_id
        self._incarnation = incarnation
        self._driver = driver
        self._policy = policy
        self._written = 0
        # Rows whose commit has failed, as far as is known; it may be there after all.
        self._unsure: list[dict[str, Any]] | None = None
        self._log = LogTail(files.read, files.names, path)
        self.others: int = self._log.version  # what is before was not read

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Append facts in one commit and see it in the log.

        Raises:
            FencedError: if there is a newer driver.
            StorageError: if it was not committed.
        """
        self._fence.check()
        self._commit([dict(row) for row in rows])

    def insist(self, *rows: Mapping[str, Any]) -> None:
        """As :meth:`append`, tried again while the storage fails, as a query that dies is.

        For facts without which the job cannot go on; it waits on the thread that calls it, so that
        facts keep their order.
        """
        tried = Restarts()
        while True:
            try:
                return self.append(*rows)
            except StorageError as error:
                tried, delay = on_failure(self._policy, tried, 0, 0)
                if delay is None:
                    raise
                _LOG.warning("a fact is written again in %d ms: %s", delay, error)
                time.sleep(delay / 1000)

    def claim(self) -> None:
        """Commit no row, so that no older driver can commit any more; errors as for a fact."""
        self._commit([])

    def _commit(self, rows: list[dict[str, Any]]) -> None:
        if rows != self._unsure:
            self._written += 1
        self._unsure = rows
        version = (self._incarnation << 32) + self._written
        table = pa.Table.from_pylist(rows, schema=self._schema)
        facts = transactions.DriverRows(self._spark, table)
        note = {"incarnation": self._incarnation, "driver": self._driver}
        while True:
            failure: Exception | None = None
            try:
                transactions.append_once(
                    facts, self._path, self._app_id, version, note, if_empty=True
                )
            except (PySparkException, Py4JError) as error:
                failure = error
            commits = self._log.advance()
            for commit in commits:
                if "incarnation" in commit.note and not self._is_mine(commit):
                    self.others = commit.version
                elif commit.transactions.get(self._app_id) == version:
                    self._unsure = None
                    return
            newest = self._log.transactions.get(self._app_id, -1)
            if failure is None or newest >= version:
                raise FencedError(
                    f"a commit to {self._path!r} was skipped: {self._who(newest >> 32)}. Another "
                    "driver runs on this storage root, so this one has stopped; start one only"
                ) from failure
            # An older driver's commit in between was a conflict; behind this one there is none.
            if not commits:
                raise StorageError(f"could not append to {self._path!r}: {failure}") from failure

    def _who(self, incarnation: int) -> str:
        if incarnation == self._incarnation:
            return f"a driver that started with this one took incarnation {incarnation} first"
        return f"the log has driver incarnation {incarnation}, this driver is {self._incarnation}"

    def _is_mine(self, commit: Commit) -> bool:
        return bool(commit.note.get("driver") == self._driver)
