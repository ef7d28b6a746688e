"""The thread that watches over a running job: its queries, and its coordinator.

It owns the coordinator's state, the driver's tables and the queries. Everything else
(micro-batches, history threads, the listener, callers) only posts events into its queue.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial

from pyspark.sql import functions as F

from absflow.columnar.pages import PageKind
from absflow.errors import FencedError, JobFailedError, StorageError
from absflow.facts.requests import Requests, SavepointRequest
from absflow.protocol.checkpoints import AttemptFact, Manifest
from absflow.protocol.coordinator.messages import (
    Event,
    StopRequested,
    Tick,
)
from absflow.protocol.retention.deletion import Deletion
from absflow.spark.batch.backpressure import Backpressure
from absflow.spark.batch.listener import BatchDone, QueryDied, QueryIdle, QueryListener
from absflow.spark.batch.micro_batch import TimersLeft
from absflow.spark.control.effects import CoordinatorEffects
from absflow.spark.control.facts_wanted import FactWanted
from absflow.spark.control.failures import failure_of, shortened, without_stack
from absflow.spark.control.finaliser import Finaliser, ManifestReady
from absflow.spark.control.lookout import Lookout
from absflow.spark.control.occupation import Occupation
from absflow.spark.control.progress import Progress
from absflow.spark.control.publisher import Publisher
from absflow.spark.control.queries import Queries
from absflow.spark.control.query import ChainQuery
from absflow.spark.control.retention import Retention
from absflow.spark.control.savepoints import Savepoints
from absflow.spark.control.sigterm import SavepointOnSigterm, check_main_thread
from absflow.spark.control.telemetry import Telemetry, set_up
from absflow.spark.model import JobSpec
from absflow.spark.start.attempt import prepare_attempt
from absflow.spark.start.ranges import kept_ranges, shuffle_partitions
from absflow.storage import clock
from absflow.storage.delta import tables
from absflow.storage.root import StorageRoot
from absflow.storage.session import conf_set
from absflow.telemetry.happenings import JobEnded, JobStarted

__all__ = ["JobLoop"]

_LOG = logging.getLogger(__name__)

# What a micro-batch under way may take; above that, a program that was to end hangs.
_EXIT_WAIT_S = 30

_Posted = (
    Event
    | BatchDone
    | QueryIdle
    | QueryDied
    | ManifestReady
    | FactWanted
    | SavepointRequest
    | Deletion
    | TimersLeft
    | Exception
)


class JobLoop:
    """One driver's run of a job.

    Attributes:
        spec: the job.
        done: set when the job has ended.
        failure: why it failed; None if it did not, or has not ended.
        unflushed: after a stop with drain, the rows behind the savepoint by stage.
    """

    def __init__(self, root: StorageRoot, job: JobSpec) -> None:
        """Prepare everything; nothing of the job runs yet. Raises as :class:`Run` does."""
        if job.settings.savepoint_on_sigterm:
            check_main_thread()
        set_up(job.settings)
        self.done = threading.Event()
        self.failure: BaseException | None = None
        self.unflushed: dict[str, int] = {}
        self._spark = root.spark
        self.spec = job
        self._graph = job.graph
        self._settings = job.settings
        self._root = root
        self._events: queue.SimpleQueue[_Posted] = queue.SimpleQueue()
        self._prepared = prepared = prepare_attempt(root, job)
        self._attempt = prepared.attempt
        coordinator = prepared.coordinator
        self._telemetry = Telemetry(root.spark, job, self._attempt, coordinator.completed)
        self._coordinator = CoordinatorEffects(prepared.facts, coordinator, self._attempt)
        self._coordinator.say = self._telemetry.say
        try:
            requests = Requests(root.spark, root.files, root.layout, prepared.claim.incarnation)
            self._backpressure = Backpressure(
                root.files,
                root.layout,
                prepared.attempt,
                self._graph.stages,
                self._settings.channel_max_backlog_bytes,
                clock.steady_ms,
                clock.now_ms,
            )
            self._publisher = self._new_publisher()
        except BaseException:  # nobody will have this run, to end it
            prepared.claim.lock.release()
            raise
        self._savepoints = Savepoints(self._coordinator)
        paid = root.files.is_bucket(root.layout.root)
        self._lookout = Lookout(prepared.claim.fence, requests, self._events.put, paid=paid)
        self._queries = Queries(
            self._graph.job,
            self._settings.restart_policy,
            partial(failure_of, root),
            self._backpressure,
            self._events.put,
            self._telemetry.say,
        )
        self._occupation = Occupation(time.monotonic())
        self._session = ExitStack()
        self._listener = QueryListener(self._events.put)
        self._thread = threading.Thread(
            target=self._watch, name=f"absflow-{self._graph.job}", daemon=True
        )

    # -- for callers --------------------------------------------------------------------------

    @property
    def job(self) -> str:
        """The job's name."""
        return self._graph.job

    @property
    def runs(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._thread.is_alive() and not self.done.is_set()

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
            stages=self._queries.progress(),
            thread=self._occupation.load(time.monotonic(), self._events.qsize()),
            retention=self._retention.progress,
            sinks=self._publisher.progress,
            completed_at=self._coordinator.completed_at,
        )

    def ask(
        self, *, stop: bool = False, drain: bool = False, fire_timers: bool = False
    ) -> Future[int]:
        """Ask for a savepoint; its id, or why there is none."""
        request, answer = self._savepoints.ask(stop=stop, drain=drain, fire_timers=fire_timers)
        self._events.put(request)
        if self.done.is_set():
            self._savepoints.refuse_all()  # the thread will not see it any more
        return answer

    def ask_to_stop(self) -> None:
        """Ask the job to end, without a savepoint."""
        self._events.put(StopRequested())

    def start(self) -> None:
        """Start the queries and the thread."""
        self._spark.streams.addListener(self._listener)
        self._finaliser = Finaliser(
            self._prepared.facts.with_channel_state, self._backpressure.load, self._events.put
        )
        self._retention = Retention(self._root, self.spec, self._prepared.claim, self._events.put)
        self._coordinator.on_completed = self._completed
        self._coordinator.finalise = self._finaliser.submit
        # File sources ask this session in every batch, Delta's a copy of it that a query makes.
        self._session.enter_context(conf_set(self._spark, self._prepared.session))
        self._session.enter_context(self._root.files.only_writer(self._root.layout.own_tables))
        self._telemetry.start(self.progress)
        try:
            self._publisher.start()
            self._coordinator.begin(self._prepared.recovered)
            self._retention.start(self._coordinator)
            self._queries.start(
                ChainQuery(
                    self._root,
                    self.spec,
                    self._prepared,
                    names,
                    drain=self._savepoints.drain,
                    backpressure=self._backpressure,
                    post=self._events.put,
                )
                for names in self._graph.chains
            )
        except BaseException:
            self._stop_queries()
            self._telemetry.close()
            self._prepared.claim.lock.release()
            raise
        self._say_started()
        self._lookout.start()
        self._thread.start()
        atexit.register(self._stop_with_program)
        if self._settings.savepoint_on_sigterm:
            SavepointOnSigterm(
                self._graph.job,
                partial(self.ask, stop=True),
                self.done,
                self._settings.savepoint_timeout_ms,
            )

    def _say_started(self) -> None:
        prepared, root = self._prepared, self._root.layout.root
        if prepared.restored is not None:
            self._telemetry.say(prepared.restored)
        number, newest = prepared.claim.incarnation, prepared.newest_completed
        self._telemetry.say(JobStarted(root, prepared.attempt, number, newest))
        ranges = len(next(iter(prepared.ranges.values())))
        partitions = shuffle_partitions(self._spark)
        if kept := kept_ranges(prepared.attempt, ranges, self._settings.key_groups, partitions):
            _LOG.warning("%s", kept)

    def _stop_with_program(self) -> None:
        """A program that ends, by Ctrl-C or not, ends its job in order, if that takes no long time.

        Else the JVM, which lives a little longer, would call a Python that is no more.
        """
        if not self.done.is_set():
            self.ask_to_stop()
            self.done.wait(_EXIT_WAIT_S)

    # -- the thread ---------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            stop = False
            while not stop:
                stop = self._turn()
            self._refuse_late()
            self.failure = self._coordinator.failure
        except BaseException as error:
            self.failure = _failed(error)
        finally:
            self._end()

    def _turn(self) -> bool:
        """Take one event, then look at the clock; whether the job is to stop."""
        try:
            event = self._events.get(timeout=self._coordinator.wait_ms() / 1000)
        except queue.Empty:
            event = None
        begin_s, waiting = time.monotonic(), self._events.qsize()
        stop = self._handle(event)
        handled_s = time.monotonic()
        if event is not None:
            self._occupation.took(type(event).__name__, begin_s, handled_s, waiting + 1)
        now = clock.steady_ms()
        self._queries.look(now)
        stop = self._coordinator.handle(Tick(now, clock.now_ms())) or stop
        self._backpressure.pending(max(self._coordinator.state.pending, default=0))
        self._occupation.took("clock", handled_s, time.monotonic(), 0)
        return stop

    def _refuse_late(self) -> None:
        """The job stops: refuse who has asked for a savepoint until now."""
        self._lookout.close()
        self._lookout.look_for_requests()
        while not self._events.empty():
            event = self._events.get()
            if isinstance(event, SavepointRequest):
                try:
                    self._savepoints.trigger(event)
                except StorageError:  # who has asked learns by the job's end
                    _LOG.warning("could not refuse a savepoint", exc_info=True)

    def _handle(self, event: _Posted | None) -> bool:
        """Do what an event asks for; whether the job is to stop."""
        match event:
            case None:
                pass
            case BatchDone():
                self._queries.done(event)
            case QueryIdle():
                self._queries.idle(event)
            case QueryDied():
                self._look_for_newer()  # it may have died because of that
                self._queries.died(event)
            case ManifestReady(manifest):
                return self._coordinator.complete(manifest)
            case Deletion():
                self._retention.delete(event)
            case TimersLeft():
                self._coordinator.wake()
            case FactWanted():
                event.write(self._coordinator)
            case SavepointRequest():
                return self._savepoints.trigger(event)
            case Exception():
                raise event
            case _:
                return self._coordinator.handle(event)
        return False

    def _completed(self, manifest: Manifest) -> None:
        self._publisher.submit(manifest.checkpoint_id)
        self._retention.wake(max(len(stage.lineage) for stage in manifest.stages))

    def _look_for_newer(self) -> None:
        """Whether this driver must stop."""
        try:
            self._prepared.claim.fence.check()
        except StorageError:  # the next look may do better, and each write looks for itself
            _LOG.warning("could not look for a newer driver", exc_info=True)

    def _new_publisher(self) -> Publisher:
        return Publisher(
            self._root,
            self.spec,
            self._attempt,
            self._prepared.owed,
            self._prepared.branch,
            self._prepared.newest_completed,
            self._settings.restart_policy,
            self._prepared.claim,
            self._prepared.state_tables,
            self._telemetry.say,
        )

    def _end(self) -> None:
        try:
            self._stop_queries()
            if self._savepoints.drained:
                self._count_unflushed(self._savepoints.drained)
            try:
                if not isinstance(self.failure, FencedError):
                    end = AttemptFact.FAILED if self.failure else AttemptFact.ENDED
                    self._prepared.claim.record(self._attempt, end)
            finally:  # but not if a query may still run: then the lock goes with the process
                self._prepared.claim.lock.release()
        except Exception as error:
            _LOG.exception("while the job was being stopped")
            self.failure = self.failure or _failed(error)
        finally:
            why = str(self.failure).splitlines()[0] if self.failure else ""
            self._telemetry.say(JobEnded(why, isinstance(self.failure, FencedError)))
            self._telemetry.close()
            self.done.set()
            self._savepoints.refuse_all()
            atexit.unregister(self._stop_with_program)

    def _count_unflushed(self, savepoint: int) -> None:
        """The rows behind the savepoint in the channels, which a restore from it reads again."""
        for name in self._graph.stages:
            if self._graph.has_channel(name):
                channel = tables.read(self._spark, self._root.layout.channel(name, self._attempt))
                behind = (F.col("_epoch") > savepoint) & (F.col("_kind") == PageKind.DATA.value)
                self.unflushed[name] = channel.where(behind).count()
        left = {name: rows for name, rows in self.unflushed.items() if rows}
        if left:
            _LOG.warning("not flushed before savepoint %d: %s", savepoint, left)

    def _stop_queries(self) -> None:
        self._lookout.close()
        self._retention.close()
        self._savepoints.drain.stop()
        self._backpressure.stop()
        self._queries.stop()
        self._finaliser.close()
        # Last, for it publishes what has completed until now.
        unpublished = self._publisher.close()
        self.failure = self.failure or unpublished
        self._session.close()
        self._spark.streams.removeListener(self._listener)


def _failed(error: BaseException) -> JobFailedError:
    if isinstance(error, JobFailedError):
        return shortened(error)
    failure = JobFailedError(f"the job stopped: {without_stack(str(error))}")
    failure.__cause__ = error
    return shortened(failure)
