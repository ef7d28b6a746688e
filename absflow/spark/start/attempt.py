"""What happens before any query of a job runs: which attempt it is, and what that attempt needs.

Order of the writes, and what a kill between two of them leaves behind:

0. nothing is read before the lock of the storage root is held (:mod:`absflow.facts.lock`);
1. the driver's claim: a STARTED fact opens an attempt, a DRIVER fact goes on with one;
2. what the attempt needs: tables, state (:mod:`absflow.spark.start.restore_plan`), sinks put back;
3. its READY fact.

An attempt that is not ready has run nothing. If it began with nothing, 2 is done again; if it was
restored, it is discarded and restored again under the next number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from absflow.columnar import pages
from absflow.errors import GraphError, RestoreError
from absflow.facts import records
from absflow.facts.claim import Claim
from absflow.facts.driver_table import fact_rows
from absflow.facts.lock import hold
from absflow.facts.published import published_by
from absflow.facts.records import written_savepoints
from absflow.facts.writer import FactWriter
from absflow.graph import check_unchanged, describe, topology
from absflow.protocol.checkpoints import AttemptFact
from absflow.protocol.coordinator.messages import Action, Policy
from absflow.protocol.recovery import matching, publication
from absflow.protocol.recovery.attempts import (
    Attempt,
    Origin,
    Restore,
    RestoreTarget,
    Start,
    decide,
)
from absflow.protocol.recovery.publication import Publication
from absflow.settings import Settings
from absflow.spark.control.effects import CoordinatorDriver
from absflow.spark.model import ControlStart, JobSpec
from absflow.spark.start.ranges import choose_ranges
from absflow.spark.start.restore_plan import RestorePlan, plan_restore
from absflow.spark.start.restore_run import carry_out
from absflow.storage import clock, state_history
from absflow.storage.delta import tables
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["PreparedAttempt", "prepare_attempt", "restore_plan_of"]


@dataclass(frozen=True, slots=True)
class PreparedAttempt:
    """An attempt that is ready to run.

    Attributes:
        layout: where its things lie.
        attempt: its number.
        claim: what this driver writes its facts by.
        origin: what the attempt was restored from.
        control: from where its stages read the control tables.
        state_tables: name of the state history of each stage.
        ranges: of each stage, the keys by which Spark knows its key-group ranges.
        coordinator: the coordinator as the facts have it.
        owed: what it must do before anything else.
        owed_publications: by on-checkpoint sink, what must be published before anything else.
        newest_completed: the newest completed checkpoint on the line; 0 if there is none.
    """

    layout: Layout
    attempt: int
    claim: Claim
    origin: Origin | None
    control: ControlStart
    state_tables: Mapping[str, str]
    ranges: Mapping[str, Sequence[int]]
    coordinator: CoordinatorDriver
    owed: tuple[Action, ...]
    owed_publications: Mapping[str, Sequence[Publication]]
    newest_completed: int


def restore_plan_of(spark: SparkSession, job: JobSpec) -> RestorePlan | None:
    """What a start would restore; None if it would restore nothing. Changes nothing.

    Raises:
        NotFoundError: there is no such checkpoint.
    """
    files = Files(spark)
    layout = Layout(files.qualified(job.settings.storage_path))
    rows = fact_rows(spark, files, layout.attempts)
    start = _start(spark, files, job, layout, rows)
    if not isinstance(start, Restore):
        return None
    return plan_restore(spark, files, job, layout, start)


def prepare_attempt(spark: SparkSession, job: JobSpec) -> PreparedAttempt:
    """Prepare the attempt that this start asks for; everything is checked before it is written.

    Raises:
        StorageError: the storage root cannot be used, or another driver does not let go of it.
        GraphError: the graph is not the one that its state belongs to, or a sink's table is
            another one.
        RestoreError: the checkpoint cannot be restored as asked.
        FencedError: a newer driver started meanwhile.
    """
    files = Files(spark)
    files.check_writable(job.settings.storage_path)
    layout = Layout(files.qualified(job.settings.storage_path))
    lock = hold(layout.root, lambda: _decide(spark, files, job, layout))
    try:
        rows, start, planned = _decide(spark, files, job, layout)
        claim = Claim(spark, files, job, layout, lock, rows)
        return _Beginning(spark, files, job, layout, claim, rows, start, planned).begin()
    except BaseException:
        lock.release()
        raise


def _decide(
    spark: SparkSession, files: Files, job: JobSpec, layout: Layout
) -> tuple[Sequence[Mapping[str, Any]], Start, RestorePlan | None]:
    """The rows of ``attempts``, and what to start by them; changes nothing, refuses what it can."""
    rows = fact_rows(spark, files, layout.attempts)
    start = _start(spark, files, job, layout, rows)
    planned: RestorePlan | None = None
    if isinstance(start, Restore):
        planned = plan_restore(spark, files, job, layout, start)
        if planned.problems:
            raise RestoreError(
                f"checkpoint {planned.origin} cannot be restored, and nothing was changed: "
                + "; ".join(planned.problems)
            )
    started = _details(rows, start.attempt, AttemptFact.STARTED)
    if started is not None:
        check_unchanged(job.graph, started)
        if not all("ranges" in stage for stage in started.values()):
            raise GraphError(
                f"attempt {start.attempt} was begun by an older absflow, which kept the state of "
                "each key group by itself; restore from its last checkpoint "
                "(spark.absflow.restore.from=latest)"
            )
    return rows, start, planned


class _Beginning:
    """One start that has been decided upon."""

    def __init__(
        self,
        spark: SparkSession,
        files: Files,
        job: JobSpec,
        layout: Layout,
        claim: Claim,
        rows: Sequence[Mapping[str, Any]],
        start: Start,
        planned: RestorePlan | None,
    ) -> None:
        self._spark = spark
        self._files = files
        self._job = job
        self._layout = layout
        self._rows = rows
        self._start = start
        self._planned = planned
        self._attempt = start.attempt
        self._claim = claim

    def begin(self) -> PreparedAttempt:
        """Claim, prepare, say READY."""
        started = _details(self._rows, self._attempt, AttemptFact.STARTED)
        state_tables = self._state_tables(started)
        ranges = self._ranges(started)
        # A sink that cannot be used is refused before the claim: an attempt that was claimed and
        # never got ready rewinds the job, for the next start makes the same restore again.
        self._job.prepare_sinks(self._spark)
        if started is not None:
            self._claim.say(self._attempt, AttemptFact.DRIVER)
        else:
            described = {
                name: {**stage, "table": state_tables[name], "ranges": ranges[name]}
                for name, stage in describe(self._job.graph).items()
            }
            source = str(self._planned.origin) if self._planned else None
            self._claim.say(self._attempt, AttemptFact.STARTED, described, source)
        self._create_tables(state_tables)
        written = self._claim.tables(self._attempt)
        ready = _details(self._rows, self._attempt, AttemptFact.READY)
        if ready is None:
            ready = self._prepare(ranges)
            self._claim.say(self._attempt, AttemptFact.READY, ready)
        origin = self._origin()
        state, owed = written.recover(
            topology(self._job.graph), self._policy(), clock.now_ms(), origin, full=ready["full"]
        )
        return PreparedAttempt(
            layout=self._layout,
            attempt=self._attempt,
            claim=self._claim,
            origin=origin,
            control=ControlStart(*ready["control"]),
            state_tables=state_tables,
            ranges=ranges,
            coordinator=CoordinatorDriver(written, state, clock.now_ms),
            owed=owed,
            owed_publications=self._owed_publications(ready, written),
            newest_completed=state.completed_id or (origin.checkpoint_id if origin else 0),
        )

    def _owed_publications(
        self, ready: Mapping[str, Any], facts: FactWriter
    ) -> dict[str, list[Publication]]:
        if not self._job.graph.published:
            return {}
        completed, written = facts.completed()
        attempts = [a for a in records.attempts_of(self._rows) if a.attempt != self._attempt]
        attempts.append(Attempt(self._attempt, self._origin(), ready=True))
        owed: dict[str, list[Publication]] = {}
        for name in self._job.graph.published:
            if name not in ready["published"]:
                raise GraphError(
                    f"on-checkpoint sink {name!r} is new, and what it has missed cannot be told; "
                    "restore from a checkpoint (spark.absflow.restore.from=latest)"
                )
            noted = published_by(self._files, self._layout, self._attempt, name)
            last = ready["published"][name] if noted is None else noted
            root = self._layout.root
            owed[name] = publication.owed(root, attempts, completed, written, last)
        return owed

    def _published(self) -> dict[str, int]:
        """The newest checkpoint that each on-checkpoint sink holds when a new attempt begins.

        A sink that the job has not written to gets the rows after the checkpoint only.
        """
        if self._planned is None:
            return dict.fromkeys(self._job.graph.published, 0)
        upto = self._planned.cut
        held: dict[str, int] = {}
        for name in self._job.graph.published:
            before = self._planned.sinks[name]
            noted = published_by(self._files, self._layout, self._planned.taken_in, name)
            known = (before.published, noted, self._planned.published.get(name))
            last = next((n for n in known if n is not None), upto)
            held[name] = upto if before.new else min(last, upto)
        return held

    def _prepare(self, ranges: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """What a new attempt needs; the details of its READY fact."""
        control = (self._layout.barriers, self._layout.overtakes)
        versions = [self._files.newest_version(path) for path in control]
        if isinstance(self._start, Restore) and self._planned is not None:
            for dead in self._start.discard:
                self._files.delete(self._layout.work(dead))
            carry_out(self._spark, self._files, self._job, self._layout, self._planned, ranges)
        return {
            "control": versions,
            "full": self._planned is not None and self._planned.full,
            "sinks": {n: sink.position(self._spark) for n, sink in self._job.sinks.items()},
            "published": self._published(),
            "on_checkpoint": self._job.graph.published,
        }

    def _origin(self) -> Origin | None:
        if self._planned is not None:
            return self._planned.origin
        known = records.attempts_of(self._rows)
        return next((a.origin for a in known if a.attempt == self._attempt), None)

    def _state_tables(self, started: Mapping[str, Any] | None) -> dict[str, str]:
        """Which state history each stage writes; :func:`absflow.protocol.recovery.matching.table_of`."""
        if started is not None:
            return {name: stage["table"] for name, stage in started.items()}
        kinds = {AttemptFact.STARTED, AttemptFact.WRITTEN}
        graphs = [json.loads(r["details"]) for r in self._rows if r["kind"] in kinds]
        used = {stage["table"] for graph in graphs for stage in graph.values()}
        planned = self._planned if self._planned and not self._planned.fork else None
        fits = {fit.stage: fit for fit in planned.stages} if planned else {}
        before = planned.tables if planned else {}
        return {
            name: matching.table_of(name, self._attempt, fits.get(name), before, used)
            for name in self._job.graph.stages
        }

    def _ranges(self, started: Mapping[str, Any] | None) -> dict[str, Sequence[int]]:
        """The keys of each stage's key-group ranges, as the attempt began with them."""
        if started is not None:
            return {name: stage["ranges"] for name, stage in started.items()}
        chosen = choose_ranges(self._spark, self._job.settings.key_groups)
        return dict.fromkeys(self._job.graph.stages, chosen)

    def _create_tables(self, state_tables: Mapping[str, str]) -> None:
        """Create up front what several writers or a reader will meet."""
        graph = self._job.graph
        for name, spec in graph.stages.items():
            if spec.keys:
                history = state_history.history_columns(spec.keys, spec.state)
                path = self._layout.state(state_tables[name])
                tables.create(self._spark, path, history, ["set_id"], tables.JOB_PROPERTIES)
            if graph.has_channel(name):
                channel = self._layout.channel(name, self._attempt)
                columns = pages.channel_schema(spec.output)
                tables.create(self._spark, channel, columns, ["_epoch"], tables.CHANNEL_PROPERTIES)

    def _policy(self) -> Policy:
        settings = self._job.settings
        return Policy(
            interval_ms=settings.checkpoint_interval_ms,
            timeout_ms=settings.checkpoint_timeout_ms,
            min_pause_ms=settings.checkpoint_min_pause_ms,
            max_concurrent=settings.checkpoint_max_concurrent,
            tolerable_failed=settings.checkpoint_tolerable_failed,
            savepoint_timeout_ms=settings.savepoint_timeout_ms,
            aligned_timeout_ms=settings.overtakes_after_ms,
        )


def _start(
    spark: SparkSession,
    files: Files,
    job: JobSpec,
    layout: Layout,
    rows: Sequence[Mapping[str, Any]],
) -> Start:
    attempts = records.attempts_of(rows)
    # What was written is asked for only where it counts: reading one more table costs a start.
    facts = [] if attempts or not rows else fact_rows(spark, files, layout.checkpoints)
    return decide(attempts, _target(files, job.settings), written_savepoints(facts))


def _target(files: Files, settings: Settings) -> RestoreTarget | None:
    """The target, with its root qualified; None as its root if it is the job's own."""
    target = settings.restore_from
    if target is None or target.root is None:
        return target
    root, own = (files.qualified(path) for path in (target.root, settings.storage_path))
    return RestoreTarget(None if root == own else root, target.checkpoint_id)


def _details(rows: Sequence[Mapping[str, Any]], attempt: int, kind: str) -> dict[str, Any] | None:
    """What an earlier driver wrote about an attempt."""
    for row in rows:
        if row["attempt"] == attempt and row["kind"] == kind:
            return dict(json.loads(row["details"]))
    return None
