"""A running job: its queries, its coordinator, and the one thread that watches over both.

That thread owns the coordinator's state, the driver's tables and the queries. Everything else
(micro-batches, history threads, the listener, callers) only puts events into its queue.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from absflow.columnar.pages import PageKind
from absflow.errors import FencedError, JobFailedError, SettingsError, StorageError
from absflow.facts.requests import Requests, SavepointRequest
from absflow.protocol.checkpoints import AttemptFact
from absflow.protocol.coordinator.messages import (
    Event,
    InputExhausted,
    RootInput,
    StopRequested,
    Tick,
)
from absflow.protocol.restarts import on_failure
from absflow.protocol.retention.deletion import Deletion
from absflow.spark.batch.backpressure import Backpressure
from absflow.spark.batch.listener import BatchDone, QueryDied, QueryIdle, QueryListener
from absflow.spark.control.progress import Progress, StageProgress
from absflow.spark.control.publisher import PublicationFailed, Publisher
from absflow.spark.control.query import ChainQuery
from absflow.spark.control.retention import FactWanted, Retention
from absflow.spark.control.savepoints import Savepoints
from absflow.spark.model import JobSpec
from absflow.spark.sources.delta import begins_in_batch_2
from absflow.spark.start.attempt import prepare_attempt
from absflow.storage import clock
from absflow.storage.delta import tables
from absflow.storage.files import Files

__all__ = ["Run"]

_LOG = logging.getLogger(__name__)


_LOOK_EVERY_MS = 500


_Told = (
    Event | BatchDone | QueryIdle | QueryDied | PublicationFailed | FactWanted | SavepointRequest
)


class Run:
    """A started job. Made by :meth:`absflow.Job.start`."""

    def __init__(self, spark: SparkSession, job: JobSpec) -> None:
        """Check and prepare everything; nothing of the job runs yet.

        Raises:
            StorageError: the storage root cannot be used, or another driver does not let go of it.
            GraphError: the graph is not the one that its state belongs to, or a sink's table is
                another one.
            RestoreError: the checkpoint cannot be restored as asked.
        """
        self._spark = spark
        self._job = job
        self._graph = job.graph
        self._settings = job.settings
        self._files = Files(spark)
        self._events: queue.SimpleQueue[_Told] = queue.SimpleQueue()
        self._done = threading.Event()
        self._failure: BaseException | None = None
        self._begun = prepare_attempt(spark, job)
        self._layout = self._begun.layout
        self._attempt = self._begun.attempt
        self._coordinator = self._begun.coordinator
        try:
            incarnation = self._begun.claim.incarnation
            requests = Requests(spark, self._files, self._layout, incarnation)
            self._backpressure = Backpressure(
                self._files,
                self._layout,
                self._attempt,
                self._graph.stages,
                self._settings.channel_max_backlog_bytes,
                clock.now_ms,
            )
        except BaseException:  # nobody will have this run, to end it
            self._begun.claim.lock.release()
            raise
        self._savepoints = Savepoints(self._coordinator, requests, delete=self._delete)
        self._unflushed: dict[str, int] = {}
        self._queries: list[ChainQuery] = []
        self._by_run: dict[str, ChainQuery] = {}
        self._looked_ms = 0
        self._listener = QueryListener(self._events.put)
        self._thread = threading.Thread(
            target=self._watch, name=f"absflow-{self._graph.job}", daemon=True
        )

    # -- for callers --------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether the job runs."""
        return not self._done.is_set()

    @property
    def finished_checkpoint(self) -> int | None:
        """The checkpoint that holds all input, once every (bounded) source has been read."""
        return self._coordinator.finished_checkpoint

    def progress(self) -> Progress:
        """How far the job is now."""
        state = self._coordinator.state
        return Progress(
            checkpoint_id=state.completed_id,
            completed=self._coordinator.completed_count,
            pending=tuple(sorted(state.pending)),
            stages={
                name: replace(query.progress, load=self._backpressure.load(name))
                for query in self._queries
                for name in query.names
            },
        )

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the job has ended.

        Args:
            timeout: how long to wait at most, in seconds.

        Returns:
            Whether it has ended.

        Raises:
            JobFailedError: it gave up; ``__cause__`` says why.
            FencedError: a newer driver of the job took over.
        """
        if not self._done.wait(timeout):
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def savepoint(self, timeout: float | None = None) -> int:
        """Take a savepoint: a full checkpoint that no retention deletes.

        Args:
            timeout: how long to wait for it, in seconds. It goes on all the same.

        Returns:
            Its id, once it has completed.

        Raises:
            SavepointFailedError: it was aborted, or the job is ending.
            TimeoutError: it has not completed yet.
        """
        return self._ask().result(timeout)

    def stop(self, *, savepoint: bool = False, drain: bool = False) -> int | None:
        """Stop the queries, and wait until the job has ended.

        Args:
            savepoint: stop with a savepoint. Else pending checkpoints are given up; the next start
                goes on where this one stopped in either case.
            drain: let no stage go on behind the savepoint, so that channels and sinks hold nothing
                behind it; :attr:`unflushed` says what they hold all the same.

        Returns:
            The savepoint, if there is one.

        Raises:
            SavepointFailedError: the savepoint was aborted; the job runs on.
            JobFailedError: if the job had given up by itself.
            ValueError: drain without a savepoint.
        """
        if drain and not savepoint:
            raise ValueError("drain empties what is before a savepoint; ask for a savepoint, too")
        taken = None
        if savepoint:
            taken = self._ask(stop=True, drain=drain).result()
        else:
            self._events.put(StopRequested())
        self.await_termination()
        return taken

    def _ask(self, *, stop: bool = False, drain: bool = False) -> Future[int]:
        request, answer = self._savepoints.ask(stop=stop, drain=drain)
        self._events.put(request)
        if self._done.is_set():
            self._savepoints.refuse_all()  # the thread will not see it any more
        return answer

    @property
    def unflushed(self) -> Mapping[str, int]:
        """After a stop with drain: the rows behind the savepoint in each stage's channel."""
        return dict(self._unflushed)

    def start(self) -> None:
        """Start the queries and the thread; called once, by the job."""
        self._spark.streams.addListener(self._listener)
        self._publisher = self._start_publisher()
        self._retention = Retention(
            self._spark, self._job, self._layout, self._begun.claim.fence, self._events.put
        )
        self._coordinator.on_completed = self._completed
        self._coordinator.load_of = self._backpressure.load
        try:
            self._coordinator.begin(self._begun.owed)
            for names in self._graph.chains:
                query = ChainQuery(
                    self._spark,
                    self._job,
                    self._begun,
                    names,
                    drain=self._savepoints.drain,
                    backpressure=self._backpressure,
                    tell=self._events.put,
                )
                self._queries.append(query)
            for query in self._queries:
                self._start_query(query)
        except BaseException:
            self._stop_queries()
            self._begun.claim.lock.release()
            raise
        self._thread.start()
        if self._settings.savepoint_on_sigterm:
            self._stop_on_sigterm()

    def _stop_on_sigterm(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise SettingsError(
                "spark.absflow.savepoint.on-sigterm is true, but the job was not started by the "
                "main thread, and only that can handle signals in Python; start it there"
            )

        def stop(signum: int, frame: object) -> None:
            # It only puts into a queue that allows that in a handler; the job's thread does it.
            _LOG.warning("SIGTERM: stopping job %s with a savepoint", self._graph.job)
            self._ask(stop=True)

        signal.signal(signal.SIGTERM, stop)

    # -- the thread ---------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            stop = False
            while not stop:
                stop = self._turn()
            self._savepoints.poll(clock.now_ms())  # who asks now is refused
            self._failure = self._coordinator.failure
        except BaseException as error:
            self._failure = _failed(error)
        finally:
            self._end()

    def _turn(self) -> bool:
        """Take one event, then look at the clock; whether the job is to stop."""
        stop = False
        try:
            event = self._events.get(timeout=self._coordinator.wait_ms() / 1000)
        except queue.Empty:
            event = None
        self._look_for_newer(event)
        if isinstance(event, BatchDone):
            self._batch_done(event)
        elif isinstance(event, QueryIdle):
            self._query_idle(event)
        elif isinstance(event, QueryDied):
            self._query_died(event)
        elif isinstance(event, FactWanted):
            event.write(self._coordinator)
        elif isinstance(event, SavepointRequest):
            stop = self._savepoints.obey(event, clock.now_ms())
        elif isinstance(event, PublicationFailed):
            raise JobFailedError(
                f"job {self._graph.job!r} gave up: checkpoint {event.checkpoint_id} could not be "
                f"published to sink {event.sink!r}. Nothing is lost: mend the cause and start the "
                f"job again, which makes it good. The error: {event.error}"
            ) from event.error
        elif event is not None:
            stop = self._coordinator.handle(event)
        now = clock.now_ms()
        stop = self._savepoints.poll(now) or stop
        for query in self._queries:
            if query.restart_at_ms is not None and now >= query.restart_at_ms:
                self._start_query(query)
        stop = self._coordinator.handle(Tick(now)) or stop
        self._backpressure.pending(max(self._coordinator.state.pending, default=0))
        return stop

    def _completed(self, checkpoint_id: int) -> None:
        self._publisher.submit(checkpoint_id)
        self._retention.wake()

    def _delete(self, deletion: Deletion) -> None:
        self._retention.delete(deletion)

    def _look_for_newer(self, event: _Told | None) -> None:
        """Whether this driver must stop; a query that died may have done so because of that."""
        now = clock.now_ms()
        if isinstance(event, QueryDied) or now - self._looked_ms >= _LOOK_EVERY_MS:
            self._looked_ms = now
            try:
                self._begun.claim.fence.check()
            except StorageError:  # the next look may do better, and each write looks for itself
                _LOG.warning("could not look for a newer driver", exc_info=True)

    def _batch_done(self, event: BatchDone) -> None:
        query = self._by_run.get(event.run_id)
        if query is None:
            return  # a query that is not ours, or was replaced
        self._backpressure.done(query.names[0], event)
        before, first = query.progress, query.first
        query.progress = StageProgress(
            event.batch_id, before.total_rows + event.rows, event.rows_per_second
        )
        if event.batch_id == 1 and self._begun.origin and begins_in_batch_2(first):
            return  # nobody has looked yet what the sources have
        for place, given in enumerate(first.inputs):
            if given.bounded and place in event.exhausted:
                self._coordinator.handle(InputExhausted(RootInput(first.name, given.name)))

    def _query_idle(self, event: QueryIdle) -> None:
        """Bounded inputs end though no barrier makes a batch that would show it."""
        query = self._by_run.get(event.run_id)
        if query is None:
            return
        first = query.first
        for given in first.inputs:
            if given.bounded:
                self._coordinator.handle(InputExhausted(RootInput(first.name, given.name)))

    def _query_died(self, event: QueryDied) -> None:
        query = self._by_run.pop(event.run_id, None)
        if query is None:
            return  # it was stopped with the job
        self._backpressure.died(query.names[0])
        if event.error is None:
            raise JobFailedError(
                f"the query of {query.told} was stopped from outside of the job, "
                "which cannot go on without it; start the job again, and stop it by run.stop()"
            )
        policy = self._settings.restart_policy
        now = clock.now_ms()
        query.restarts, delay = on_failure(policy, query.restarts, query.started_ms, now)
        cause = query.query.exception() if query.query is not None else None
        told = _told(event.error)
        if delay is None:
            raise JobFailedError(
                f"job {self._graph.job!r} gave up: the query of {query.told} died "
                f"after {query.restarts.in_a_row} restarts in a row "
                f"(spark.absflow.restart.attempts is {policy.attempts}). Nothing is lost: mend the "
                f"cause and start the job again. The last error: {told}"
            ) from cause
        _LOG.warning("%s died, restart in %d ms: %s", query.told, delay, told)
        query.restart_at_ms = now + delay

    def _start_query(self, query: ChainQuery) -> None:
        query.start()
        self._by_run[query.run_id] = query

    def _start_publisher(self) -> Publisher:
        return Publisher(
            self._spark,
            self._files,
            self._job,
            self._layout,
            self._attempt,
            self._begun.owed_publications,
            self._begun.newest_completed,
            self._settings.restart_policy,
            self._begun.claim.fence,
            self._events.put,
        )

    def _end(self) -> None:
        try:
            self._stop_queries()
            if self._savepoints.drained:
                self._count_unflushed(self._savepoints.drained)
            try:
                if not isinstance(self._failure, FencedError):
                    end = AttemptFact.FAILED if self._failure else AttemptFact.ENDED
                    self._begun.claim.say(self._attempt, end)
            finally:  # but not if a query may still run: then the lock goes with the process
                self._begun.claim.lock.release()
        except Exception as error:
            _LOG.exception("while the job was being stopped")
            self._failure = self._failure or _failed(error)
        finally:
            self._done.set()
            self._savepoints.refuse_all()

    def _count_unflushed(self, savepoint: int) -> None:
        """The rows behind the savepoint in the channels, which a restore from it reads again."""
        for name in self._graph.stages:
            if self._graph.has_channel(name):
                channel = tables.read(self._spark, self._layout.channel(name, self._attempt))
                behind = (F.col("_epoch") > savepoint) & (F.col("_kind") == PageKind.DATA.value)
                self._unflushed[name] = channel.where(behind).count()
        left = {name: rows for name, rows in self._unflushed.items() if rows}
        if left:
            _LOG.warning("not flushed before savepoint %d: %s", savepoint, left)

    def _stop_queries(self) -> None:
        self._by_run.clear()
        self._retention.close()
        self._savepoints.drain.stop()
        self._backpressure.stop()
        for query in self._queries:
            query.stop()
        for query in self._queries:
            query.close()
        # Last, for it publishes what has completed until now.
        self._publisher.close()
        self._spark.streams.removeListener(self._listener)


def _failed(error: BaseException) -> JobFailedError:
    if isinstance(error, JobFailedError):
        return error
    failure = JobFailedError(f"the job stopped: {error}")
    failure.__cause__ = error
    return failure


def _told(error: str) -> str:
    """Absflow's own words in the text of a dead query, else the text."""
    for line in error.splitlines():
        if line.startswith("absflow.errors."):
            return line.removeprefix("absflow.errors.")
    return error.strip()
