"""A stage as its author declares it, read: for a job, and for the tests of a function by itself."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import StructType

from absflow.declared import called, declared_columns
from absflow.declared_functions import Functions, needs_event_time
from absflow.errors import GraphError
from absflow.graph.nodes import StageNode, Upgrade
from absflow.spark.worker.sendable import check_sendable
from absflow.ttl import Ttl, declared_expiry
from absflow.watermark import declared_delay

__all__ = ["check_called", "declared_stage"]


def declared_stage(
    name: str,
    inputs: tuple[str, ...],
    functions: Functions,
    *,
    key: str | Sequence[str],
    output: str | StructType,
    ttl: Ttl | None,
    output_time: str | None,
    watermark_delay: str,
    upgrade: Upgrade,
) -> StageNode:
    """A stage; all but the last as :meth:`absflow.Job.stage` has it.

    Args:
        name: its name.
        inputs: their names.
        functions: what it calls.
        key: the key columns.
        output: of the rows it emits.
        ttl: how long its state lives.
        output_time: the output column with event times.
        watermark_delay: how much older than its watermark these may be.
        upgrade: how it is restored from an earlier form of itself.

    Raises:
        GraphError: something here cannot be read.
    """
    return StageNode(
        name,
        inputs,
        key=(key,) if isinstance(key, str) else tuple(key),
        state=declared_columns(name, "state", functions.state),
        output=declared_columns(name, "output", output),
        process=functions.process,
        upgrade=upgrade,
        on_timer=functions.on_timer,
        expiry=declared_expiry(name, ttl),
        output_time=output_time,
        watermark_delay=declared_delay(name, watermark_delay),
    )


def check_called(node: StageNode, *, timed: bool) -> None:
    """See that the functions of a stage can be sent to the workers, and have what they wait for.

    Args:
        node: the stage.
        timed: whether any of its inputs has event time.

    Raises:
        GraphError: they cannot, or have not.
    """
    check_sendable(node.name, called(node))
    if needs_event_time(node.on_timer) and not timed:
        raise GraphError(
            f'stage {node.name!r} has time_mode "EventTime", but none of its inputs has event '
            "time; declare source(..., event_time=...)"
        )
