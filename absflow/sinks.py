"""Sinks: where the output of a stage goes, micro-batch by micro-batch.

An aligned stage releases held rows in the very batch that completes its alignment, so the output of
one batch may span several epochs. A sink is therefore written once per epoch present, in order: a
version of its table then lies exactly at the cut of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from absflow.errors import GraphError
from absflow.sink_cut import SinkCut, SinkRestore, put_back
from absflow.storage.delta import tables, transactions
from absflow.storage.delta.columns import add_columns
from absflow.storage.delta.log_back import LogBack, what_is_gone
from absflow.storage.delta.names import unfit, unfit_type
from absflow.storage.files import Files

__all__ = [
    "ChecksColumns",
    "DeltaSink",
    "ForeachBatchSink",
    "Sink",
    "SinkCut",
    "SinkPublication",
    "SinkRestore",
    "SinkWrite",
]

_EPOCH_BITS = 31
# What a session says of new Delta tables.
_INTERVAL = "spark.databricks.delta.properties.defaults.checkpointInterval"


@dataclass(frozen=True, slots=True)
class SinkWrite:
    """One write to a sink: the rows of one micro-batch and epoch.

    Attributes:
        job: the job's name.
        stage: the stage whose output it is.
        sink: the sink's name.
        attempt: the job's attempt.
        batch_id: the stage's micro-batch; a replay has the same.
        epoch: rows of epoch e are in every checkpoint with id >= e.
    """

    job: str
    stage: str
    sink: str
    attempt: int
    batch_id: int
    epoch: int

    @property
    def app_id(self) -> str:
        """Names the writer; no two attempts share it."""
        return f"{self.job}/{self.stage}/{self.sink}/attempt={self.attempt}"

    @property
    def version(self) -> int:
        """Rises with every write of an ``app_id``, and is the same for a repeated one."""
        return (self.batch_id << _EPOCH_BITS) + self.epoch

    @property
    def note(self) -> dict[str, Any]:
        """What a commit says of itself."""
        return {
            "job": self.job,
            "stage": self.stage,
            "attempt": self.attempt,
            "batch": self.batch_id,
            "epoch": self.epoch,
        }


@dataclass(frozen=True, slots=True)
class SinkPublication:
    """One write to an on-checkpoint sink: the rows that a completed checkpoint brings.

    Attributes:
        job: the job's name.
        sink: the sink's name.
        stage: the stage whose output it is.
        attempt: the attempt that publishes; the rows may be of the one before.
        checkpoint_id: the checkpoint.
        after: the checkpoint published before; the rows are those between the two.
        taken_in: the attempt that took the checkpoint, whose rows they are.
        job_id: of the storage root, which no other job has.
    """

    job: str
    sink: str
    stage: str
    attempt: int
    checkpoint_id: int
    after: int
    taken_in: int
    job_id: str

    @property
    def app_id(self) -> str:
        """Names the writer; no two attempts share it, for a restore may go back to lower ids."""
        return f"{self.job}/{self.sink}/published/attempt={self.attempt}"

    @property
    def version(self) -> int:
        """Rises with every write of an ``app_id``, and is the same for a repeated one."""
        return self.checkpoint_id

    @property
    def note(self) -> dict[str, Any]:
        """What a commit says of itself."""
        return {"job": self.job, "stage": self.stage, "published": self.checkpoint_id}


class Sink(Protocol):
    """What a destination must do.

    Attributes:
        reads_all: every :meth:`write` computes all of its rows in exactly one action. If not, the
            rows are computed by an action of their own first: a stage must run once per batch, and
            for all of its key groups.
    """

    reads_all: ClassVar[bool]

    def prepare(self, spark: SparkSession, schema: pa.Schema) -> None:
        """Called once before the job starts; refuse here what cannot work."""

    def write(self, rows: DataFrame, made: SinkWrite | SinkPublication) -> None:
        """Write ``rows``; called again with an equal ``made`` after a failure."""

    def position(self, spark: SparkSession) -> tuple[str, int | None]:
        """Where the rows lie ("" if unknown), and the version of what is there."""

    def plan_restore(self, spark: SparkSession, cut: SinkCut) -> SinkRestore:
        """What :meth:`restore` would do; changes nothing."""

    def restore(self, spark: SparkSession, planned: SinkRestore, note: Mapping[str, Any]) -> None:
        """Put the sink back; called again after a failure. ``note`` says who did it."""


@runtime_checkable
class ChecksColumns(Protocol):
    """A sink that does not take any columns."""

    def check(self, name: str, schema: pa.Schema) -> None:
        """Refuse by a GraphError that names the column, before anything is written."""


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """Appends to a Delta table, exactly once per (attempt, batch, epoch).

    Attributes:
        path: the table's path; created if it is not there, with a checkpoint of its log every 100
            commits unless the session has a default for that.
        partition_by: its partition columns, if it is created.
    """

    path: str
    partition_by: Sequence[str] = ()
    reads_all: ClassVar[bool] = True

    def check(self, name: str, schema: pa.Schema) -> None:
        """Refuse columns that no table could be made for; errors as of :class:`ChecksColumns`."""
        if why := unfit(schema):
            raise GraphError(f"sink {name!r}: {why}; rename the column in the stage's output")
        if why := unfit_type(schema):
            raise GraphError(f"sink {name!r}: {why}")
        if isinstance(self.partition_by, str):
            raise GraphError(
                f"sink {name!r}: partition_by is the text {self.partition_by!r}, but a list of "
                f"columns is expected: [{self.partition_by!r}]"
            )
        for column in self.partition_by:
            if column not in schema.names:
                raise GraphError(
                    f"sink {name!r}: its partition column {column!r} is none of the stage's "
                    f"output columns {schema.names}"
                )

    def prepare(self, spark: SparkSession, schema: pa.Schema) -> None:
        """Create the table up front: several writers creating one path at once would conflict.

        Raises:
            StorageError: if it cannot be created.
        """
        properties = {} if spark.conf.get(_INTERVAL, None) else tables.COMMITTED_OFTEN
        tables.create(spark, self.path, schema, self.partition_by, properties)

    def write(self, rows: DataFrame, made: SinkWrite | SinkPublication) -> None:
        """Append in one commit, unless the log has it already.

        What a checkpoint publishes is a version of the table also if it is nothing.
        """
        self.append(rows, made)

    def append(
        self, rows: DataFrame | transactions.ArrowRows, made: SinkWrite | SinkPublication
    ) -> list[str] | None:
        """Write; the messages of the rows' side outputs, as :func:`append_once` gives them."""
        publishes = isinstance(made, SinkPublication)
        return transactions.append_once(
            rows, self.path, made.app_id, made.version, made.note, if_empty=publishes
        )

    def position(self, spark: SparkSession) -> tuple[str, int | None]:
        """The table's qualified path and newest version; None if it is not there yet."""
        files = Files(spark)
        place = files.qualified(self.path)
        return place, tables.found_version(files, place)

    def plan_restore(self, spark: SparkSession, cut: SinkCut) -> SinkRestore:
        """Find the version to go back to; what would be undone must be the job's own.

        And the files of that version must be there.
        """
        place, now = self.position(spark)
        if now is None:
            return SinkRestore(place, problems=(f"sink table {place!r} is gone",))
        log = LogBack(Files(spark), place, now)
        planned = put_back(place, log.commits(), cut)
        if planned.then is None or planned.problems:
            return planned
        return replace(planned, problems=tuple(what_is_gone(spark, log, planned.then)))

    def restore(self, spark: SparkSession, planned: SinkRestore, note: Mapping[str, Any]) -> None:
        """Restore the table to the version at the cut, in one commit; add columns in another.

        A kill between the two leaves a table that the next start puts back once more.
        """
        if planned.then is not None:
            tables.restore(spark, self.path, planned.then, note)
        # With the same note: this commit may be the one that the attempt begins at, and a later
        # restore reads from it what the sink had published.
        add_columns(spark, self.path, planned.added, note)


