"""The second phase of on-checkpoint sinks: what a completed checkpoint holds becomes visible.

Each sink has a thread of its own, which publishes checkpoint after checkpoint, in order, so that a
destination that is down holds back nothing but itself. What fails is tried again, less and less
often, for as long as the job runs: rows wait in their channel, and retention keeps them. Behind
each publication a note says how far the sink is. A kill between the two repeats the publication,
which the sink knows by its id (Delta skips it) or by its marker; a kill before it leaves it to
whoever starts next, for what is owed follows from the facts
(:mod:`absflow.protocol.recovery.publication`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from absflow.columnar.pages import CHANNEL_FIELDS, ORDER_FIELDS, TIME_FIELDS, PageKind
from absflow.errors import FencedError, JobFailedError
from absflow.facts.claim import Claim, root_id
from absflow.protocol.recovery.branch import Branch
from absflow.protocol.recovery.publication import Owed, Publication
from absflow.protocol.restarts import RestartPolicy, Restarts, on_failure
from absflow.sinks import Sink, SinkPublication
from absflow.spark.control.failures import without_stack
from absflow.spark.control.lanes import Lanes
from absflow.spark.control.progress import SinkProgress
from absflow.spark.control.state_rows import state_rows
from absflow.spark.model import JobSpec
from absflow.storage import clock
from absflow.storage.delta import tables
from absflow.storage.root import StorageRoot
from absflow.telemetry.happenings import PublicationFailed, Published, Say
from absflow.transactional import TransactionalSink

__all__ = ["Publisher"]

_LOG = logging.getLogger(__name__)
_POOL = "absflow-publisher"
# A job that ends does not wait longer for a sink that fails, but for the try that is under way.
_LONG_MS = 60_000
_ORDER = [field.name for field in ORDER_FIELDS]
_OWN = [field.name for field in (*CHANNEL_FIELDS, *TIME_FIELDS)]


class Publisher:
    """The publications of one driver's run of a job."""

    def __init__(
        self,
        root: StorageRoot,
        job: JobSpec,
        attempt: int,
        owed: Mapping[str, Owed],
        branch: Branch,
        newest: int,
        policy: RestartPolicy,
        claim: Claim,
        state_tables: Mapping[str, str],
        say: Say,
    ) -> None:
        """Nothing is published before :meth:`start`.

        Args:
            root: the storage root.
            job: the job.
            attempt: the job's attempt.
            owed: by sink, what must be published before anything else.
            branch: of the job.
            newest: the newest completed checkpoint on the branch; 0 if there is none.
            policy: when a failed write is tried again, and how often once the job ends.
            claim: this driver's; its fence is asked before each write.
            state_tables: name of the state history of each stage.
            say: is given what happens.
        """
        self._root = root
        self._job = job
        self._attempt = attempt
        self._newest = newest
        self._policy = policy
        self._claim = claim
        self._state_tables = state_tables
        self._say = say
        self._outboxes = {name: self._outbox(name, each, branch) for name, each in owed.items()}

    def start(self) -> None:
        """Start the threads.

        Raises:
            Exception: a destination does not let its lanes be claimed, and the job is new: what is
                wrong may be the job.
        """
        if not self._newest:
            for outbox in self._outboxes.values():
                outbox.claim()
        for outbox in self._outboxes.values():
            outbox.start()

    @property
    def progress(self) -> dict[str, SinkProgress]:
        """How far each sink is."""
        now = clock.steady_ms()
        return {name: outbox.progress(now) for name, outbox in self._outboxes.items()}

    def submit(self, checkpoint_id: int) -> None:
        """Publish a checkpoint that has completed."""
        if checkpoint_id < self._newest:
            return  # a late savepoint: what it holds went out with a later checkpoint
        publication = Publication(checkpoint_id, self._newest, self._attempt)
        for outbox in self._outboxes.values():
            outbox.put(publication)
        self._newest = checkpoint_id

    def close(self) -> JobFailedError | None:
        """Publish what was submitted, and end the threads; what could not be, often enough."""
        for outbox in self._outboxes.values():
            outbox.close()
        failures = {name: outbox.join() for name, outbox in self._outboxes.items()}
        found = [(name, *failure) for name, failure in failures.items() if failure is not None]
        if not found:
            return None
        words = "; ".join(
            f"checkpoint {publication.checkpoint_id} could not be published to sink {name!r}: "
            f"{without_stack(str(error))}"
            for name, publication, error in found
        )
        failed = JobFailedError(
            f"job {self._job.graph.job!r} has stopped, but {words}. Nothing is lost: mend the "
            "cause and start the job again, which makes it good"
        )
        failed.__cause__ = found[0][2]
        return failed

    @cached_property
    def _root_id(self) -> str:
        """It takes a job of Spark to read it."""
        return root_id(self._root)

    def _outbox(self, name: str, owed: Owed, branch: Branch) -> _Outbox:
        sink = self._job.sinks[name]
        if not isinstance(sink, TransactionalSink):
            return _Outbox(self, name, owed, None)
        if name in self._job.graph.of_state:  # of another attempt is no state of now
            branch = Branch(((self._attempt, None),))
        lanes = Lanes(
            sink, name, self._root_id, self._claim.incarnation, branch, owed.begun_with, owed.noted
        )
        return _Outbox(self, name, owed, lanes)

    def _write(self, sink: str, publication: Publication, lanes: Lanes | None) -> None:
        """Publish, unless it is there; then note it."""
        self._claim.fence.check()
        if lanes is None:
            self._write_once(sink, self._job.sinks[sink], publication)
        elif sink in self._job.graph.of_state:
            self._write_state(sink, publication, lanes)
        elif not lanes.holds(publication):
            rows = self._rows(sink, publication)
            lanes.publish(rows.drop(*(name for name in _OWN if name not in _ORDER)), publication)
        if lanes is not None:
            lanes.complete(publication)
        note = self._root.layout.published(sink, self._attempt)
        self._root.files.write(note, str(publication.checkpoint_id))

    def _write_once(self, name: str, sink: Sink, publication: Publication) -> None:
        graph = self._job.graph
        made = SinkPublication(
            graph.job,
            name,
            graph.sinks[name].stage,
            self._attempt,
            publication.checkpoint_id,
            publication.after,
            publication.attempt,
            self._root_id,
        )
        sink.write(_in_order(self._rows(name, publication)), made)

    def _write_state(self, sink: str, publication: Publication, lanes: Lanes) -> None:
        """Publish what differs from what the table has; nothing if the checkpoint is deleted."""
        last, attempt = lanes.last, publication.attempt
        if last == (attempt, publication.checkpoint_id):
            return
        # Of another attempt: the job may have been restored to something older since.
        base = last[1] if last is not None and last[0] == attempt else None
        spec = self._job.graph.stages[self._job.graph.sinks[sink].stage]
        table = self._state_tables[spec.name]
        rows = state_rows(self._root, spec, table, publication.checkpoint_id, base)
        if rows is not None:
            lanes.publish(rows.frame, publication, whole=rows.whole)

    def _rows(self, sink: str, publication: Publication) -> DataFrame:
        """The rows of a channel that a publication brings."""
        stage = self._job.graph.sinks[sink].stage
        channel = self._root.layout.channel(stage, publication.attempt)
        return tables.read(self._root.spark, channel).where(
            (F.col("_epoch") > publication.after)
            & (F.col("_epoch") <= publication.checkpoint_id)
            & (F.col("_kind") == PageKind.DATA.value)
        )


