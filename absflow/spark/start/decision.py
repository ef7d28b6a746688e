"""What a start is to do: decided from facts, before anything is changed.

Everything that can be refused is refused here.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from absflow.errors import GraphError, NotFoundError, RestoreError
from absflow.facts.find import attempts_there
from absflow.facts.reading import FactReader
from absflow.facts.records import AttemptRecord, Ready, attempts_of, details_of, ready_of
from absflow.facts.spark_reader import SparkStorageReader
from absflow.graph.description import check_unchanged
from absflow.protocol.checkpoints import AttemptFact
from absflow.protocol.recovery.attempts import (
    LATEST,
    GoOn,
    Origin,
    Restore,
    RestoreTarget,
    Start,
    decide,
)
from absflow.protocol.recovery.matching import table_of
from absflow.settings.reading import Settings
from absflow.spark.model import JobSpec
from absflow.spark.start.overdue import overdue
from absflow.spark.start.restore_check import plan_restore
from absflow.spark.start.restore_plan import RestorePlan
from absflow.spark.start.row_order import check_row_order
from absflow.storage import clock
from absflow.storage.delta import tables
from absflow.storage.files import Files
from absflow.storage.root import StorageRoot

__all__ = ["StartDecision", "decide_start", "is_new", "restore_plan_of"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartDecision:
    """What a start is to do.

    Attributes:
        version: of ``attempts``, before its rows were read; -1 if there is no such table.
        facts: the facts of ``attempts`` that it rests on.
        start: which attempt begins or goes on.
        restore: what is to be restored; None if nothing is.
    """

    version: int
    facts: Sequence[AttemptRecord]
    start: Start
    restore: RestorePlan | None

    @property
    def attempt(self) -> int:
        """The attempt's number."""
        return self.start.attempt

    @property
    def started(self) -> dict[str, Any] | None:
        """The details of the attempt's STARTED fact; None if it begins now."""
        return details_of(self.facts, self.attempt, AttemptFact.STARTED)

    @property
    def ready(self) -> Ready | None:
        """What the attempt's READY fact says; None if it was never ready."""
        return ready_of(self.facts, self.attempt)

    @property
    def origin(self) -> Origin | None:
        """The checkpoint that the attempt begins, or began, with."""
        if self.restore is not None:
            return self.restore.origin
        known = attempts_of(self.facts)
        return next((a.origin for a in known if a.attempt == self.attempt), None)

    def history_tables(self, job: JobSpec) -> dict[str, str]:
        """Which state history each stage writes.

        By the rule of :func:`absflow.protocol.recovery.matching.table_of`.
        """
        if self.started is not None:
            return {name: stage["table"] for name, stage in self.started.items()}
        kinds = {AttemptFact.STARTED, AttemptFact.WRITTEN}
        graphs = [fact.details for fact in self.facts if fact.kind in kinds]
        used = {stage["table"] for graph in graphs for stage in graph.values()}
        restore = self.restore if self.restore and not self.restore.fork else None
        fits = {fit.stage: fit for fit in restore.stages} if restore else {}
        before = restore.tables if restore else {}
        return {
            name: table_of(name, self.attempt, fits.get(name), before, used)
            for name in job.graph.stages
        }


def restore_plan_of(root: StorageRoot, job: JobSpec) -> RestorePlan | None:
    """What a start would restore; None if it would restore nothing. Changes nothing.

    Raises:
        NotFoundError: there is no such checkpoint.
    """
    facts = attempts_there(root.spark, root.files, root.layout)
    start = decide(attempts_of(facts), _target(root.files, job.settings), _written(root, facts))
    if not isinstance(start, Restore):
        return None
    plan, now_ms = plan_restore(root, job, start), clock.now_ms()
    waiting = {
        fit.stage: overdue(root, job.graph.stages[fit.stage], plan, fit, now_ms)
        for fit in plan.stages
        if not plan.problems  # its files may be gone
    }
    return replace(plan, overdue=waiting)


