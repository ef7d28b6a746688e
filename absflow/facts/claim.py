"""One driver's claim on a storage root: its number, and what it may write because of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from absflow.errors import NotFoundError
from absflow.facts import columns, records
from absflow.facts.driver_table import DriverTable
from absflow.facts.fence import Fence
from absflow.facts.lock import RootLock
from absflow.facts.reading import FactReader
from absflow.facts.records import AttemptRecord
from absflow.facts.spark_reader import SparkStorageReader
from absflow.facts.writer import FactWriter
from absflow.protocol.checkpoints import AttemptFact
from absflow.protocol.restarts import RestartPolicy
from absflow.storage import clock
from absflow.storage.delta.log_back import LogBack
from absflow.storage.delta.tables import (
    CHECKPOINTS_PROPERTIES,
    JOB_PROPERTIES,
    found_version,
    table_id,
)
from absflow.storage.files import Files
from absflow.storage.layout import Layout
from absflow.storage.root import StorageRoot

__all__ = ["Claim", "begin_on", "job_of", "root_id"]

# Behind the job's name, what all its drivers commit facts as.
_DRIVER = "/driver"


class _RestsOnFacts(Protocol):
    @property
    def version(self) -> int:
        """The version of ``attempts`` that was there before its rows were read."""


_Decision = TypeVar("_Decision", bound=_RestsOnFacts)
_Begun = TypeVar("_Begun")


def job_of(files: Files, layout: Layout) -> str:
    """The name of the job under a storage root, by who has claimed it.

    Raises:
        NotFoundError: nobody has.
    """
    newest = found_version(files, layout.attempts)
    for commit in LogBack(files, layout.attempts, newest or 0).commits():
        for writer in commit.transactions:
            if writer.endswith(_DRIVER):
                return writer.removesuffix(_DRIVER)
    raise NotFoundError(f"no driver has written to {layout.attempts!r}")


def root_id(root: StorageRoot) -> str:
    """The id of a storage root, which no other has, not its forks either; it moves with it.

    Raises:
        StorageError: nobody has claimed it, or it cannot be read.
    """
    return table_id(root.spark, root.layout.attempts)


def begin_on(
    claim: Claim,
    decision: _Decision,
    begin: Callable[[_Decision], _Begun],
    decide_again: Callable[[], _Decision],
) -> tuple[_Decision, _Begun]:
    """Claim the job by the first fact of a decision, which rests on all facts before that one.

    Where no lock keeps two drivers apart, an older one may go on between the look at the facts and
    the claim. It commits nothing behind the claim, so what it has left is then looked at once more.

    Args:
        claim: this driver's.
        decision: what is to be done, by the facts as they were.
        begin: records the first fact of a decision.
        decide_again: the decision by the facts as they are now.

    Returns:
        The decision that holds, and what ``begin`` has returned for it.

    Raises:
        FencedError: another driver that started at the same time was first, or a newer one came.
        StorageError: the fact was not committed.
    """
    begun = begin(decision)
    while claim.others > decision.version:
        decision = decide_again()
        begun = begin(decision)
    return decision, begun


class Claim:
    """What lets a driver that holds the lock of a storage root write its facts.

    Older drivers notice the first fact that it records (:mod:`absflow.facts.fence`).

    Attributes:
        incarnation: this driver's number: higher than that of any before it; two that start at once
            may have the same, and then one of them is fenced by its first commit.
        driver: this driver's own name, which no other has.
        fence: notices a newer driver.
        lock: of the storage root; to be released once nothing of the job runs.
    """

    def __init__(
        self,
        root: StorageRoot,
        job: str,
        fingerprint: str,
        lock: RootLock,
        attempts: Iterable[AttemptRecord],
        policy: RestartPolicy,
    ) -> None:
        """Number this driver; nothing is written yet.

        Args:
            root: the storage root.
            job: the job's name.
            fingerprint: of the job's graph.
            lock: of the storage root.
            attempts: the facts of the table ``attempts``.
            policy: how often and when a fact that must be written is tried again.
        """
        self.incarnation: int = max((a.incarnation for a in attempts), default=0) + 1
        self.lock = lock
        files, table = root.files, root.layout.attempts
        paid = files.is_bucket(table)
        self.fence = Fence(files.read, files.names, table, self.incarnation, lock, paid=paid)
        self._spark = root.spark
        self._files = files
        self._layout = root.layout
        self._app_id = f"{job}{_DRIVER}"
        self.driver: str = uuid.uuid4().hex
        self._fingerprint = fingerprint
        self._policy = policy
        self._tables: dict[str, DriverTable] = {}

    def record(
        self,
        attempt: int,
        kind: AttemptFact,
        details: Mapping[str, Any] | None = None,
        restored_from: str | None = None,
    ) -> None:
        """Commit a fact to ``attempts``.

        Raises:
            FencedError: there is a newer driver.
            StorageError: it was not committed.
        """
        row = {
            "attempt": attempt,
            "incarnation": self.incarnation,
            "kind": kind.value,
            "at": records.timestamp(clock.now_ms()),
            "restored_from": restored_from,
            "fingerprint": self._fingerprint,
            "details": None if details is None else json.dumps(details),
        }
        self._table(self._layout.attempts, columns.ATTEMPTS).insist(row)

    @property
    def others(self) -> int:
        """The newest version of ``attempts`` that another driver may have committed."""
        return self._table(self._layout.attempts, columns.ATTEMPTS).others

    def tables(self, attempt: int) -> FactWriter:
        """The other tables, in which no older driver can commit from here on; errors as above."""
        return FactWriter(
            barriers=self._claimed(self._layout.barriers, columns.BARRIERS),
            overtakes=self._claimed(self._layout.overtakes, columns.OVERTAKES),
            checkpoints=self._claimed(
                self._layout.checkpoints, columns.CHECKPOINTS, CHECKPOINTS_PROPERTIES
            ),
            attempt=attempt,
            incarnation=self.incarnation,
            fingerprint=self._fingerprint,
            files=self._files,
            layout=self._layout,
            facts=FactReader(SparkStorageReader(self._spark), self._layout),
        )

    def _claimed(
        self, path: str, schema: pa.Schema, properties: Mapping[str, str] = JOB_PROPERTIES
    ) -> DriverTable:
        known = path in self._tables
        table = self._table(path, schema, properties)
        if not known and not self.lock.held:
            table.claim()
        return table

    def _table(
        self, path: str, schema: pa.Schema, properties: Mapping[str, str] = JOB_PROPERTIES
    ) -> DriverTable:
        if path not in self._tables:
            self._tables[path] = DriverTable(
                self._spark,
                self._files,
                path,
                schema,
                self._app_id,
                self.incarnation,
                self.driver,
                self.fence,
                self._policy,
                properties,
            )
        return self._tables[path]
