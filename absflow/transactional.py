"""Sinks whose destination commits rows and a marker in one transaction: each row exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from absflow.columnar.publishing import Lane
from absflow.errors import GraphError
from absflow.sinks import Sink, SinkCut, SinkPublication, SinkRestore, SinkWrite

__all__ = ["Lane", "TransactionalSink"]


class TransactionalSink:
    """A destination with transactions, to which each row of a checkpoint goes exactly once.

    Derive from it, and say how a lane's marker is read (:meth:`marker`) and how a lane is opened
    (:meth:`open`); absflow does the rest. What is derived is sent to the executors, so it must be
    picklable, and open what it needs there.

    Attributes:
        lanes: by so many tasks are rows published at a time. The rows of a key go by one lane. With
            one, a checkpoint is visible in a single transaction, if that is not limited.
        transaction_bytes: a transaction has no more bytes of rows than this, as Arrow counts them;
            None: all rows of a lane go in one.
    """

    lanes: int = 1
    transaction_bytes: int | None = None
    reads_all: ClassVar[bool] = True
    on_checkpoint_only: ClassVar[bool] = True

    @property
    def packages(self) -> tuple[str, ...]:
        """What executors must have installed, by the names of its distributions."""
        return ()

    def marker(self, lane: str) -> str | None:
        """The marker that was committed last to a lane; None if there is none.

        Called by the driver, before a restore changes anything. Whoever publishes is not disturbed.
        """
        raise NotImplementedError

    def open(self, lane: str) -> Lane:
        """Open a lane; nobody who opened it before can commit to it any more.

        Args:
            lane: letters, digits, ``-`` and ``_``; the same over restarts and restores, and used by
                no other job.
        """
        raise NotImplementedError

    def check(self, name: str, schema: pa.Schema) -> None:
        """Refuse columns that cannot go there, before anything is started.

        Args:
            name: the sink's name.
            schema: the stage's output.

        Raises:
            GraphError: naming the column.
        """

    def complete(self, lanes: Sequence[str], attempt: int, checkpoint_id: int) -> None:
        """Called by the driver once all lanes have a checkpoint, and perhaps again.

        Args:
            lanes: their names.
            attempt: the attempt that took the checkpoint.
            checkpoint_id: the checkpoint.
        """

    def of_state(self, name: str, keys: Sequence[str], deleted: str) -> TransactionalSink:
        """The sink as one that keeps a table of a stage's state, a row for each key.

        Its lanes are :class:`~absflow.columnar.publishing.StateLane`.

        Args:
            name: the sink's name.
            keys: the stage's key columns.
            deleted: the boolean column of a row that says that the key's row goes.

        Raises:
            GraphError: it is no such sink.
        """
        raise GraphError(
            f"sink {name!r}: a {type(self).__name__} keeps no table of a state; leave out "
            'of="state"'
        )

    def immediate(self, name: str) -> Sink:
        """The sink in the mode ``immediate``, written by each micro-batch at once.

        Raises:
            GraphError: it has no such mode.
        """
        raise GraphError(
            f"sink {name!r}: a {type(self).__name__} publishes with checkpoints; leave out "
            "mode='immediate'"
        )

    def prepare(self, spark: SparkSession, schema: pa.Schema) -> None:
        """Called once before the job starts; refuse here what cannot work."""

    def describe(self) -> str:
        """Where rows go, for people; no password is in it."""
        return type(self).__name__

    def write(self, rows: DataFrame, made: SinkWrite | SinkPublication) -> None:
        """Refuse a mode that has no checkpoint to publish.

        Raises:
            GraphError: always.
        """
        raise GraphError(
            f"sink {made.sink!r}: {type(self).__name__} publishes with checkpoints; declare "
            'job.sink(..., mode="on-checkpoint")'
        )

    def position(self, spark: SparkSession) -> tuple[str, int | None]:
        """Nothing is known of places with versions."""
        return "", None

    def plan_restore(self, spark: SparkSession, cut: SinkCut) -> SinkRestore:
        """What was published stays; what that is, its markers say."""
        return SinkRestore("")

    def restore(self, spark: SparkSession, planned: SinkRestore, note: Mapping[str, Any]) -> None:
        """Nothing is put back."""
