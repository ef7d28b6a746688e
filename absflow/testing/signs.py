"""What is fed to a stage under test beside rows: where micro-batches end, barriers, time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from absflow.watermark import Watermark

__all__ = [
    "BARRIER",
    "BATCH",
    "END",
    "RESTORE",
    "AdvanceWatermark",
    "BarrierOn",
    "Fed",
    "Input",
    "Sign",
    "Wait",
]


class Sign(Enum):
    """A sign between two rows of what is fed; each has a name of its own in the package."""

    BATCH = "a micro-batch ends here"
    BARRIER = "a checkpoint's barrier, on every input"
    RESTORE = "the job dies, and is restored from its last checkpoint"
    END = "every source ends"


BATCH = Sign.BATCH
BARRIER = Sign.BARRIER
RESTORE = Sign.RESTORE
END = Sign.END


@dataclass(frozen=True, slots=True)
class BarrierOn:
    """The barrier of a checkpoint on one input; rows behind it are held until the others have it.

    Attributes:
        input: the input.
    """

    input: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The clock goes on, and a micro-batch comes: timers in processing time may be due.

    Attributes:
        duration: for so long, as "10min".
    """

    duration: str


@dataclass(frozen=True, slots=True)
class AdvanceWatermark:
    """A stage that is read here says how far event time has come.

    Attributes:
        time: a datetime with a time zone.
        input: the input; it may be left out if there is one only.
    """

    time: datetime
    input: str = ""


# A row (of several inputs: a pair of the input's name and the row), a table, or a sign.
Fed: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a stage under test.

    Attributes:
        columns: Spark's DDL, a StructType, or a pyarrow schema.
        event_time: as of :meth:`absflow.Job.source`; of a stage its ``output_time``.
        watermark: as of :meth:`absflow.Job.source`.
        of: "source", or "stage": rows come over a channel, so a barrier may stand between two rows
            of a micro-batch, and :class:`AdvanceWatermark` says how far event time is.
        timed: of a stage: event time comes from it, though no column has that of its rows.
        ordered: of a source: whether a row is late goes by the rows before it, as with Kafka;
            else by the micro-batches before, as with files.
    """

    columns: str | StructType | pa.Schema
    event_time: str | None = None
    watermark: Watermark | None = None
    of: str = "source"
    timed: bool = False
    ordered: bool = False
