"""What happens before any query of a job runs: the steps of a start, in their order.

1. what the workers have is checked, and whether they and the driver can write the storage root;
2. the lock of the storage root is taken (:mod:`absflow.facts.lock`); nothing is read before;
3. what to do is decided from the facts (:mod:`absflow.spark.start.decision`), or refused;
4. the sinks are prepared;
5. the driver's claim: a STARTED fact opens an attempt, a DRIVER fact goes on with one;
6. tables are created; the first commit to each driver table shuts out older drivers;
7. a new attempt gets what it needs: its state (:mod:`absflow.spark.start.restore_run`), then its
   RESTORED fact, its sinks put back; then its READY fact;
8. the coordinator's state is derived from the facts.

What a kill between two of them leaves behind: an attempt that is not ready has run nothing. If it
began with nothing, the next start does 6 and 7 again. If it was restored, the next start discards
it and restores again under the next number. An error in 6 or 7 of a restore is noted by a FAILED
fact; without a RESTORED one the next start goes on with the attempt before, unless it asks for
something else (:func:`absflow.protocol.recovery.attempts.current`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from absflow.columnar.pages import channel_schema
from absflow.errors import AbsflowError, FencedError, GraphError
from absflow.facts.claim import Claim, begin_on
from absflow.facts.lock import hold
from absflow.facts.records import Ready
from absflow.facts.writer import FactWriter
from absflow.graph.description import describe, fingerprint, topology
from absflow.protocol import event_time
from absflow.protocol.checkpoints import AttemptFact
from absflow.protocol.coordinator.messages import FULL_BYTES_PER_TASK, Action, Policy
from absflow.protocol.coordinator.pending import Coordinator
from absflow.protocol.event_time import EventTime
from absflow.protocol.recovery.attempts import Origin, Restore
from absflow.protocol.recovery.branch import Branch
from absflow.protocol.recovery.publication import Owed
from absflow.protocol.tiers import TierPolicy
from absflow.settings.reading import Settings
from absflow.sinks import DeltaSink, SinkPublication, SinkWrite
from absflow.spark.model import ControlStart, JobSpec
from absflow.spark.start.decision import StartDecision, decide_start
from absflow.spark.start.owed import held_at_start, owed_at_start, owed_states
from absflow.spark.start.ranges import choose_ranges
from absflow.spark.start.restore_plan import RestorePlan
from absflow.spark.start.restore_run import bring_state, put_sinks_back
from absflow.spark.start.row_order import RowOrder, row_order_conf, row_order_now
from absflow.spark.start.sink_columns import check_table
from absflow.spark.worker.installed import check_workers
from absflow.spark.worker.probe import check_root
from absflow.storage import clock, state_history
from absflow.storage.delta import tables, transactions
from absflow.storage.layout import Layout
from absflow.storage.root import StorageRoot
from absflow.telemetry.happenings import Restored, Steps
from absflow.transactional import TransactionalSink

__all__ = ["PreparedAttempt", "prepare_attempt", "prepare_sinks"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedAttempt:
    """An attempt that is ready to run.

    Attributes:
        layout: where its things lie.
        attempt: its number.
        claim: what this driver writes its facts by.
        facts: writes the coordinator's facts.
        origin: what the attempt was restored from.
        control: from where its stages read the control tables.
        state_tables: name of the state history of each stage.
        ranges: of each stage, the keys by which Spark knows its key-group ranges.
        session: the session's conf in which sources give their rows in the attempt's order.
        coordinator: the coordinator's state, as the facts have it.
        recovered: what the coordinator asks for before anything else.
        owed: what each on-checkpoint sink must publish before anything else, those of state, too.
        branch: of the job as it is now; empty if it has no on-checkpoint sink.
        newest_completed: the newest completed checkpoint on the branch; 0 if there is none.
        times: of each stage with event time what it began the attempt with.
        restored: the restore that this driver has begun the attempt with; None without any.
    """

    layout: Layout
    attempt: int
    claim: Claim
    facts: FactWriter
    origin: Origin | None
    control: ControlStart
    state_tables: Mapping[str, str]
    ranges: Mapping[str, Sequence[int]]
    session: RowOrder
    coordinator: Coordinator
    recovered: tuple[Action, ...]
    owed: Mapping[str, Owed]
    branch: Branch
    newest_completed: int
    times: Mapping[str, EventTime]
    restored: Restored | None


def prepare_attempt(root: StorageRoot, job: JobSpec) -> PreparedAttempt:
    """Prepare the attempt that this start asks for; everything is checked before it is written.

    Args:
        root: the job's storage root.
        job: the job.

    Raises:
        VersionError: the workers do not have what a stage needs.
        StorageError: the storage root cannot be used, or another driver does not let go of it.
        GraphError: the graph is not the one that its state belongs to, or a sink's table is
            another one.
        RestoreError: the checkpoint cannot be restored as asked.
        FencedError: a newer driver started meanwhile.
    """
    given = (getattr(sink, "packages", ()) for sink in job.sinks.values())
    check_workers(root.spark, [package for packages in given for package in packages])
    check_root(root.spark, root.files, job.settings.storage_path)
    lock = hold(root.layout.root, lambda: decide_start(root, job))
    steps = Steps(clock.now_ms)
    try:
        with steps.of("plan"):
            decision = decide_start(root, job)
        policy = job.settings.restart_policy
        claim = Claim(root, job.graph.job, fingerprint(job.graph), lock, decision.facts, policy)
        return _prepare(root, job, decision, claim, steps)
    except BaseException:
        lock.release()
        raise


def prepare_sinks(root: StorageRoot, job: JobSpec, decision: StartDecision | None = None) -> None:
    """See that each sink can be used; :meth:`absflow.Sink.prepare`.

    Args:
        root: the job's storage root.
        job: the job.
        decision: what the start is to do; None if nothing is started.

    Raises:
        GraphError: a sink's table is another one.
        StorageError: a table cannot be created or read.
    """
    restore = None if decision is None else decision.restore
    # A restore may have begun the attempt with a table that has more columns than the output.
    wider = decision is not None and restore is None and decision.origin is not None
    for name in job.graph.sinks:
        sink, output = job.sinks[name], job.sink_rows(name)
        try:
            sink.prepare(root.spark, output)
        except AbsflowError:
            raise
        except Exception:  # of any destination
            if not isinstance(sink, TransactionalSink) or decision is None or not decision.ready:
                raise
            # It has worked; while it is down, its rows wait.
            _LOG.warning("sink %s: %s does not answer", name, sink.describe(), exc_info=True)
        # A table that a restore has found is compared by the plan, as it will be then.
        compared = restore is not None and restore.sinks[name].now is not None
        if isinstance(sink, DeltaSink) and not compared:
            check_table(root.spark, sink.path, output, wider=wider)


def _check_unwritten(root: StorageRoot, job: JobSpec, attempt: int) -> None:
    """Refuse a sink's table that has rows of an attempt that is only to begin.

    They are of a storage root that was deleted, or of another one. Delta would take every write of
    this attempt for one of that, and leave it out.

    Raises:
        GraphError: naming the sink.
    """
    name = job.graph.job
    for sink, node in job.graph.sinks.items():
        made: SinkWrite | SinkPublication = SinkWrite(name, node.stage, sink, attempt, 0, 0)
        if node.on_checkpoint:
            made = SinkPublication(name, sink, node.stage, attempt, 0, 0, attempt, "")
        table = job.sinks[sink]
        if isinstance(table, DeltaSink) and transactions.has_any(
            root.spark, table.path, made.app_id
        ):
            raise GraphError(
                f"sink {sink!r}: table {table.path!r} has rows of attempt {attempt} of job "
                f"{name!r}, but under storage root {root.layout.root!r} that attempt has not "
                "begun: these rows are of a root that was deleted, or of another one, and new "
                "ones would be taken for them. Delete the table, or choose another path for it; "
                "or give the job another name"
            )


def _prepare(
    root: StorageRoot, job: JobSpec, decision: StartDecision, claim: Claim, steps: Steps
) -> PreparedAttempt:
    """Steps 4 to 8."""
    # Before the claim: an attempt that was claimed and never got ready rewinds the job, for the
    # next start makes the same restore again.
    prepare_sinks(root, job, decision)
    if decision.started is None:
        _check_unwritten(root, job, decision.attempt)
    decision, stages = begin_on(
        claim,
        decision,
        lambda decided: _claim_attempt(root, job, decided, claim),
        lambda: decide_start(root, job),
    )
    attempt = decision.attempt
    histories = {name: stage["table"] for name, stage in stages.items()}
    ranges = {name: stage["ranges"] for name, stage in stages.items()}
    with _failure_recorded(claim, decision):
        _create_tables(root, job, attempt, histories)
        facts = claim.tables(attempt)
        ready, made = decision.ready, None
        if ready is None:
            ready = _make_ready(root, job, decision, ranges, claim, steps)
            made = _restored(decision, steps)
            claim.record(attempt, AttemptFact.READY, asdict(ready))
    origin = decision.origin
    tasks = min([root.spark.sparkContext.defaultParallelism, *map(len, ranges.values())])
    policy = _policy(job.settings, tasks)
    coordinator, recovered = facts.recover(
        topology(job.graph), policy, clock.steady_ms(), origin, full=ready.full
    )
    owed, branch = owed_at_start(root, job, decision, ready, facts)
    completed = coordinator.completed_id
    own = completed if origin is None or completed != origin.checkpoint_id else 0
    return PreparedAttempt(
        layout=root.layout,
        attempt=attempt,
        claim=claim,
        facts=facts,
        origin=origin,
        control=ControlStart(*ready.control),
        state_tables=histories,
        ranges=ranges,
        session=row_order_conf(next(iter(stages.values())).get("order", {})),
        coordinator=coordinator,
        recovered=recovered,
        owed={**owed, **owed_states(job, attempt, own)},
        branch=branch,
        newest_completed=completed or (origin.checkpoint_id if origin else 0),
        times={name: event_time.from_json(text) for name, text in ready.times.items()},
        restored=made,
    )


@contextmanager
def _failure_recorded(claim: Claim, decision: StartDecision) -> Iterator[None]:
    """An error within the block, if it ends a restore, is recorded as the attempt's FAILED fact.

    Not a kill, nor what a person interrupts: the next start makes that restore again.
    """
    try:
        yield
    except FencedError:
        raise
    except Exception as error:
        if isinstance(decision.start, Restore):
            try:
                said = str(error).partition("\n\tat ")[0]  # of a Java error, without its stack
                claim.record(decision.attempt, AttemptFact.FAILED, {"error": said})
            except AbsflowError:
                _LOG.exception("that the restore has failed could not be recorded")
        raise


def _policy(settings: Settings, tasks: int) -> Policy:
    return Policy(
        interval_ms=settings.checkpoint_interval_ms,
        timeout_ms=settings.checkpoint_timeout_ms,
        min_pause_ms=settings.checkpoint_min_pause_ms,
        max_concurrent=settings.checkpoint_max_concurrent,
        tolerable_failed=settings.checkpoint_tolerable_failed,
        savepoint_timeout_ms=settings.savepoint_timeout_ms,
        aligned_timeout_ms=settings.overtakes_after_ms,
        tiers=TierPolicy(settings.lineage_max_sets),
        full_upto_bytes=tasks * FULL_BYTES_PER_TASK,
    )


def _claim_attempt(
    root: StorageRoot, job: JobSpec, decision: StartDecision, claim: Claim
) -> dict[str, Any]:
    """Record the driver's first fact; the stages by name, as the STARTED fact has them."""
    if decision.started is not None:
        claim.record(decision.attempt, AttemptFact.DRIVER)
        return decision.started
    histories = decision.history_tables(job)
    ranges = choose_ranges(root.spark, job.settings.key_groups)
    order = row_order_now(root.spark)
    stages = {
        name: {**stage, "table": histories[name], "ranges": ranges, "order": order}
        for name, stage in describe(job.graph).items()
    }
    restore = decision.restore
    source = restore.origin.written(root.layout.root) if restore else None
    claim.record(decision.attempt, AttemptFact.STARTED, stages, source)
    return stages


