"""What a start is to do: decided from facts, before anything is changed.

Everything that can be refused is refused here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from absflow.errors import GraphError, NotFoundError, RestoreError
from absflow.facts.driver_table import fact_rows
from absflow.facts.reading import FactReader
from absflow.facts.records import attempts_of, details_of
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
from absflow.spark.start.restore_check import plan_restore
from absflow.spark.start.restore_plan import RestorePlan
from absflow.spark.start.row_order import check_row_order
from absflow.storage.delta import tables
from absflow.storage.files import Files
from absflow.storage.root import StorageRoot

__all__ = ["StartDecision", "decide_start", "restore_plan_of"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartDecision:
    """What a start is to do.

    Attributes:
        version: of ``attempts``, before its rows were read; -1 if there is no such table.
        rows: the rows of ``attempts`` that it rests on.
        start: which attempt begins or goes on.
        restore: what is to be restored; None if nothing is.
    """

    version: int
    rows: Sequence[Mapping[str, Any]]
    start: Start
    restore: RestorePlan | None

    @property
    def attempt(self) -> int:
        """The attempt's number."""
        return self.start.attempt

    @property
    def started(self) -> dict[str, Any] | None:
        """The details of the attempt's STARTED fact; None if it begins now."""
        return details_of(self.rows, self.attempt, AttemptFact.STARTED)

    @property
    def ready(self) -> dict[str, Any] | None:
        """The details of the attempt's READY fact; None if it was never ready."""
        return details_of(self.rows, self.attempt, AttemptFact.READY)

    @property
    def origin(self) -> Origin | None:
        """The checkpoint that the attempt begins, or began, with."""
        if self.restore is not None:
            return self.restore.origin
        known = attempts_of(self.rows)
        return next((a.origin for a in known if a.attempt == self.attempt), None)

    def history_tables(self, job: JobSpec) -> dict[str, str]:
        """Which state history each stage writes.

        By the rule of :func:`absflow.protocol.recovery.matching.table_of`.
        """
        if self.started is not None:
            return {name: stage["table"] for name, stage in self.started.items()}
        kinds = {AttemptFact.STARTED, AttemptFact.WRITTEN}
        graphs = [json.loads(r["details"]) for r in self.rows if r["kind"] in kinds]
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
    rows = fact_rows(root.spark, root.files, root.layout.attempts)
    start = decide(attempts_of(rows), _target(root.files, job.settings), _written(root, rows))
    return plan_restore(root, job, start) if isinstance(start, Restore) else None


def decide_start(root: StorageRoot, job: JobSpec) -> StartDecision:
    """What a start is to do; changes nothing, refuses what it can.

    Raises:
        GraphError: the graph is not the one that the attempt began with.
        NotFoundError: there is no such checkpoint.
        RestoreError: the checkpoint cannot be restored as asked.
    """
    found = tables.found_version(root.files, root.layout.attempts)
    rows = fact_rows(root.spark, root.files, root.layout.attempts)
    start, restore = _start(root, job, rows)
    if restore is not None and restore.problems:
        raise RestoreError(
            f"checkpoint {restore.origin} cannot be restored, and nothing was changed: "
            + "; ".join(restore.problems)
        )
    if isinstance(start, GoOn):
        _warn_of_failed(rows, start.attempt)
    decision = StartDecision(-1 if found is None else found, rows, start, restore)
    if decision.started is not None:
        check_unchanged(job.graph, decision.started)
        if not all("ranges" in stage for stage in decision.started.values()):
            raise GraphError(
                f"attempt {start.attempt} was begun by an older absflow, which kept the state of "
                "each key group by itself; restore from its last checkpoint "
                "(spark.absflow.restore.from=latest)"
            )
        for stage in decision.started.values():
            check_row_order(root.spark, job, stage.get("order", {}))
    return decision


def _warn_of_failed(rows: Sequence[Mapping[str, Any]], attempt: int) -> None:
    for failed in (a.attempt for a in attempts_of(rows) if a.attempt > attempt):
        details = details_of(rows, failed, AttemptFact.FAILED) or {"error": "not finished"}
        _LOG.warning(
            "the restore that attempt %d was begun with has failed before it changed anything, and "
            "no other is asked for; attempt %d goes on. The error was: %s",
            failed,
            attempt,
            details["error"],
        )


def _start(
    root: StorageRoot, job: JobSpec, rows: Sequence[Mapping[str, Any]]
) -> tuple[Start, RestorePlan | None]:
    known, written = attempts_of(rows), _written(root, rows)
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


def _written(root: StorageRoot, rows: Sequence[Mapping[str, Any]]) -> Collection[int]:
    """The written savepoints, where they count: in a job that was never started."""
    if not rows or attempts_of(rows) or not tables.exists(root.files, root.layout.checkpoints):
        return ()  # to read one more table costs a start
    facts = FactReader(SparkStorageReader(root.spark), root.layout)
    return facts.known(triggers=False).written


def _target(files: Files, settings: Settings) -> RestoreTarget | None:
    """The target of ``restore.from``, its root qualified; None as its root if it is the job's."""
    target = settings.restore_from
    if target is None or target.root is None:
        return target
    root, own = (files.qualified(path) for path in (target.root, settings.storage_path))
    return RestoreTarget(None if root == own else root, target.checkpoint_id)
