"""A savepoint from DataFrames.

What it is, and in which order it is written, is in :mod:`absflow.protocol.recovery.savepoint_writer`. State goes
from the executors to the state histories; the driver sees counts only.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, NullType, NumericType

from absflow.columnar.stage import StageSpec
from absflow.errors import StateError, StorageError
from absflow.facts import records
from absflow.facts.claim import Claim
from absflow.facts.driver_table import fact_rows
from absflow.facts.find import FoundCheckpoint, find_checkpoint
from absflow.facts.lock import RootLock, hold
from absflow.facts.stages import find_stage
from absflow.graph import describe
from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import AttemptFact, Kind, StageColumns
from absflow.protocol.coordinator.messages import WriteBarrier
from absflow.protocol.recovery import matching, savepoint_writer
from absflow.protocol.recovery.attempts import Attempt
from absflow.protocol.recovery.savepoint_writer import NO_ATTEMPT
from absflow.spark.model import JobSpec
from absflow.spark.worker.savepoint_rows import savepoint_rows
from absflow.storage import clock, state_history
from absflow.storage.delta import tables, transactions
from absflow.storage.delta.log import LogTail
from absflow.storage.files import Files
from absflow.storage.history_sql import quoted
from absflow.storage.layout import Layout

__all__ = ["write_savepoint"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Given:
    """The state of one stage.

    Attributes:
        name: the stage's name in the savepoint: an earlier one if the base has it so.
        spec: the stage.
        frame: its key and state columns, in their order and of their types.
        keys: how many rows the frame has; none of them has the key of another.
    """

    name: str
    spec: StageSpec
    frame: DataFrame
    keys: int


def write_savepoint(
    spark: SparkSession, job: JobSpec, states: Mapping[str, DataFrame], base: int | str | None
) -> int:
    """See :meth:`absflow.Job.write_savepoint`; everything is checked before it is written."""
    frames = {name: _conformed(job, name, frame) for name, frame in states.items()}
    files = Files(spark)
    files.check_writable(job.settings.storage_path)
    layout = Layout(files.qualified(job.settings.storage_path))
    lock = hold(layout.root, lambda: _refuse_running(job, layout))
    try:
        return _write(spark, files, job, layout, lock, frames, base)
    finally:
        lock.release()


def _write(
    spark: SparkSession,
    files: Files,
    job: JobSpec,
    layout: Layout,
    lock: RootLock,
    frames: Mapping[str, DataFrame],
    base: int | str | None,
) -> int:
    rows = fact_rows(spark, files, layout.attempts)
    taken = _base(spark, files, layout, records.attempts_of(rows), base)
    given: list[_Given] = []
    for name, frame in frames.items():
        spec = job.graph.stages[name]
        there = _name_in(job, name, taken)
        if any(there == other.name for other in given):
            raise StateError(
                f"two of the stages {list(frames)} have the state of {there!r} at the base; a "
                "stage that is renamed from another takes its place (renamed_from=...)"
            )
        given.append(_Given(there, spec, frame, _check_keys(spec, frame)))
    claim = Claim(spark, files, job, layout, lock, rows)
    return _Writing(spark, files, job, layout, claim, rows, taken, given).write()


def _conformed(job: JobSpec, stage: str, frame: DataFrame) -> DataFrame:
    """The key and state columns of ``stage``, in their order and of their types."""
    known = {
        name: StageColumns(name, tuple(spec.keys.names), tuple(spec.state.names), name)
        for name, spec in job.graph.stages.items()
    }
    find_stage(known, stage)
    spec = job.graph.stages[stage]
    due = from_arrow_schema(pa.schema([*spec.keys, *spec.state]))
    if frame.isStreaming:
        raise StateError(f"the state of stage {stage!r} is a streaming DataFrame; read a table")
    problems = [f"it lacks {n!r}" for n in due.names if n not in frame.columns]
    for name in frame.columns:
        if name not in due.names:
            problems.append(f"it has {name!r}, which is no column of the stage")
        elif frame.columns.count(name) > 1:
            problems.append(f"it has {name!r} twice")
        elif not _fits(frame.schema[name].dataType, due[name].dataType):
            seen, wanted = (s[name].dataType.simpleString() for s in (frame.schema, due))
            problems.append(
                f"column {name!r} is {seen}, which {wanted} does not hold all of; cast it"
            )
    if problems:
        raise StateError(
            f"the DataFrame for stage {stage!r} cannot be its state: {'; '.join(problems)}. It "
            f"must have the columns {due.simpleString().removeprefix('struct')}"
        )
    return frame.select(*(F.col(quoted(f.name)).cast(f.dataType).alias(f.name) for f in due))


def _fits(seen: DataType, due: DataType) -> bool:
    """Whether a column may be cast: every value of ``seen`` is one of ``due``."""
    if isinstance(seen, NullType) or seen.simpleString() == due.simpleString():
        return True
    if not (isinstance(seen, NumericType) and isinstance(due, NumericType)):
        return False
    was, is_ = (str(to_arrow_type(type_)) for type_ in (seen, due))
    return matching.widens(was, is_)


def _check_keys(spec: StageSpec, frame: DataFrame) -> int:
    """How many keys the frame has.

    Raises:
        StateError: a key has several rows.
    """
    names = [quoted(name) for name in spec.keys.names]
    by_key = frame.groupBy(*names).agg(F.count(F.lit(1)).alias("_absflow_rows"))
    rows = F.col("_absflow_rows")
    key, most, total = by_key.select(
        F.max_by(F.struct(*names), rows), F.max(rows), F.sum(rows)
    ).collect()[0]
    if total is not None and most > 1:
        raise StateError(
            f"the DataFrame for stage {spec.name!r} has {most} rows for the key {key.asDict()}, "
            "but a key has one; nothing was written"
        )
    return int(total or 0)


def _refuse_running(job: JobSpec, layout: Layout) -> None:
    raise StorageError(
        f"job {job.graph.job!r} is running: a driver holds the lock of {layout.root!r}, and a "
        "savepoint is written by hand while none does. Stop the job (run.stop()) first, and "
        "restore it from what you write"
    )


def _base(
    spark: SparkSession,
    files: Files,
    layout: Layout,
    attempts: list[Attempt],
    base: int | str | None,
) -> FoundCheckpoint | None:
    """What the savepoint is to be made from; None for nothing.

    Raises:
        StateError: the storage root does not allow it.
        NotFoundError: there is no such checkpoint.
    """
    if attempts and not attempts[-1].ready:
        raise StateError(
            f"attempt {attempts[-1].attempt} under {layout.root!r} was never ready: a start or a "
            "restore was not finished; start the job, which finishes it, and stop it again"
        )
    if base is None:
        facts = fact_rows(spark, files, layout.checkpoints)
        if attempts or records.written_savepoints(facts):
            raise StateError(
                f"a savepoint without a base begins a job, but {layout.root!r} is not new; give "
                "the checkpoint that it is made from (base=ID or base='latest'), or another "
                "spark.absflow.storage.path"
            )
        return None
    if base != "latest" and (isinstance(base, str | bool) or base < 1):
        raise StateError(f"base is {base!r}, must be the id of a checkpoint, 'latest' or None")
    taken = find_checkpoint(spark, files, layout.root, None if base == "latest" else int(base))
    if taken.origin.root != layout.root:
        raise StateError(
            f"the latest checkpoint is {taken.origin}, under another storage root; let the job "
            "complete one under its own first"
        )
    return taken


def _name_in(job: JobSpec, stage: str, taken: FoundCheckpoint | None) -> str:
    """The name of a stage in the savepoint: that of the base, so that its positions are found."""
    earlier = job.graph.upgrades[stage].renamed_from
    there = taken.described if taken else {}
    return earlier if earlier in there and stage not in there else stage


class _Writing:
    """One savepoint that has been checked."""

    def __init__(
        self,
        spark: SparkSession,
        files: Files,
        job: JobSpec,
        layout: Layout,
        claim: Claim,
        rows: list[dict[str, Any]],
        taken: FoundCheckpoint | None,
        given: list[_Given],
    ) -> None:
        self._spark = spark
        self._files = files
        self._job = job
        self._layout = layout
        self._rows = rows
        self._taken = taken
        self._given = given
        self._claim = claim
        self._described = describe(job.graph)

    def write(self) -> int:
        """Claim, reserve the id, write the sets, say COMPLETED; the savepoint's id."""
        keys = {given.name: given.keys for given in self._given}
        forms = {given.name: self._described[given.spec.name] for given in self._given}
        if self._taken is None:  # the first that a new root holds has all stages
            keys = {**dict.fromkeys(self._described, 0), **keys}
            forms = {**self._described, **forms}
            self._job.prepare_sinks(self._spark)
        savepoint_id = self._next_id()
        base = self._taken.described if self._taken else {}
        known = [base, *self._known()]
        names = {
            name: savepoint_writer.table_for(name, form, known, savepoint_id)
            for name, form in forms.items()
        }
        description = savepoint_writer.describe(base, forms, names)
        self._claim.say(NO_ATTEMPT, AttemptFact.WRITTEN, description)
        if self._taken is None:
            self._claim.say(NO_ATTEMPT, AttemptFact.READY, self._sinks())
        reserved = Barrier(savepoint_id, triggered_ms=clock.now_ms())
        self._claim.tables(NO_ATTEMPT).write_barrier(WriteBarrier(reserved, Kind.SAVEPOINT))
        written = self._claim.tables(self._taken.attempt if self._taken else NO_ATTEMPT)
        specs = {**self._job.graph.stages, **{given.name: given.spec for given in self._given}}
        for name, table in names.items():
            if specs[name].keys:
                columns = state_history.history_columns(specs[name].keys, specs[name].state)
                tables.create(self._spark, self._layout.state(table), columns, ["set_id"])
        for given in self._given:
            self._append(given, self._layout.state(names[given.name]), savepoint_id)
        manifest = savepoint_writer.compose(
            savepoint_id, reserved.triggered_ms, self._taken.manifest if self._taken else None, keys
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
        paths = (self._layout.barriers, self._layout.checkpoints)
        rows = [row for path in paths for row in fact_rows(self._spark, self._files, path)]
        origins = [a.origin for a in records.attempts_of(self._rows)]
        ids = [row["checkpoint_id"] or 0 for row in rows]
        return max([0, *ids, *(o.checkpoint_id for o in origins if o)]) + 1

    def _known(self) -> list[dict[str, Any]]:
        """Every description under the storage root, the newest first."""
        described = [
            r for r in self._rows if r["kind"] in {AttemptFact.STARTED, AttemptFact.WRITTEN}
        ]
        described.sort(key=lambda row: int(row["incarnation"]), reverse=True)
        return [json.loads(row["details"]) for row in described]

    def _sinks(self) -> dict[str, Any]:
        """Where each sink stands before the job writes to it; every restore puts it back there."""
        return {
            "sinks": {n: sink.position(self._spark) for n, sink in self._job.sinks.items()},
            "published": dict.fromkeys(self._job.graph.published, 0),
        }

    def _append(self, given: _Given, path: str, savepoint_id: int) -> None:
        """Write the state of a stage as one set, and see it in the log.

        Raises:
            StorageError: it is not there, or has other rows than were counted.
        """
        if not given.keys:
            return
        columns = state_history.history_columns(given.spec.keys, given.spec.state)
        app_id = f"{self._job.graph.job}/{given.name}/written/state"
        log = LogTail(self._files.read, self._files.names, path)
        note = {"stage": given.name, "set": savepoint_id}
        rows = given.frame.mapInArrow(
            savepoint_rows(given.spec, savepoint_id), from_arrow_schema(columns)
        )
        try:
            transactions.append_once(rows, path, app_id, savepoint_id, note)
            there = tables.read(self._spark, path).where(F.col("set_id") == savepoint_id).count()
        except (PySparkException, Py4JError) as error:
            raise StorageError(
                f"could not write the state of stage {given.name!r} to {path!r}: {error}; there is "
                "no savepoint"
            ) from error
        if not log.find(app_id, savepoint_id) or there != given.keys:
            raise StorageError(
                f"the state of stage {given.name!r} has {there} rows in {path!r}, but the "
                f"DataFrame had {given.keys} when its keys were counted; there is no savepoint. "
                "Write the DataFrame to a table first, so that it is the same each time"
            )