def _create_tables(
    root: StorageRoot, job: JobSpec, attempt: int, histories: Mapping[str, str]
) -> None:
    """Create up front what several writers or a reader will meet."""
    for name, spec in job.graph.stages.items():
        if spec.keys:
            columns = state_history.history_columns(spec.keys, spec.state)
            path = root.layout.state(histories[name])
            tables.create(root.spark, path, columns, ["set_id"], tables.JOB_PROPERTIES)
        if job.graph.has_channel(name):
            path, columns = (
                root.layout.channel(name, attempt),
                channel_schema(spec.output, spec.timed),
            )
            tables.create(root.spark, path, columns, ["_epoch"], tables.CHANNEL_PROPERTIES)


def _make_ready(
    root: StorageRoot,
    job: JobSpec,
    decision: StartDecision,
    ranges: Mapping[str, Sequence[int]],
    claim: Claim,
    steps: Steps,
) -> Ready:
    """Bring what a new attempt needs; what its READY fact says."""
    # Before the restore: what is written from now on is for this attempt.
    barriers, overtakes = (
        tables.newest_version(root.files, path)
        for path in (root.layout.barriers, root.layout.overtakes)
    )
    if isinstance(decision.start, Restore) and decision.restore is not None:
        for dead in decision.start.discard:
            root.files.delete_folder(root.layout.work(dead))
        bring_state(root, job, decision.restore, ranges, steps)
        # Before the first of them: behind it the attempt before cannot go on any more.
        claim.record(decision.attempt, AttemptFact.RESTORED)
        with steps.of("sinks"):
            put_sinks_back(root, job, decision.restore)
    return Ready(
        control=(barriers, overtakes),
        full=decision.restore is not None and decision.restore.full,
        sinks={name: sink.position(root.spark) for name, sink in job.sinks.items()},
        published=held_at_start(root, job, decision),
        on_checkpoint=dict(job.graph.published),
        times=_times(job, decision.restore),
    )


def _restored(decision: StartDecision, steps: Steps) -> Restored | None:
    plan = decision.restore
    if plan is None:
        return None
    keys = sum(fit.keys for fit in plan.stages)
    return Restored(str(plan.origin), plan.attempt, keys, tuple(steps.done))


def _times(job: JobSpec, restore: RestorePlan | None) -> dict[str, str]:
    """What each stage with event time begins the attempt with."""
    begun = {name: spec.begin_time() for name, spec in job.graph.stages.items()}
    fits = {fit.stage: fit for fit in restore.stages} if restore else {}
    times = {name: time for name, time in begun.items() if time is not None}
    if restore is not None:
        for name, time in times.items():
            senders = {
                given.name: sent
                for given in job.graph.stages[name].inputs
                if given.name in fits and (sent := fits[given.name].time) is not None
            }
            times[name] = event_time.restored(
                time, fits[name].time, restore.origin.checkpoint_id, senders
            )
    return {name: event_time.to_json(time) for name, time in times.items()}
