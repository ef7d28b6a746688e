"""What the table ``attempts`` says."""

from __future__ import annotations

from absflow.facts.reading import StorageReader
from absflow.facts.records import AttemptRecord, attempt_record, ready_of
from absflow.facts.stages import Stages, stages_of
from absflow.protocol.checkpoints import AttemptFact
from absflow.storage.layout import Layout

__all__ = ["driver_of", "published_sinks", "read_attempts", "stages_under"]

_COLUMNS = ("attempt", "incarnation", "kind", "restored_from", "details")


def read_attempts(reader: StorageReader, layout: Layout) -> tuple[AttemptRecord, ...]:
    """Every fact of the table: a few for each start of a driver."""
    rows = reader.table(layout.attempts, _COLUMNS).to_pylist()
    return tuple(map(attempt_record, rows))


def stages_under(reader: StorageReader, layout: Layout) -> Stages:
    """The stages of the job, as each attempt and each written savepoint had them.

    Raises:
        NotFoundError: no job has ever started there.
    """
    return stages_of(read_attempts(reader, layout))


def published_sinks(reader: StorageReader, layout: Layout) -> dict[str, str]:
    """The stage of each on-checkpoint sink, by the sink's name."""
    facts = read_attempts(reader, layout)
    numbers = (fact.attempt for fact in facts if fact.kind is AttemptFact.READY)
    newest = ready_of(facts, max(numbers, default=0))
    return dict(newest.on_checkpoint) if newest else {}


def driver_of(reader: StorageReader, layout: Layout) -> tuple[int, str]:
    """The newest driver's incarnation, and how it has ended; "" if it has not said so.

    Raises:
        NotFoundError: no job has ever started there.
    """
    facts = read_attempts(reader, layout)
    newest = max(fact.incarnation for fact in facts)
    kinds = [fact.kind for fact in facts if fact.incarnation == newest]
    if AttemptFact.WRITTEN in kinds:  # whoever writes a savepoint runs no job
        return newest, "ended"
    ends = (kind for kind in kinds if kind in {AttemptFact.ENDED, AttemptFact.FAILED})
    return newest, next((kind.value.lower() for kind in ends if kind), "")