def decide_start(root: StorageRoot, job: JobSpec) -> StartDecision:
    """What a start is to do; changes nothing, refuses what it can.

    Raises:
        GraphError: the graph is not the one that the attempt began with.
        NotFoundError: there is no such checkpoint.
        RestoreError: the checkpoint cannot be restored as asked.
    """
    found = tables.found_version(root.files, root.layout.attempts)
    facts = attempts_there(root.spark, root.files, root.layout)
    start, restore = _start(root, job, facts)
    if restore is not None and restore.problems:
        raise RestoreError(
            f"checkpoint {restore.origin} cannot be restored, and nothing was changed: "
            + "; ".join(restore.problems)
        )
    if isinstance(start, GoOn):
        _warn_of_failed(facts, start.attempt)
    decision = StartDecision(-1 if found is None else found, facts, start, restore)
    if decision.started is not None:
        check_unchanged(job.graph, decision.started, lambda: _has_checkpoint(root))
        if not all("ranges" in stage for stage in decision.started.values()):
            raise GraphError(
                f"attempt {start.attempt} was begun by an older absflow, which kept the state of "
                "each key group by itself; restore from its last checkpoint "
                "(spark.absflow.restore.from=latest)"
            )
        for stage in decision.started.values():
            check_row_order(root.spark, job, stage.get("order", {}))
    return decision


def is_new(root: StorageRoot, job: JobSpec) -> bool:
    """Whether a start would begin the job with nothing: nothing is there, and none is asked for."""
    if _target(root.files, job.settings) not in (None, LATEST):
        return False
    facts = attempts_there(root.spark, root.files, root.layout)
    return not attempts_of(facts) and not _written(root, facts)


def _warn_of_failed(facts: Sequence[AttemptRecord], attempt: int) -> None:
    for failed in (a.attempt for a in attempts_of(facts) if a.attempt > attempt):
        details = details_of(facts, failed, AttemptFact.FAILED) or {"error": "not finished"}
        _LOG.warning(
            "the restore that attempt %d was begun with has failed before it changed anything, and "
            "no other is asked for; attempt %d goes on. The error was: %s",
            failed,
            attempt,
            details["error"],
        )


def _start(
    root: StorageRoot, job: JobSpec, facts: Sequence[AttemptRecord]
) -> tuple[Start, RestorePlan | None]:
    known, written = attempts_of(facts), _written(root, facts)
    target = _target(root.files, job.settings)
    start = decide(known, target, written)
    try:
        return start, plan_restore(root, job, start) if isinstance(start, Restore) else None
    except NotFoundError as error:
        if target != LATEST:
            raise
        # A supervisor says it at every start, also before there is a checkpoint.
        _LOG.warning("spark.absflow.restore.from is latest, but %s; nothing is restored", error)
    start = decide(known, None, written)
    return start, plan_restore(root, job, start) if isinstance(start, Restore) else None


def _has_checkpoint(root: StorageRoot) -> bool:
    """Whether a completed checkpoint is there, for a restore."""
    if not tables.exists(root.files, root.layout.checkpoints):
        return False  # the first start has failed before
    facts = FactReader(SparkStorageReader(root.spark), root.layout)
    return bool(facts.known(triggers=False).there)


def _written(root: StorageRoot, attempts: Sequence[AttemptRecord]) -> Collection[int]:
    """The written savepoints, where they count: in a job that was never started."""
    if not attempts or attempts_of(attempts):
        return ()  # to read one more table costs a start
    if not tables.exists(root.files, root.layout.checkpoints):
        return ()
    facts = FactReader(SparkStorageReader(root.spark), root.layout)
    return facts.known(triggers=False).written


def _target(files: Files, settings: Settings) -> RestoreTarget | None:
    """The target of ``restore.from``, its root qualified; None as its root if it is the job's."""
    target = settings.restore_from
    if target is None or target.root is None:
        return target
    root, own = (files.qualified(path) for path in (target.root, settings.storage_path))
    return RestoreTarget(None if root == own else root, target.checkpoint_id)
