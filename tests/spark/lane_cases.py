"""What tests of lanes publish: small batches, as the task of an executor does."""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa

import absflow
from absflow.columnar.publishing import LanePublication, publish

__all__ = ["IDS", "LANE", "MADE", "batch", "prepared", "run"]

_Sink = TypeVar("_Sink", bound=absflow.TransactionalSink)

LANE = "absflow-0b5c-out-0"
MADE = LanePublication(LANE, driver=1, lanes=1, attempt=1, checkpoint_id=7)
IDS = pa.schema([("id", pa.int64()), ("v", pa.string())])


def batch(*rows: tuple[object, ...], schema: pa.Schema = IDS) -> pa.RecordBatch:
    """These rows."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in schema]
    return pa.record_batch(columns, schema=schema)


def prepared(sink: _Sink, schema: pa.Schema = IDS) -> _Sink:
    """The sink, as a job's start leaves it."""
    sink.check("out", schema)
    sink.prepare(None, schema)
    return sink


def run(
    sink: absflow.TransactionalSink, *batches: pa.RecordBatch, made: LanePublication = MADE
) -> int:
    """Publish; how many rows were written."""
    return publish(made, sink.open, sink.marker, batches)
