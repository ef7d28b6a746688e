"""The queries of a running job: started, watched, and started again when they have died.

A query's progress and death come as events of Spark's listener, which may lose some. So a query
of which no event has come for a while is also looked at. What is learned in both ways counts once:
a death by the run of the query that it ends, progress by the batch. With an event that is lost only
the rows of its batch are lost to :class:`absflow.spark.control.progress.StageProgress`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from absflow.columnar.spec import StageSpec
from absflow.errors import JobFailedError, StorageError
from absflow.protocol.coordinator.messages import InputExhausted, RootInput
from absflow.protocol.restarts import RestartPolicy, on_failure
from absflow.spark.batch.backpressure import Backpressure
from absflow.spark.batch.listener import BatchDone, QueryDied, QueryIdle, batch_done, exhausted
from absflow.spark.control.failures import QueryFailure
from absflow.spark.control.progress import StageProgress
from absflow.spark.control.query import ChainQuery
from absflow.storage import clock
from absflow.telemetry.happenings import BatchRan, QueryFailed, QueryRestarted, Say
from absflow.telemetry.lines import log

__all__ = ["Queries"]

_LOOK_EVERY_MS = 5_000


class Queries:
    """All of a driver's run of a job; used by the job's thread, but for :meth:`progress`."""

    def __init__(
        self,
        job: str,
        policy: RestartPolicy,
        failure: Callable[[str], QueryFailure],
        backpressure: Backpressure,
        post: Callable[[InputExhausted | QueryDied], None],
        say: Say = log,
    ) -> None:
        """Without any yet.

        Args:
            job: the job's name.
            policy: whether and when a dead one is started again.
            failure: what is to be said of one that died with an error of this text.
            backpressure: is given how far each is.
            post: puts an event into the queue of the job's thread.
            say: is given what happens to them.
        """
        self._job = job
        self._policy = policy
        self._failure = failure
        self._backpressure = backpressure
        self._post = post
        self._say = say
        self._queries: list[ChainQuery] = []
        self._by_run: dict[str, ChainQuery] = {}
        self._looked_ms = 0

    def start(self, queries: Iterable[ChainQuery]) -> None:
        """Make them, and when all could be made, start them."""
        for query in queries:
            self._queries.append(query)
        for query in self._queries:
            self._start(query)

    def stop(self) -> None:
        """Stop them; whatever comes of them from here on says nothing new."""
        self._by_run.clear()
        for query in self._queries:
            query.stop()
        for query in self._queries:
            query.close()

    def progress(self) -> dict[str, StageProgress]:
        """How far each stage is."""
        return {
            name: replace(query.time_progress(name), load=self._backpressure.load(name))
            for query in self._queries
            for name in query.names
        }

    def done(self, event: BatchDone) -> None:
        """A micro-batch is committed."""
        query = self._by_run.get(event.run_id)
        if query is None:
            return  # a query that is not ours, or was replaced
        query.silent = False
        before = query.progress
        if event.batch_id <= before.batch_id:
            return  # it was seen before its event came
        self._backpressure.done(query.names[0], event)
        self._say(BatchRan(query.names[0], event.end_ms - event.start_ms))
        rows, took_ms = query.rows_of(event), max(1, event.end_ms - event.start_ms)
        query.progress = StageProgress(
            event.batch_id, before.total_rows + rows, rows * 1000 / took_ms
        )
        self._end_inputs(query.first, event.exhausted)

    def idle(self, event: QueryIdle) -> None:
        """A query has nothing to do, so no batch shows what its bounded inputs have left."""
        query = self._by_run.get(event.run_id)
        if query is None:
            return
        query.progress = replace(query.progress, rows_per_second=0.0)
        progress = query.last_progress()
        if progress:
            self._end_inputs(query.first, exhausted(progress))

    def died(self, event: QueryDied) -> None:
        """A query has died: have it started again.

        Raises:
            JobFailedError: it has died too often, or somebody has stopped it.
        """
        query = self._by_run.pop(event.run_id, None)
        if query is None:
            return  # it was stopped with the job, or its death is known
        self._backpressure.died(query.names[0])
        if event.error is None:
            raise JobFailedError(
                f"the query of {query.title} was stopped from outside of the job, "
                "which cannot go on without it; start the job again, and stop it by run.stop()"
            )
        self._failed(query, event.error)

    def _failed(self, query: ChainQuery, error: str) -> None:
        policy = self._policy
        now = clock.steady_ms()
        query.restarts, delay = on_failure(policy, query.restarts, query.started_ms, now)
        failed = self._failure(error)
        if delay is None or failed.is_final:
            # Never from Spark's own error: its stack is screens long, and Spark has logged it.
            raise JobFailedError(
                failed.at_end(
                    self._job,
                    f"the query of {query.title} died after {query.restarts.in_a_row} restarts in "
                    f"a row (spark.absflow.restart.attempts is {policy.attempts})",
                )
            ) from failed.cause
        self._say(QueryFailed(tuple(query.names), query.title, delay, failed.words))
        query.restart_at_ms = now + delay

    def look(self, now_ms: int) -> None:
        """Start what is to be started again, and look at those that are silent."""
        for query in self._queries:
            if query.restart_at_ms is not None and now_ms >= query.restart_at_ms:
                self._start_again(query)
        if now_ms - self._looked_ms < _LOOK_EVERY_MS:
            return
        self._looked_ms = now_ms
        for query in self._by_run.values():
            if query.silent:
                self._look_at(query)
            query.silent = True

    def _look_at(self, query: ChainQuery) -> None:
        death = query.death()
        if death is not None:
            self._post(death)  # as the listener does, so that all that it leads to is the same
            return
        progress = query.last_progress()
        if progress is None:
            return
        self._end_inputs(query.first, exhausted(progress))
        # Not at once, for its event may be on its way.
        if query.seen is not None and query.seen.batch_id > query.progress.batch_id:
            self.done(query.seen)
        query.seen = batch_done(progress)

    def _start_again(self, query: ChainQuery) -> None:
        """A start reads the storage, which may fail once more, as what it follows upon did."""
        try:
            self._start(query)
        except (Py4JJavaError, PySparkException, StorageError) as error:
            query.started_ms = clock.steady_ms()  # so that this one is in a row with the last
            self._failed(query, str(error))
        else:
            self._say(QueryRestarted(tuple(query.names), query.title))

    def _start(self, query: ChainQuery) -> None:
        query.start()
        self._by_run[query.run_id] = query

    def _end_inputs(self, stage: StageSpec, places: Sequence[int]) -> None:
        for place, given in enumerate(stage.inputs):
            if given.bounded and place in places:
                self._post(InputExhausted(RootInput(stage.name, given.name)))