class _Outbox:
    """What waits for one sink, and the thread that publishes it."""

    def __init__(self, publisher: Publisher, sink: str, owed: Owed, lanes: Lanes | None) -> None:
        self._publisher = publisher
        self._sink = sink
        # A table of a state needs no state but the newest.
        self._newest_only = sink in publisher._job.graph.of_state
        self._lanes = lanes
        self._changed = threading.Condition()
        now = clock.steady_ms()
        # With the time since when each waits.
        self._waiting = deque((publication, now) for publication in owed.missing)
        self._closed_ms: int | None = None
        self._said = SinkProgress(published=owed.noted)
        self._failure: tuple[Publication, Exception] | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"absflow-publisher-{sink}", daemon=True
        )

    def claim(self) -> None:
        """Fence older drivers, where that is a step of its own."""
        if self._lanes is not None:
            self._lanes.claim()

    def start(self) -> None:
        self._thread.start()

    def put(self, publication: Publication) -> None:
        with self._changed:
            self._waiting.append((publication, clock.steady_ms()))
            self._changed.notify()

    def close(self) -> None:
        """Let the thread end once nothing waits, or what does has failed often enough."""
        with self._changed:
            self._closed_ms = clock.steady_ms()
            self._changed.notify()

    def join(self) -> tuple[Publication, Exception] | None:
        """Wait for the thread's end; what it could not publish."""
        if self._thread.is_alive():
            self._thread.join()
        return self._failure

    def progress(self, now_ms: int) -> SinkProgress:
        with self._changed:
            if not self._waiting:
                return self._said
            age_s = (now_ms - self._waiting[0][1]) / 1000
            return replace(self._said, waiting=len(self._waiting), waiting_s=age_s)

    def _run(self) -> None:
        sc = self._publisher._root.spark.sparkContext
        sc.setLocalProperty("spark.scheduler.pool", _POOL)
        while (waiting := self._next()) is not None:
            publication, since_ms = waiting
            if not self._publish(publication, clock.steady_ms() - since_ms):
                return
            with self._changed:
                self._waiting.popleft()
                self._said = SinkProgress(published=publication.checkpoint_id)

    def _next(self) -> tuple[Publication, int] | None:
        """The publication to make, and since when it waits; None once there will be none."""
        with self._changed:
            while not self._waiting:
                if self._closed_ms is not None:
                    return None
                self._changed.wait()
            while self._newest_only and len(self._waiting) > 1:
                self._waiting.popleft()
            return self._waiting[0]

    def _publish(self, publication: Publication, waited_ms: int) -> bool:
        """Publish, until it is done or has failed too often at the job's end; whether it is."""
        tried, policy = Restarts(), self._publisher._policy
        begun_ms = clock.now_ms()
        while True:
            try:
                self._publisher._write(self._sink, publication, self._lanes)
            except FencedError:
                _LOG.warning("sink %s: a newer driver publishes", self._sink, exc_info=True)
                return False  # the job's thread sees it, too; the newer driver makes it good
            except Exception as error:  # of any destination; it is seen in the progress
                tried, delay = on_failure(policy, tried, 0, 0)
                if self._gives_up(delay):
                    self._failure = publication, error
                    return False
                wait_ms = policy.max_ms if delay is None else delay
                n, words = publication.checkpoint_id, without_stack(str(error))
                self._publisher._say(PublicationFailed(self._sink, n, wait_ms, words))
                _LOG.debug("the same with its stack", exc_info=True)
                self._note(error)
                self._wait(wait_ms)
            else:
                self._publisher._say(self._published(publication, waited_ms, begun_ms))
                return True

    def _published(self, of: Publication, waited_ms: int, begun_ms: int) -> Published:
        return Published(
            self._sink,
            of.checkpoint_id,
            of.after,
            of.attempt,
            waited_ms,
            begun_ms,
            clock.now_ms(),
            self._said.failures,
        )

    def _gives_up(self, delay_ms: int | None) -> bool:
        """Whether the job ends, and it was tried often enough, or long enough: a try may hang."""
        since = self._closed_ms
        if since is None:
            return False
        return delay_ms is None or clock.steady_ms() - since > _LONG_MS

    def _note(self, error: Exception) -> None:
        with self._changed:
            said = self._said
            self._said = replace(said, failures=said.failures + 1, error=without_stack(str(error)))

    def _wait(self, delay_ms: int) -> None:
        """Not longer once the job ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed_ms is not None, delay_ms / 1000)


def _in_order(rows: DataFrame) -> DataFrame:
    """The bare rows; those of a key group in one partition, in the order they were emitted in."""
    together = rows.repartition("_key_group").sortWithinPartitions("_key_group", "_seq")
    return together.drop(*_OWN)
