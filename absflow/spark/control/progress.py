"""How far a run is, for people who wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from absflow.protocol.load import Load
from absflow.protocol.retention.failures import Failure
from absflow.spark.control.occupation import ThreadLoad

__all__ = ["Progress", "RetentionProgress", "SinkProgress", "StageProgress"]


@dataclass(frozen=True, slots=True)
class StageProgress:
    """How far a stage is; those of a chain are as far as its query.

    Attributes:
        batch_id: its newest committed micro-batch; -1 before the first.
        total_rows: rows of data that its query has read since the start.
        rows_per_second: of its newest batch; 0 while it has nothing to do.
        load: how busy it is, and what it has not read yet of the stages before it.
        watermark: no row comes any more with an event time up to this (UTC); None if it has none.
        late_rows: rows of its sources that have come late since its query was started.
        late_emitted: rows that it has emitted since then, though its own watermark was past them.
    """

    batch_id: int = -1
    total_rows: int = 0
    rows_per_second: float = 0.0
    load: Load = field(default_factory=Load)
    watermark: datetime | None = None
    late_rows: int = 0
    late_emitted: int = 0


@dataclass(frozen=True, slots=True)
class RetentionProgress:
    """What of retention fails.

    Attributes:
        failures: how many tries have failed in this run.
        failing: what failed when it was tried last, also by earlier drivers; tried again and again.
    """

    failures: int = 0
    failing: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """How far an on-checkpoint sink is.

    Attributes:
        published: the newest checkpoint whose rows it has; 0 if it has none.
        waiting: so many completed checkpoints are still to be published.
        waiting_s: how long the oldest of them has waited in this run, in seconds.
        failures: how many tries to publish that one have failed.
        error: what the last of them said; "" if none has failed.
    """

    published: int = 0
    waiting: int = 0
    waiting_s: float = 0.0
    failures: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        checkpoint_id: the newest completed checkpoint; 0 if there is none.
        completed: checkpoints that this run completed.
        pending: checkpoints under way.
        stages: by name in topological order.
        thread: what the job's thread does with its time; every stage reports to it.
        retention: what of retention fails.
        sinks: the on-checkpoint sinks, by name.
        completed_at: when the newest checkpoint was completed (UTC); None if an earlier run has
            done that.
    """

    checkpoint_id: int
    completed: int
    pending: tuple[int, ...]
    stages: Mapping[str, StageProgress]
    thread: ThreadLoad = field(default_factory=ThreadLoad)
    retention: RetentionProgress = field(default_factory=RetentionProgress)
    sinks: Mapping[str, SinkProgress] = field(default_factory=dict)
    completed_at: datetime | None = None