@dataclass(frozen=True, slots=True)
class ForeachBatchSink:
    """Calls a function with the rows of every (batch, epoch): **at least once**.

    After a failure the function is called again with equal rows and an equal :class:`SinkWrite`;
    use its ``app_id`` and ``version`` to make the write idempotent where the destination can.

    Attributes:
        function: called on the driver as ``function(rows, made)``; it may use ``rows`` as often as
            it likes, in part, or not at all.
    """

    function: Callable[[DataFrame, SinkWrite | SinkPublication], None]
    reads_all: ClassVar[bool] = False

    def prepare(self, spark: SparkSession, schema: pa.Schema) -> None:
        """Nothing to prepare."""

    def write(self, rows: DataFrame, made: SinkWrite | SinkPublication) -> None:
        """Call the function."""
        self.function(rows, made)

    def position(self, spark: SparkSession) -> tuple[str, int | None]:
        """Nothing is known of the place."""
        return "", None

    def plan_restore(self, spark: SparkSession, cut: SinkCut) -> SinkRestore:
        """The function's destination cannot be put back."""
        return SinkRestore(
            "",
            note=f"what was written after checkpoint {cut.checkpoint_id} stays, and will be "
            "written again under another app_id",
        )

    def restore(self, spark: SparkSession, planned: SinkRestore, note: Mapping[str, Any]) -> None:
        """Nothing can be done."""
