"""Savepoints that people ask for, from Python or by a row of the ``requests`` table.

The command line writes that table and the driver only reads it, for two processes must not write
one table on a local file system. A row that wants a savepoint names the driver that it is for, so
no later one obeys it; its answer is a row of ``checkpoints``. A row that wants checkpoints deleted
is for every driver, and goes to :mod:`absflow.spark.control.retention`.
"""

from __future__ import annotations

import uuid
from concurrent.futures import Future

from absflow.errors import SavepointFailedError
from absflow.facts.requests import SavepointRequest
from absflow.protocol.coordinator.messages import SavepointRequested
from absflow.spark.batch.drain import Drain
from absflow.spark.control.effects import Answer, CoordinatorEffects
from absflow.storage import clock

__all__ = ["Savepoints"]


class Savepoints:
    """What was asked for and has no answer yet; all but :meth:`ask` is for the job's thread.

    Attributes:
        drain: holds the stages while a savepoint with drain is under way.
        drained: the savepoint that the job stops with, drained; 0 if there is none.
    """

    def __init__(self, coordinator: CoordinatorEffects) -> None:
        """Ask ``coordinator`` for them."""
        self.drain = Drain()
        self.drained = 0
        self._coordinator = coordinator
        self._answers: dict[str, Future[int]] = {}
        self._draining = ""
        coordinator.on_answer = self._answered

    def ask(
        self, *, stop: bool, drain: bool, fire_timers: bool
    ) -> tuple[SavepointRequest, Future[int]]:
        """A request for the job's thread, and its answer to come: the savepoint's id."""
        request = SavepointRequest(uuid.uuid4().hex, stop, drain, fire_timers)
        answer = self._answers[request.request] = Future()
        return request, answer

    def trigger(self, request: SavepointRequest) -> bool:
        """Trigger a savepoint; whether the job is to stop at once."""
        if request.drain:
            # Before the barrier is written, so that no root stage gets past it.
            self._draining = request.request
            self.drain.begin(self._coordinator.state.next_id)
        if request.fire_timers:
            self._coordinator.ending = request.request
        now_ms, at_ms = clock.steady_ms(), clock.now_ms()
        asked = SavepointRequested(request.request, now_ms, at_ms, request.stop)
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
        future = self._answers.pop(answer.request, None)
        if future is not None and answer.failed:
            which = f"savepoint {answer.checkpoint_id}" if answer.checkpoint_id else "a savepoint"
            future.set_exception(SavepointFailedError(f"{which} failed: {answer.failed}"))
        elif future is not None:
            future.set_result(answer.checkpoint_id)
