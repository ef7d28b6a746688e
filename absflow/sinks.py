"""Sinks: where the output of a stage goes, micro-batch by micro-batch.

An aligned stage releases held rows in the very batch that completes its alignment, so the output of
one batch may span several epochs. A sink is therefore written once per epoch present, in order: a
version of its table then lies exactly at the cut of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.errors import GraphError
from absflow.storage import tables

__all__ = ["DeltaSink", "ForeachBatchSink", "Sink", "SinkWrite"]

_EPOCH_BITS = 31


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

    def write(self, rows: DataFrame, made: SinkWrite) -> None:
        """Write ``rows``; called again with an equal ``made`` after a failure."""


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """Appends to a Delta table, exactly once per (attempt, batch, epoch).

    Attributes:
        path: the table's path; created if it is not there.
        partition_by: its partition columns, if it is created.
    """

    path: str
    partition_by: Sequence[str] = ()
    reads_all: ClassVar[bool] = True

    def prepare(self, spark: SparkSession, schema: pa.Schema) -> None:
        """Create the table up front: several writers creating one path at once would conflict.

        Raises:
            GraphError: if the table is there with other columns.
            StorageError: if it cannot be created or read.
        """
        tables.create(spark, self.path, schema, self.partition_by)
        there = tables.read(spark, self.path).schema
        seen = {f.name: f.dataType for f in there.fields}
        due = {f.name: f.dataType for f in from_arrow_schema(schema).fields}
        if seen != due:
            raise GraphError(
                f"sink table {self.path!r} has columns {there.simpleString()}, but the stage's "
                f"output is {from_arrow_schema(schema).simpleString()}; choose another path"
            )

    def write(self, rows: DataFrame, made: SinkWrite) -> None:
        """Append in one commit, unless the log has it already."""
        note = {
            "job": made.job,
            "stage": made.stage,
            "attempt": made.attempt,
            "batch": made.batch_id,
            "epoch": made.epoch,
        }
        tables.append(rows, self.path, made.app_id, made.version, note)


@dataclass(frozen=True, slots=True)
class ForeachBatchSink:
    """Calls a function with the rows of every (batch, epoch): **at least once**.

    After a failure the function is called again with equal rows and an equal :class:`SinkWrite`;
    use its ``app_id`` and ``version`` to make the write idempotent where the destination can.

    Attributes:
        function: called on the driver as ``function(rows, made)``; it may use ``rows`` as often as
            it likes, in part, or not at all.
    """

    function: Callable[[DataFrame, SinkWrite], None]
    reads_all: ClassVar[bool] = False

    def prepare(self, spark: SparkSession, schema: pa.Schema) -> None:
        """Nothing to prepare."""

    def write(self, rows: DataFrame, made: SinkWrite) -> None:
        """Call the function."""
        self.function(rows, made)
