"""What the tables say, for Prometheus: names and units as its users have them.

All of it is of durable facts, so it is there without a driver, too, and a job that is dead is seen
by a checkpoint that gets older. A running driver has the same names, and more
(:mod:`absflow.telemetry.names`).
"""

from __future__ import annotations

from collections.abc import Iterator

from absflow.cli.records import StatusRecord
from absflow.facts.listing import HistoryRecord
from absflow.protocol.checkpoints import Status
from absflow.telemetry.metrics import of_checkpoint
from absflow.telemetry.names import Sample
from absflow.telemetry.prometheus import CONTENT_TYPE, text_of

__all__ = ["CONTENT_TYPE", "metrics"]


def metrics(status: StatusRecord, history: HistoryRecord) -> bytes:
    """All of them in Prometheus' text format.

    Args:
        status: how the job is.
        history: its counts are looked at.
    """
    return text_of((*_of_job(status, history), *of_checkpoint(status.last)))


def _of_job(status: StatusRecord, history: HistoryRecord) -> Iterator[Sample]:
    yield Sample("absflow_driver_running", float(not status.end))
    yield Sample("absflow_attempt", status.attempt)
    completed = history.counts.get(Status.COMPLETED, 0) + history.counts.get(Status.DELETED, 0)
    aborted = history.counts.get(Status.ABORTED, 0)
    yield Sample("absflow_checkpoint", completed, {"outcome": "completed"})
    yield Sample("absflow_checkpoint", aborted, {"outcome": "aborted"})
    yield Sample("absflow_checkpoint_pending", len(status.pending))
    yield Sample("absflow_checkpoint_aborted_since", len(status.aborted))
    yield Sample("absflow_retention_failing", len(status.failing))
    for sink, published in status.sinks.items():
        yield Sample("absflow_sink_published_id", published, {"sink": sink})
