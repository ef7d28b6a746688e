"""A savepoint from DataFrames.

What it is, and in which order it is written, stands in
:mod:`absflow.protocol.recovery.savepoint_writer`. State goes from the executors to the state
histories; the driver sees counts only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.columnar.spec import StageSpec
from absflow.errors import NotFoundError, StateError, StorageError
from absflow.facts.claim import Claim
from absflow.facts.find import FoundCheckpoint, attempts_there, find_checkpoint
from absflow.facts.lock import RootLock, hold
from absflow.facts.reading import FactReader
from absflow.facts.records import AttemptRecord, attempts_of
from absflow.facts.spark_reader import SparkStorageReader
from absflow.graph.description import describe, fingerprint
from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import AttemptFact, Kind, SetDigest
from absflow.protocol.coordinator.messages import WriteBarrier
from absflow.protocol.known import Known
from absflow.protocol.recovery import savepoint_writer
from absflow.protocol.recovery.attempts import Attempt, current
from absflow.protocol.recovery.savepoint_writer import NO_ATTEMPT
from absflow.spark.batch.query import arrow_rows
from absflow.spark.model import JobSpec
from absflow.spark.sources.positions import SourceLogs
from absflow.spark.sources.stopped_query import StoppedAt, stopped_at
from absflow.spark.start.attempt import prepare_sinks
from absflow.spark.start.savepoint_state import GivenState, check_keys, conform
from absflow.spark.worker.any_names import map_in_arrow
from absflow.spark.worker.installed import check_workers
from absflow.spark.worker.probe import check_root
from absflow.spark.worker.savepoint_rows import savepoint_rows
from absflow.spark.worker.set_digests import read_digest
from absflow.storage import clock, state_history
from absflow.storage.delta import tables, transactions
from absflow.storage.delta.log import LogTail
from absflow.storage.layout import Layout
from absflow.storage.root import StorageRoot
from absflow.storage.session import conf_set

__all__ = ["write_given", "write_savepoint"]

_LOG = logging.getLogger(__name__)


def write_savepoint(
    spark: SparkSession,
    job: JobSpec,
    states: Mapping[str, DataFrame],
    base: int | str | None,
    positions: Mapping[str, str] | None,
) -> int:
    """See :meth:`absflow.Job.write_savepoint`; everything is checked before it is written."""
    check_workers(spark)
    frames = {name: conform(job, name, frame) for name, frame in states.items()}
    root = StorageRoot.open(spark, job.settings.storage_path)
    check_root(spark, root.files, job.settings.storage_path)
    lock = hold(root.layout.root, lambda: _refuse_running(job, root.layout))
    try:
        facts = attempts_there(spark, root.files, root.layout)
        found = _base(root, attempts_of(facts), base)
        begins = _positions(root, job, found, positions or {})
        return write_given(root, job, lock, facts, found, _given(job, frames, found), begins)
    finally:
        lock.release()


def write_given(
    root: StorageRoot,
    job: JobSpec,
    lock: RootLock,
    facts: Sequence[AttemptRecord],
    base: FoundCheckpoint | None,
    given: list[GivenState],
    begins: Sequence[_Begins] = (),
) -> int:
    """Write a savepoint of state that has been checked; its id.

    Args:
        root: the job's storage root.
        job: the job.
        lock: of the storage root; it is held.
        facts: of the table ``attempts``.
        base: what it is made from; None for nothing.
        given: the state of some stages.
        begins: where some sources begin, if it is made from nothing.

    Raises:
        StorageError: something could not be read or written; there is no savepoint.
    """
    policy = job.settings.restart_policy
    claim = Claim(root, job.graph.job, fingerprint(job.graph), lock, facts, policy)
    return _Writing(root, job, claim, facts, base, given, begins).write()


def _positions(
    root: StorageRoot, job: JobSpec, base: FoundCheckpoint | None, given: Mapping[str, str]
) -> list[_Begins]:
    """Where sources begin that stopped queries of plain Spark have read.

    Raises:
        StateError: there is a base, which has positions; or a query does not say one.
        NotFoundError: there is no such source.
    """
    if given and base is not None:
        raise StateError(
            f"positions are given for {list(given)}, but the savepoint is made from checkpoint "
            f"{base.origin}, which has its own; leave them out"
        )
    unknown = [name for name in given if name not in job.graph.sources]
    if unknown:
        raise NotFoundError(f"no source {unknown[0]!r}; the job has {[*job.graph.sources]}")
    found = (
        _Begins(spec, source.name, at)
        for spec in job.graph.stages.values()
        for source in spec.inputs
        if source.root and source.name in given
        if (at := stopped_at(root.files, source, given[source.name])) is not None
    )
    return list(found)


def _given(
    job: JobSpec, frames: Mapping[str, DataFrame], base: FoundCheckpoint | None
) -> list[GivenState]:
    """The states by their stages' names in the savepoint.

    Raises:
        StateError: two would have one name, or a key has several rows.
    """
    given: list[GivenState] = []
    for name, frame in frames.items():
        spec = job.graph.stages[name]
        there = _name_in(job, name, base)
        if any(there == other.name for other in given):
            raise StateError(
                f"two of the stages {list(frames)} have the state of {there!r} at the base; a "
                "stage that is renamed from another takes its place (renamed_from=...)"
            )
        given.append(GivenState(there, spec, frame, check_keys(spec, frame)))
    return given


def _refuse_running(job: JobSpec, layout: Layout) -> None:
    raise StorageError(
        f"job {job.graph.job!r} is running: a driver holds the lock of {layout.root!r}, and a "
        "savepoint can only be written while none does. Stop the job (run.stop()) first, and "
        "restore it from what you write"
    )


def _base(
    root: StorageRoot, attempts: list[Attempt], base: int | str | None
) -> FoundCheckpoint | None:
    """What the savepoint is to be made from; None for nothing.

    Raises:
        StateError: the storage root does not allow it.
        NotFoundError: there is no such checkpoint.
    """
    path = root.layout.root
    last = current(attempts)
    if last is not None and not last.ready:
        raise StateError(
            f"attempt {last.attempt} under {path!r} was never ready: a start or a "
            "restore was not finished; start the job, which finishes it, and stop it again"
        )
    if base is None:
        if attempts or _known(root).written:
            raise StateError(
                f"a savepoint without a base begins a job, but {path!r} is not new; give "
                "the checkpoint that it is made from (base=ID or base='latest'), or another "
                "spark.absflow.storage.path"
            )
        return None
    if base != "latest" and (isinstance(base, str | bool) or base < 1):
        raise StateError(f"base is {base!r}, must be the id of a checkpoint, 'latest' or None")
    checkpoint_id = None if base == "latest" else int(base)
    found = find_checkpoint(root.spark, root.files, path, checkpoint_id)
    if found.origin.root != path:
        raise StateError(
            f"the latest checkpoint is {found.origin}, under another storage root; let the job "
            "complete one under its own first"
        )
    return found


def _known(root: StorageRoot) -> Known:
    """What is known of the checkpoints under a root that may be new."""
    tables_there = (root.layout.barriers, root.layout.checkpoints)
    if not all(tables.exists(root.files, path) for path in tables_there):
        return Known()
    return FactReader(SparkStorageReader(root.spark), root.layout).known()


def _name_in(job: JobSpec, stage: str, base: FoundCheckpoint | None) -> str:
    """The name of a stage in the savepoint: that of the base, so that its positions are found."""
    earlier = job.graph.upgrades[stage].renamed_from
    there = base.described if base else {}
    return earlier if earlier in there and stage not in there else stage


@dataclass(frozen=True, slots=True)
class _Begins:
    """Where a source begins, and the stage that reads it."""

    stage: StageSpec
    source: str
    at: StoppedAt


class _Writing:
    """One savepoint that has been checked."""

    def __init__(
        self,
        root: StorageRoot,
        job: JobSpec,
        claim: Claim,
        facts: Sequence[AttemptRecord],
        base: FoundCheckpoint | None,
        given: list[GivenState],
        begins: Sequence[_Begins],
    ) -> None:
        self._root = root
        self._spark = root.spark
        self._files = root.files
        self._job = job
        self._layout = root.layout
        self._facts = facts
        self._base = base
        self._given = given
        self._begins = begins
        self._claim = claim
        self._described = describe(job.graph)

    def write(self) -> int:
        """Claim, reserve the id, write the sets, state COMPLETED; the savepoint's id."""
        forms = {given.name: self._described[given.spec.name] for given in self._given}
        if self._base is None:  # the first that a new root holds has all stages
            forms = {**self._described, **forms}
            prepare_sinks(self._root, self._job)
        savepoint_id = self._next_id()
        base = self._base.described if self._base else {}
        known = [base, *self._known()]
        names = {
            name: savepoint_writer.table_for(name, form, known, savepoint_id)
            for name, form in forms.items()
        }
        description = savepoint_writer.describe(base, forms, names)
        self._claim.record(NO_ATTEMPT, AttemptFact.WRITTEN, description)
        if self._base is None:
            self._claim.record(NO_ATTEMPT, AttemptFact.READY, self._sinks())
        reserved = Barrier(savepoint_id, triggered_ms=clock.now_ms())
        self._claim.tables(NO_ATTEMPT).write_barrier(WriteBarrier(reserved, Kind.SAVEPOINT))
        written = self._claim.tables(self._base.attempt if self._base else NO_ATTEMPT)
        specs = {**self._job.graph.stages, **{given.name: given.spec for given in self._given}}
        for name, table in names.items():
            if specs[name].keys:
                columns = state_history.history_columns(specs[name].keys, specs[name].state)
                tables.create(self._spark, self._layout.state(table), columns, ["set_id"])
        digests = {
            given.name: self._append(given, self._layout.state(names[given.name]), savepoint_id)
            for given in self._given
        }
        keys = {name: 0 if digest is None else digest.rows for name, digest in digests.items()}
        if self._base is None:
            keys = {**dict.fromkeys(self._described, 0), **keys}
        manifest = savepoint_writer.compose(
            savepoint_id,
            reserved.triggered_ms,
            self._base.manifest if self._base else None,
            keys,
            {name: digest for name, digest in digests.items() if digest is not None},
            self._copied(),
        )
        try:
            written.write_completion(manifest, clock.now_ms())
        except StorageError:
            # The commit may have landed all the same; only the table knows.
            if not written.is_completed(savepoint_id):
                raise
        _LOG.info("savepoint %d was written: %s", savepoint_id, keys)
        return savepoint_id

    def _next_id(self) -> int:
        known = _known(self._root)
        origins = [a.origin for a in attempts_of(self._facts)]
        ids = (o.checkpoint_id for o in origins if o)
        return max([known.triggered, known.ended_id, *ids]) + 1

    def _known(self) -> list[dict[str, Any]]:
        """Every description under the storage root, the newest first."""
        kinds = {AttemptFact.STARTED, AttemptFact.WRITTEN}
        described = [fact for fact in self._facts if fact.kind in kinds]
        described.sort(key=lambda fact: fact.incarnation, reverse=True)
        return [fact.details for fact in described]

    def _copied(self) -> dict[str, dict[str, str]]:
        """The positions of the sources of each stage, once what they need is copied."""
        positions: dict[str, dict[str, str]] = {}
        for begins in self._begins:
            logs = SourceLogs(self._files, self._layout, begins.stage, NO_ATTEMPT)
            logs.take(begins.source, begins.at.position, begins.at.log)
            positions.setdefault(begins.stage.name, {})[begins.source] = begins.at.position
        return positions

    def _sinks(self) -> dict[str, Any]:
        """Where each sink stands before the job writes to it; every restore puts it back there."""
        return {
            "sinks": {n: sink.position(self._spark) for n, sink in self._job.sinks.items()},
            "published": dict.fromkeys(self._job.graph.published, 0),
        }

    def _append(self, given: GivenState, path: str, savepoint_id: int) -> SetDigest | None:
        """Write the state of a stage as one set, and see it in the log; None if it is empty.

        Raises:
            StorageError: it is not there, or has other rows than were counted.
        """
        if given.keys == 0:
            return None
        columns = state_history.history_columns(given.spec.keys, given.spec.state)
        app_id = f"{self._job.graph.job}/{given.name}/written/state"
        log = LogTail(self._files.read, self._files.names, path)
        note = {"stage": given.name, "set": savepoint_id}
        rows = map_in_arrow(
            given.frame, savepoint_rows(given.spec, savepoint_id), from_arrow_schema(columns)
        )
        try:
            with conf_set(self._spark, arrow_rows([columns])):
                transactions.append_once(rows, path, app_id, savepoint_id, note)
            digest = read_digest(self._spark, self._files, path, savepoint_id)
        except (PySparkException, Py4JError) as error:
            raise StorageError(
                f"could not write the state of stage {given.name!r} to {path!r}: {error}; there is "
                "no savepoint"
            ) from error
        counted = digest.rows if given.keys is None else given.keys
        if not log.find(app_id, savepoint_id) or digest.rows != counted:
            raise StorageError(
                f"the state of stage {given.name!r} has {digest.rows} rows in {path!r}, but the "
                f"DataFrame had {counted} when its keys were counted; there is no savepoint. "
                "Write the DataFrame to a table first, so that it is the same each time"
            )
        return digest if digest.rows else None
