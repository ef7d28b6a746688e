"""Savepoints that people ask for, from Python or by a row of the ``requests`` table.

The command line writes that table and the driver only reads it, for two processes must not write
one table on a local file system. A row that wants a savepoint names the driver that it is for, so
no later one obeys it; its answer is a row of ``checkpoints``. A row that wants checkpoints deleted
is for every driver, and goes to :mod:`absflow.spark.retention`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from absflow.errors import SavepointFailedError
from absflow.protocol.deletion import Deletion
from absflow.protocol.messages import SavepointRequested
from absflow.spark.drain import Drain
from absflow.spark.driver import Answer, CoordinatorDriver
from absflow.storage import tables
from absflow.storage.delta_log import LogTail
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["Request", "Requests", "Savepoints"]


@dataclass(frozen=True, slots=True)
class Request:
    """A savepoint is wanted.

    Attributes:
        request: names the wish.
        stop: the job is to stop with it.
        drain: no stage is to go on behind it.
    """

    request: str
    stop: bool = False
    drain: bool = False


class Requests:
    """The requests to one driver, and those to any."""

    def __init__(self, spark: SparkSession, files: Files, layout: Layout, incarnation: int) -> None:
        """Follow the table; it need not be there yet."""
        self._spark = spark
        self._path = layout.requests
        self._incarnation = incarnation
        self._log = LogTail(files.read, files.names, self._path)
        # What stands since before this driver may be in no commit behind the log's checkpoint.
        self._news = self._log.version >= 0
        self._told: set[str] = set()

    def poll(self) -> list[Request | Deletion]:
        """What is new, in its order; costs one look for a file if nothing is."""
        if not (self._log.advance() or self._news):
            return []
        self._news = False
        table = tables.read(self._spark, self._path)
        mine = F.col("incarnation") == self._incarnation
        if "delete" in table.columns:
            mine |= F.col("delete").isNotNull()
        found = table.where(mine).orderBy("requested_at").toArrow().to_pylist()
        rows = [row for row in found if row["request"] not in self._told]
        self._told.update(row["request"] for row in rows)
        return [
            Deletion(row["request"], tuple(row["delete"]))
            if row.get("delete") is not None
            else Request(row["request"], bool(row["stop"]), bool(row["drain"]))
            for row in rows
        ]


class Savepoints:
    """What was asked for and has no answer yet; all but :meth:`ask` is for the job's thread.

    Attributes:
        drain: holds the stages while a savepoint with drain is under way.
        drained: the savepoint that the job stops with, drained; 0 if there is none.
    """

    def __init__(
        self,
        coordinator: CoordinatorDriver,
        requests: Requests,
        delete: Callable[[Deletion], None],
    ) -> None:
        """Ask ``coordinator`` for them; ``requests`` are those from outside.

        Args:
            coordinator: gets the wishes for savepoints.
            requests: the wishes from outside.
            delete: gets those for deletions; must not block.
        """
        self.drain = Drain()
        self.drained = 0
        self._coordinator = coordinator
        self._requests = requests
        self._delete = delete
        self._answers: dict[str, Future[int]] = {}
        self._draining = ""
        coordinator.on_answer = self._answered

    def ask(self, *, stop: bool, drain: bool) -> tuple[Request, Future[int]]:
        """A request for the job's thread, and its answer to come: the savepoint's id."""
        request = Request(uuid.uuid4().hex, stop, drain)
        answer = self._answers[request.request] = Future()
        return request, answer

    def poll(self, now_ms: int) -> bool:
        """Obey what has come from outside; whether the job is to stop."""
        stop = False
        for request in self._requests.poll():
            if isinstance(request, Deletion):
                self._delete(request)
            else:
                stop = self.obey(request, now_ms) or stop
        return stop

    def obey(self, request: Request, now_ms: int) -> bool:
        """Trigger a savepoint; whether the job is to stop at once."""
        if request.drain:
            # Before the barrier is written, so that no root stage gets past it.
            self._draining = request.request
            self.drain.begin(self._coordinator.state.next_id)
        asked = SavepointRequested(request.request, now_ms, request.stop)
        return self._coordinator.handle(asked)

    def refuse_all(self) -> None:
        """The job has ended: nobody will answer any more."""
        for request in list(self._answers):
            answer = self._answers.pop(request, None)
            if answer is not None:
                answer.set_exception(SavepointFailedError("the job has ended"))

    def _answered(self, answer: Answer) -> None:
        if answer.request == self._draining and answer.failed:
            self._draining = ""
            self.drain.give_up()
        elif answer.request == self._draining:
            self.drained = answer.checkpoint_id
        told = self._answers.pop(answer.request, None)
        if told is not None and answer.failed:
            which = f"savepoint {answer.checkpoint_id}" if answer.checkpoint_id else "a savepoint"
            told.set_exception(SavepointFailedError(f"{which} failed: {answer.failed}"))
        elif told is not None:
            told.set_result(answer.checkpoint_id)
