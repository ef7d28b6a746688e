"""What is known of a job's checkpoints: its facts, or a summary of old ones and all newer ones.

Rules of this file: records and plain functions over facts.

Facts stay for ever, and a checkpoint every ten seconds makes three million in a year. What a start,
a plan of retention or a reader asks of them is little: what is pending, what is still kept, which
compactions its lineages are read by. A *summary* says that of all facts up to an id, so that only
newer facts are read, and those of what is kept.

Why it may be believed. Up to its id every trigger has its terminal fact, and ids only rise: no
other trigger or terminal fact with such an id can come. What can come is a DELETED fact of a
checkpoint that was not deleted, and a COMPACTED fact of one that was kept; the summary names both,
and their facts are looked for by their ids. So a summary is never wrong, only old. Any driver may
write one at any time, over a newer one too; without one, everything is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import Kind
from absflow.protocol.lineage import Compacted, end_of, fits
from absflow.protocol.recovery.savepoint_writer import WrittenSavepoint

__all__ = [
    "Completion",
    "Known",
    "Trigger",
    "bases_since",
    "matter",
    "readable_by",
    "runs",
    "summarise",
]


@dataclass(frozen=True, slots=True)
class Trigger:
    """A row of ``barriers`` that asks for a checkpoint."""

    barrier: Barrier
    attempt: int
    kind: Kind = Kind.CHECKPOINT
    request: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """A COMPLETED fact, without its manifest.

    Attributes:
        checkpoint_id: the checkpoint.
        attempt: the attempt that took it, or of what it was written from.
        incarnation: the driver that wrote the fact.
        savepoint: a person asked for it.
        derived_from: as in the manifest.
    """

    checkpoint_id: int
    attempt: int
    incarnation: int = 0
    savepoint: bool = False
    derived_from: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the checkpoints of a job.

    Attributes:
        upto: every trigger up to this one has its terminal fact; 0 if nothing is summed up.
        completions: by id, of those up to ``upto`` the ones that :func:`matter`, and all newer ones
            that do.
        deleted: those among them with a DELETED fact.
        compacted: of a summary, the COMPACTED facts by which their lineages may be read.
        done: ids above ``upto`` with a COMPLETED fact.
        aborted: ids above ``upto`` with an ABORTED fact.
        done_before: how many up to ``upto`` have a COMPLETED fact.
        aborted_before: how many have an ABORTED one.
        triggered: the newest id with a trigger; 0 if there is none.
        pending: triggers without a terminal fact, by id.
        ends: root inputs (stage and input) with an END row in the current attempt.
    """

    upto: int = 0
    completions: Mapping[int, Completion] = field(default_factory=dict)
    deleted: frozenset[int] = frozenset()
    compacted: tuple[Compacted, ...] = ()
    done: frozenset[int] = frozenset()
    aborted: frozenset[int] = frozenset()
    done_before: int = 0
    aborted_before: int = 0
    triggered: int = 0
    pending: tuple[Trigger, ...] = ()
    ends: frozenset[tuple[str, str]] = frozenset()

    @property
    def attempts(self) -> dict[int, int]:
        """The attempt of each completed checkpoint that matters, by id."""
        return {n: c.attempt for n, c in self.completions.items()}

    @property
    def there(self) -> list[int]:
        """The completed checkpoints that are not deleted, rising."""
        return sorted(self.completions.keys() - self.deleted)

    @property
    def written(self) -> dict[int, WrittenSavepoint]:
        """All written savepoints, by id."""
        return {
            n: WrittenSavepoint(c.derived_from, c.incarnation)
            for n, c in self.completions.items()
            if c.derived_from is not None
        }

    @property
    def done_count(self) -> int:
        """How many have ever completed."""
        return self.done_before + len(self.done)

    @property
    def aborted_count(self) -> int:
        """How many were ever aborted."""
        return self.aborted_before + len(self.aborted)

    @property
    def ended_id(self) -> int:
        """The newest id with a terminal fact; 0 if there is none."""
        return max(self.upto, max(self.done, default=0), max(self.aborted, default=0))


def bases_since(pending: Iterable[Trigger], attempt: int) -> int | None:
    """The oldest checkpoint that something pending in an attempt is based on; None without any."""
    bases = (t.barrier.base_id for t in pending if t.attempt == attempt)
    return min((base for base in bases if base), default=None)


