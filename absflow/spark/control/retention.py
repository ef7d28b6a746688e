"""Retention on the driver: its thread carries out the plan beside the job.

One thread makes a plan (:mod:`absflow.protocol.retention.plan`) after a checkpoint has completed,
and carries it out action by action; one that fails stops no other. It writes no facts itself: it
asks the thread that owns the driver's tables to write them, and waits. Every plan is made from what
is there, so what a kill or an error leaves undone is in the next one. Whoever asks for a deletion
(:mod:`absflow.protocol.retention.deletion`) is answered before a plan is made, and waits for no
checkpoint; whoever asked before the driver came, before its queries start.

A DELETE takes a set or an epoch out of a table at once, by its partition column, so that it
rewrites nothing and meets no concurrent append. Its files go later
(:mod:`absflow.spark.control.tidying`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import replace
from functools import partial

from absflow.columnar.expiry import TOUCHED
from absflow.errors import AbsflowError, FencedError, StorageError
from absflow.facts.claim import Claim
from absflow.facts.deletions import unanswered
from absflow.facts.explained import check_sets, explained
from absflow.facts.inventory import JobInventory, gather
from absflow.facts.reading import FactReader
from absflow.facts.requests import deletions
from absflow.facts.spark_reader import SparkStorageReader
from absflow.facts.summary import text_of
from absflow.protocol.checkpoints import StageColumns
from absflow.protocol.lineage import Compacted, end_of
from absflow.protocol.retention.deletion import Deletion, obey
from absflow.protocol.retention.failures import (
    PLAN,
    Failures,
    after_plan,
    document,
    parse,
    subject,
)
from absflow.protocol.retention.inventory import (
    Action,
    Compact,
    DeleteEpochs,
    DeleteManifest,
    DeleteSets,
    DropChannels,
    DropPositions,
    DropWorkingDirectory,
    RetentionPolicy,
    sentence,
)
from absflow.protocol.retention.plan import compact, plan
from absflow.protocol.tiers import TierPolicy
from absflow.spark.control.compaction import write_compacted_set
from absflow.spark.control.effects import CoordinatorEffects
from absflow.spark.control.facts_wanted import FactWanted
from absflow.spark.control.progress import RetentionProgress
from absflow.spark.control.tidying import WHOLE_BYTES, Tidying
from absflow.spark.model import JobSpec
from absflow.storage import clock, sql
from absflow.storage.delta import tables
from absflow.storage.delta.live_files import LiveFile
from absflow.storage.delta.removal import remove_files
from absflow.storage.files import Files
from absflow.storage.root import StorageRoot
from absflow.storage.session import check_pages

__all__ = ["Retention"]

_LOG = logging.getLogger(__name__)
_GROUP = "absflow-retention"
# Seconds without a plan before the first and between two. What goes a minute later costs little, a
# plan costs a look at every table; on an object store some hundred requests.
EVERY, WHERE_PAID = 60.0, 600.0
# A plan that took a second is followed by at least this many seconds without one.
REST = 9.0
# Checkpoints from one summary of old facts to the next; so many are read one by one.
SUM_UP_EVERY = 1000


class _ClosedError(Exception):
    """The job is being stopped."""


class Retention:
    """The background thread; lives as long as the driver's run of the job."""

    def __init__(
        self,
        root: StorageRoot,
        job: JobSpec,
        claim: Claim,
        post: Callable[[FactWanted], None],
    ) -> None:
        """Prepare the thread (:meth:`start`).

        Args:
            root: the storage root.
            job: the job.
            claim: its fence is asked before anything is deleted.
            post: asks for a fact to be written; must not block.
        """
        # A session of its own: short retentions are for absflow's tables only.
        self._spark = root.spark.newSession()
        check_pages(self._spark)
        self._spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        # A full VACUUM lists with so many tasks, by default 10,000.
        self._spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "8")
        self._spark.conf.set("spark.databricks.delta.optimize.minFileSize", str(WHOLE_BYTES))
        self._files = Files(self._spark)
        self._reader = SparkStorageReader(self._spark, follows=True)
        self._tidying = Tidying(self._spark, root, job, claim.lock, self._await_writer)
        self._layout = root.layout
        self._every = WHERE_PAID if self._files.is_bucket(root.layout.root) else EVERY
        settings = job.settings
        self._policy = RetentionPolicy(
            settings.checkpoint_retained, TierPolicy(settings.lineage_max_sets)
        )
        self._sinks = job.graph.published
        self._fence = claim.fence
        self._post = post
        self._failed: dict[str, str] = {}  # in the plan that is carried out
        self._failures = 0
        self._failing: Failures = {}
        self._deletions: deque[Deletion] = deque()  # an answered one is taken out by the thread
        self._answered: set[str] = set()
        self._asked = threading.Event()
        self._due = threading.Event()
        self._news = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=_GROUP, daemon=True)

    def start(self, coordinator: CoordinatorEffects) -> None:
        """Answer the deletions that stand, then start the thread.

        So they are answered before anything of the job runs, however soon that ends. If it fails,
        the thread tries again once they are posted.

        Args:
            coordinator: writes the answers; nobody else uses it yet.
        """

        def write(wanted: FactWanted) -> None:
            wanted.write(coordinator)
            wanted.done.result()

        try:
            asked = deletions(self._spark, self._files, self._layout)
            self._answer(asked, write)
            self._answered = {deletion.request for deletion in asked}
        except FencedError:
            raise
        except Exception:  # whatever it is, the job can run without retention
            _LOG.warning("retention: a deletion is not answered yet", exc_info=True)
        self._thread.start()

    @property
    def progress(self) -> RetentionProgress:
        """What has failed; for any thread."""
        failing = self._failing
        return RetentionProgress(self._failures, tuple(failing[what] for what in sorted(failing)))

    def wake(self, longest: int) -> None:
        """Say that a checkpoint has completed, with the length of its longest lineage."""
        if longest > self._policy.tiers.max_sets:
            self._due.set()
        self._news.set()

    def delete(self, deletion: Deletion) -> None:
        """Take a request, which may have its answer; what is not answered here stands."""
        if deletion.request in self._answered:
            return
        self._deletions.append(deletion)
        self._asked.set()
        self._due.set()
        self._news.set()

    def close(self) -> None:
        """End the thread, in the middle of a plan if there is one."""
        self._closing.set()
        self._asked.set()
        self._due.set()
        self._news.set()
        while self._thread.is_alive():
            # Again, for it may have been between two Spark jobs.
            self._spark.sparkContext.cancelJobGroup(_GROUP)
            self._thread.join(0.2)

    def _run(self) -> None:
        self._spark.sparkContext.setJobGroup(_GROUP, "retention")
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", _GROUP)
        with suppress(StorageError):
            self._failing = parse(self._files.read(self._layout.retention_failures))
        worked = 0.0
        while True:
            self._wait(worked)
            if self._closing.is_set():
                return
            started = time.monotonic()
            try:
                self._failed = {}
                self._try(PLAN, self._clean)
                self._note_failures()
            except (_ClosedError, FencedError):
                return  # a fenced driver stops, and its own thread says why
            worked = time.monotonic() - started

    def _wait(self, worked: float) -> None:
        """Wait for a reason for a plan; ``worked`` is how long the last one took.

        A person who asked waits for nothing. A lineage that is longer than it may be grows with
        each checkpoint, so it waits for as long as the last plan took, unless something failed in
        that; else a plan comes when there is news, and seldom.
        """
        seldom = max(self._every, REST * worked)
        rest = seldom if self._failed else min(worked, seldom)
        if not self._asked.wait(rest) and not self._due.wait(seldom - rest):
            self._news.wait()
        for event in (self._asked, self._due, self._news):
            event.clear()

    def _note_failures(self) -> None:
        """Leave what fails where people can read it who have not got this driver's log."""
        failing = after_plan(self._failing, self._failed, clock.now_ms())
        if failing == self._failing:
            return
        self._failing = failing
        try:
            self._files.write(self._layout.retention_failures, document(failing))
        except StorageError:
            _LOG.warning("retention: what failed could not be noted", exc_info=True)

    def _clean(self) -> None:
        asked = tuple(self._deletions)
        self._answer(asked, self._write)
        for _ in asked:
            self._deletions.popleft()
        found = self._gather()
        there = found.inventory
        actions = plan(there, self._policy)
        deleted = [a.checkpoint_id for a in actions if isinstance(a, DeleteManifest)]
        if deleted:
            self._write(FactWanted(deleted=deleted))

        def tried(action: Action) -> bool:
            return self._try(subject(action), partial(self._do, action, found))

        for action in compact(there, self._policy, tried):
            tried(action)
        self._try("the summary of old facts", partial(self._sum_up, found))
        for what, act in self._tidying.due(found):
            self._try(what, act)

    def _sum_up(self, found: JobInventory) -> None:
        """Say what old facts come to, so that nobody needs to read them."""
        summary = found.summary
        if summary.upto >= found.known.upto + SUM_UP_EVERY:
            version = tables.newest_version(self._files, self._layout.checkpoints)
            self._files.write(self._layout.summary, text_of(summary, version))

    def _try(self, what: str, act: Callable[[], object]) -> bool:
        """Carry one thing out; whether it was done. If not, the next plan has it again."""
        self._check_open()
        try:
            self._fence.check()
            act()
        except (_ClosedError, FencedError):
            raise
        except Exception as error:  # whatever it is, the others can still be done
            self._check_open()  # a stop cancels the Spark job that runs, and that is no failure
            self._failures += 1
            self._failed[what] = str(error) or type(error).__name__
            _LOG.warning(
                "retention: %s failed, and is tried again after the next checkpoint: %s",
                what,
                error,
                exc_info=not isinstance(error, AbsflowError),
            )
            return False
        return True

    def _gather(self, asked: Collection[int] = ()) -> JobInventory:
        return gather(self._reader, self._layout, self._sinks, asked)

    def _answer(self, asked: Sequence[Deletion], write: Callable[[FactWanted], None]) -> None:
        """Answer all of these who want something deleted and have no answer."""
        owed = unanswered(self._spark, self._layout, asked)
        ids = {n for deletion in owed for n in deletion.checkpoint_ids}
        for verdict in obey(self._gather(ids).inventory, owed) if owed else ():
            said = verdict.refused or f"delete checkpoints {', '.join(map(str, verdict.delete))}"
            _LOG.info("retention: request %s: %s", verdict.request, said)
            write(FactWanted(verdict.delete, verdict.request, verdict.refused))

    def _do(self, action: Action, found: JobInventory) -> None:
        layout = self._layout
        if not isinstance(action, DeleteManifest):
            _LOG.info("retention: %s", sentence(action))
        match action:
            case DeleteManifest():
                pass  # they are facts, which were written first
            case Compact(fact):
                self._write(FactWanted(compacted=self._compact(fact, found)))
            case DeleteSets(stage, set_ids):
                for table, there in found.sets[stage].items():
                    if surplus := there.keys() & set_ids:
                        ids = ", ".join(str(n) for n in sorted(surplus))
                        of_these = partial(_is_in, "set_id", surplus.__contains__)
                        self._delete(layout.state(table), of_these, f"set_id IN ({ids})")
            case DeleteEpochs(stage, attempt, upto):
                of_these = partial(_is_in, "_epoch", upto.__ge__)
                self._delete(layout.channel(stage, attempt), of_these, f"_epoch <= {upto}")
            case DropChannels(attempt):
                for stage in self._files.names(layout.channels):
                    self._files.delete_folder(layout.channel(stage, attempt))
            case DropWorkingDirectory(attempt):
                self._files.delete_folder(layout.work(attempt))
            case DropPositions(attempt):
                self._files.delete_folder(layout.positions_of(attempt))

    def _compact(self, fact: Compacted, found: JobInventory) -> Compacted:
        """Write the set, unless it is there; the fact with its digest."""
        columns = found.columns(fact.stage, fact.checkpoint_id)
        there = found.sets[fact.stage][columns.table]
        path, groups = self._layout.state(columns.table), found.stages.key_groups(columns)
        due = [of for n in fact.replaces if (of := found.digests.get((fact.stage, n)))]
        # What came of damaged sets would look good.
        check = partial(check_sets, self._spark, self._layout, columns.table, due)
        with explained(self._spark, self._layout):
            upto = self._expired_upto(fact, columns)
            digest = write_compacted_set(
                self._spark, path, columns.key, fact, there, upto, groups, check
            )
        return replace(fact, digest=digest)

    def _expired_upto(self, fact: Compacted, columns: StageColumns) -> int | None:
        """What had expired at the first checkpoint that may be read by a compacted set."""
        if TOUCHED.name not in columns.state:
            return None
        reader = FactReader(self._reader, self._layout)
        return reader.expired_upto(end_of(fact.set_id), fact.stage)

    def _delete(self, table: str, gone: Callable[[LiveFile], bool], where: str) -> None:
        """Take files out of a table; ``where`` says of their rows what ``gone`` says of them."""
        if not remove_files(self._spark, table, gone, partial(self._reader.files, table)):
            self._spark.sql(f"DELETE FROM {sql.table(table)} WHERE {where}")

    def _await_writer(self) -> None:
        """Wait until the thread that owns the facts takes an event: it writes none then."""
        self._write(FactWanted())

    def _write(self, wanted: FactWanted) -> None:
        self._post(wanted)
        while True:
            try:
                return wanted.done.result(timeout=0.5)
            except FutureTimeoutError:
                self._check_open()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise _ClosedError


def _is_in(column: str, wanted: Callable[[int], bool], file: LiveFile) -> bool:
    return wanted(file.value(column))
