"""The plan of a restore: exactly what it will do, as a value. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import StructField

from absflow.protocol.recovery.attempts import Origin
from absflow.protocol.recovery.matching import StageFit
from absflow.sinks import SinkRestore
from absflow.storage.layout import Layout

__all__ = ["Overdue", "RestorePlan"]


@dataclass(frozen=True, slots=True)
class Overdue:
    """What of a stage's state has waited for a processing time that has passed.

    Attributes:
        timers: so many are due at once.
        keys: the state of so many has expired since.
    """

    timers: int = 0
    keys: int = 0


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Exactly what a restore would do.

    Attributes:
        origin: the checkpoint.
        attempt: the attempt that begins with it.
        fork: it lies under another storage root.
        stages: how each stage gets its state.
        positions: where each source goes on, as Spark writes it; new sources are not among them.
        source_logs: where that is kept what the position of each source needs.
        sinks: what happens to each sink.
        tables: name of the state history of each stage in the checkpoint.
        keys: its key columns there.
        taken_in: the attempt that took the checkpoint; 0 if it was written from nothing.
        cut: the checkpoint that positions and sinks are of: another one for a written savepoint,
            0 if it was written from nothing.
        published: what each on-checkpoint sink held when that attempt began.
        triggered_ms: when the checkpoint was triggered, ms since 1970 (UTC).
        moved: what waits for processing time is moved, so the state is another than in the sets.
        overdue: what is overdue, by stage; counted for a plan that is shown only.
        differences: between the graph of then and the one of now.
        problems: why it cannot be done; empty if it can.
    """

    origin: Origin
    attempt: int
    fork: bool
    stages: tuple[StageFit, ...]
    positions: Mapping[str, str]
    source_logs: Mapping[str, str]
    sinks: Mapping[str, SinkRestore]
    tables: Mapping[str, str]
    keys: Mapping[str, Sequence[str]]
    taken_in: int
    cut: int
    published: Mapping[str, int]
    triggered_ms: int = 0
    moved: bool = False
    overdue: Mapping[str, Overdue] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def full(self) -> bool:
        """Whether the next checkpoint must be a full one: it has no sets here to build upon."""
        # What has expired by an old rule must not come back by a new one.
        other = any(stage.changed or stage.other_expiry for stage in self.stages)
        return self.fork or self.moved or other

    def held(self, sink: str, noted: int | None) -> int:
        """The newest checkpoint that an on-checkpoint sink holds once it is put back.

        A sink that the job has not written to gets the rows after the checkpoint only. ``noted`` is
        what the attempt that took the checkpoint has noted of its publications.
        """
        back = self.sinks[sink]
        known = (back.published, noted, self.published.get(sink))
        last = next((n for n in known if n is not None), self.cut)
        return self.cut if back.new else min(last, self.cut)

    def document(self) -> dict[str, Any]:
        """The plan as JSON has it; ``absflow restore --plan --json`` prints it.

        ``restores`` is true: a start restores, or would if there were no ``problems``; a start that
        would not has these two alone. The stages come in topological order; ``source`` and
        ``table`` are null for one that begins empty. A source that is not in ``positions`` begins
        where its options say. ``version_then`` is null for a sink that stays as it is.
        ``columns_added`` are those that its table gets, ``columns_unfilled`` those that it has and
        the output has not. ``overdue_timers`` and ``expired_since`` say what has waited for a
        processing time that has passed since the checkpoint: timers, and keys with a ``ttl``.
        """
        histories = Layout(self.origin.root)
        return {
            "restores": True,
            "origin": {"root": self.origin.root, "checkpoint_id": self.origin.checkpoint_id},
            "taken_in_attempt": self.taken_in,
            "attempt": self.attempt,
            "fork": self.fork,
            "next_checkpoint_full": self.full,
            "stages": [
                {
                    "stage": fit.stage,
                    "source": fit.source,
                    "keys": fit.keys,
                    "lineage": list(fit.lineage),
                    "table": fit.source and histories.state(self.tables[fit.source]),
                    "key_groups_then": fit.key_groups[0],
                    "key_groups_now": fit.key_groups[1],
                    "changed": fit.changed,
                    "migrate": fit.migrate,
                    "overdue_timers": self.overdue.get(fit.stage, Overdue()).timers,
                    "expired_since": self.overdue.get(fit.stage, Overdue()).keys,
                    "in_flight": [
                        {"input": name, "rows": state.rows, "bytes": state.bytes}
                        for name, state in fit.in_flight
                    ],
                }
                for fit in self.stages
            ],
            "positions": dict(self.positions),
            "sinks": [
                {
                    "sink": name,
                    "place": sink.place,
                    "version_now": sink.now,
                    "version_then": sink.then,
                    "undone": list(sink.undone),
                    "note": sink.note,
                    "columns_added": [_column(field) for field in sink.added],
                    "columns_unfilled": [_column(field) for field in sink.unfilled],
                }
                for name, sink in self.sinks.items()
            ],
            "differences": list(self.differences),
            "problems": list(self.problems),
        }


def _column(field: StructField) -> dict[str, str]:
    return {"column": field.name, "type": field.dataType.simpleString()}
