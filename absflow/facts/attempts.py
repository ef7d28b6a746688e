"""What the table ``attempts`` says."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from absflow.facts.lock import driver_gone
from absflow.facts.reading import StorageReader
from absflow.facts.records import AttemptRecord, Ready, attempt_record, attempts_of, ready_of
from absflow.facts.stages import Stages, stages_of
from absflow.protocol.checkpoints import AttemptFact
from absflow.protocol.recovery.attempts import Attempt
from absflow.storage.layout import Layout

__all__ = [
    "JobNow",
    "driver_of",
    "job_now",
    "noted_by",
    "plain_root",
    "published_sinks",
    "read_attempts",
    "stages_under",
]

_COLUMNS = ("attempt", "incarnation", "kind", "restored_from", "details")


@dataclass(frozen=True, slots=True)
class JobNow:
    """The job as it is now, by which its checkpoints are judged.

    Attributes:
        root: its storage root, as origins name it.
        attempts: all of them.
        lost: the driver that is no more, in words; empty if there is one, or may be.
    """

    root: str
    attempts: tuple[Attempt, ...] = ()
    lost: str = ""

    @property
    def origins(self) -> set[int]:
        """The checkpoints of this root that attempts were restored from."""
        origins = (a.origin for a in self.attempts if a.origin)
        return {o.checkpoint_id for o in origins if o.root == self.root}


def job_now(root: str, facts: Collection[AttemptRecord]) -> JobNow:
    """The job as its attempts say, with a root that names it in one way for all readers.

    Args:
        root: its storage root, under any name.
        facts: those of its attempts.
    """
    attempts = (
        replace(a, origin=a.origin and replace(a.origin, root=plain_root(a.origin.root)))
        for a in attempts_of(facts)
    )
    incarnation, ended = driver_of(root, facts)
    lost = f"driver incarnation {incarnation} has {ended}" if ended else ""
    return JobNow(plain_root(root), tuple(attempts), lost)


def plain_root(root: str) -> str:
    """A root as it is named by Spark and by who reads it without, who has other schemes."""
    return re.sub("^s3[an]://", "s3://", re.sub("^file:/+", "/", root))


def read_attempts(reader: StorageReader, layout: Layout) -> tuple[AttemptRecord, ...]:
    """Every fact of the table: a few for each start of a driver."""
    rows = reader.table(layout.attempts, _COLUMNS).to_pylist()
    return tuple(attempt_record(row, layout.root) for row in rows)


def stages_under(reader: StorageReader, layout: Layout) -> Stages:
    """The stages of the job, as each attempt and each written savepoint had them.

    Raises:
        NotFoundError: no job has ever started there.
    """
    return stages_of(read_attempts(reader, layout))


def published_sinks(facts: Collection[AttemptRecord]) -> dict[str, str]:
    """The stage of each on-checkpoint sink, by the sink's name."""
    numbers = (fact.attempt for fact in facts if fact.kind is AttemptFact.READY)
    newest = ready_of(facts, max(numbers, default=0))
    return dict(newest.on_checkpoint) if newest else {}


def noted_by(
    reader: StorageReader, layout: Layout, attempt: int, sinks: Collection[str], ready: Ready
) -> dict[str, int]:
    """The newest checkpoint that each sink has noted, else what it held when the attempt began.

    Args:
        reader: how to look.
        layout: where things lie.
        attempt: the attempt.
        sinks: the on-checkpoint sinks; of one that neither knows nothing is said.
        ready: what the attempt's READY fact says.
    """
    notes = {sink: reader.read(layout.published(sink, attempt)) for sink in sinks}
    held = ready.published
    return {
        **{sink: int(held[sink] or 0) for sink in sinks if sink in held},
        **{sink: int(note) for sink, note in notes.items() if note is not None},
    }


def driver_of(root: str, facts: Collection[AttemptRecord]) -> tuple[int, str]:
    """The newest driver's incarnation, and how it has ended; "" if it runs, or may.

    Args:
        root: the storage root, under any name.
        facts: those of its attempts.
    """
    newest = max((fact.incarnation for fact in facts), default=0)
    kinds = [fact.kind for fact in facts if fact.incarnation == newest]
    if AttemptFact.WRITTEN in kinds:  # whoever writes a savepoint runs no job
        return newest, "ended"
    ends = (kind for kind in kinds if kind in {AttemptFact.ENDED, AttemptFact.FAILED})
    said = next((kind.value.lower() for kind in ends), "")
    return newest, said or ("gone" if driver_gone(plain_root(root)) else "")