def matter(
    completions: Iterable[Completion],
    deleted: Collection[int],
    attempt: int = 0,
    named: Collection[int] = (),
    pending_since: int | None = None,
) -> set[int]:
    """The completed checkpoints that may still be asked for.

    What is not deleted; what was written, with what it was made from, for the branch leads over it;
    and of the current attempt what is not older than its newest periodic one, or than what
    something pending is based on, for the job may go on from that.

    Args:
        completions: COMPLETED facts.
        deleted: ids with a DELETED fact.
        attempt: the current one.
        named: others that matter: what attempts began with.
        pending_since: the oldest base of what is pending in the attempt.
    """
    given = list(completions)
    written = [c for c in given if c.derived_from is not None]
    bases = {c.derived_from for c in written}
    own = [c for c in given if c.attempt == attempt and c.derived_from is None]
    newest = max((c.checkpoint_id for c in own if not c.savepoint), default=0)
    since = newest if pending_since is None else min(newest, pending_since)
    tail = {c.checkpoint_id for c in own if c.checkpoint_id >= since}
    always = {*named, *bases, *tail, *(c.checkpoint_id for c in written)}
    return {
        c.checkpoint_id
        for c in given
        if c.checkpoint_id not in deleted or c.checkpoint_id in always
    }


def readable_by(
    lineages: Iterable[tuple[str, Sequence[int]]], compacted: Iterable[Compacted]
) -> tuple[Compacted, ...]:
    """The compactions by which these lineages, or what goes on from them, may be read.

    Args:
        lineages: stages with lineages, as manifests have them.
        compacted: all COMPACTED facts.
    """
    ends: dict[str, set[int]] = {}
    for stage, lineage in lineages:
        ends.setdefault(stage, set()).update(map(end_of, lineage))
    facts = dict.fromkeys(compacted)
    return tuple(fact for fact in facts if fits(fact.set_id, ends.get(fact.stage, ())))


def summarise(
    known: Known,
    lineages: Mapping[int, Mapping[str, Sequence[int]]],
    compacted: Iterable[Compacted],
    attempt: int,
    named: Collection[int] = (),
) -> Known:
    """A summary of all that is known, up to the newest id that it can be of.

    Args:
        known: what was read.
        lineages: of the checkpoints that may be read again, by stage.
        compacted: the COMPACTED facts by which these may be read.
        attempt: the current one.
        named: what attempts began with.
    """
    first = min((t.barrier.checkpoint_id for t in known.pending), default=known.triggered + 1)
    # What has ended behind the newest trigger that was read may have something pending below it.
    upto = max((n for n in known.done | known.aborted if n < first), default=known.upto)
    old = [c for n, c in known.completions.items() if n <= upto]
    kept = matter(old, known.deleted, attempt, named, bases_since(known.pending, attempt))
    return Known(
        upto=upto,
        completions={c.checkpoint_id: c for c in old if c.checkpoint_id in kept},
        deleted=known.deleted & kept,
        compacted=readable_by(
            # Of newer ones too: their lineages begin with old sets.
            ((stage, lineage) for stages in lineages.values() for stage, lineage in stages.items()),
            compacted,
        ),
        done_before=known.done_before + sum(n <= upto for n in known.done),
        aborted_before=known.aborted_before + sum(n <= upto for n in known.aborted),
        triggered=upto,
    )


def runs(ids: Iterable[int], at_most: int = 24) -> list[tuple[int, int]]:
    """Few ranges that these ids lie in, split where the gaps between them are the widest.

    >>> runs([5, 1, 2, 900, 901], at_most=2)
    [(1, 5), (900, 901)]
    """
    rising = sorted(set(ids))
    pairs = list(itertools.pairwise(rising))
    gaps = sorted((p for p in pairs if p[1] - p[0] > 1), key=lambda p: p[0] - p[1])
    edges = sorted(gaps[: at_most - 1])
    firsts = [rising[0], *(after for _, after in edges)] if rising else []
    lasts = [*(before for before, _ in edges), rising[-1]] if rising else []
    return list(zip(firsts, lasts, strict=True))
