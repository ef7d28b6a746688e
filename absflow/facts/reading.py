"""How facts are read: what is asked for, and no more.

Here is known what the rows of ``barriers`` and ``checkpoints`` look like that are read; everybody
else gets records. What is asked of old facts is in a summary
(:mod:`absflow.protocol.known`); the rest is asked for by ids and kinds, by which Delta and Parquet
leave out files and parts of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from absflow.facts.columns import CHECKPOINTS
from absflow.facts.matching import Match
from absflow.facts.records import (
    CheckpointRecord,
    checkpoint_record,
    compacted_of,
    manifest_of,
    stage_of,
    trigger_of,
)
from absflow.facts.summary import read_summary
from absflow.protocol.checkpoints import (
    TERMINAL,
    Fact,
    FactKind,
    FailureReason,
    Kind,
    Manifest,
    StageManifest,
)
from absflow.protocol.known import Completion, Known, bases_since, matter, readable_by, runs
from absflow.protocol.lineage import SPAN, Compacted, end_of
from absflow.storage.layout import Layout

__all__ = ["Answer", "FactReader", "StorageReader"]

_COMPLETED, _ABORTED = FactKind.COMPLETED.value, FactKind.ABORTED.value
_DELETED, _COMPACTED = FactKind.DELETED.value, FactKind.COMPACTED.value
_KINDS = tuple(kind.value for kind in FactKind)
_LIGHT = (
    *("checkpoint_id", "kind", "type", "attempt", "incarnation", "derived_from"),
    *("stage", "set_id", "replaces", "set_rows", "set_digest"),
)
_TRIGGER = (
    *("attempt", "checkpoint_id", "base_id", "completed_id", "kind", "request"),
    *("stage", "input", "triggered_at"),
)
_ENDED = (
    *("checkpoint_id", "kind", "type", "attempt", "base_id", "triggered_at", "ended_at"),
    *("duration_ms", "reason", "cause", "stages", "versions"),
)
_MANIFEST = (
    *("checkpoint_id", "kind", "type", "request", "base_id", "derived_from", "triggered_at"),
    "stages",
)


# So many triggers fit into a driver's memory with their manifests, a few KB each.
_FEW = 2000


@dataclass(frozen=True, slots=True)
class Answer:
    """A row of ``checkpoints`` that answers a request: a fact, or a refusal."""

    kind: str
    checkpoint_id: int | None
    reason: str | None
    cause: str | None


class StorageReader(Protocol):
    """How a storage root is looked into."""

    def table(self, path: str, columns: Sequence[str], matches: Sequence[Match] = ()) -> pa.Table:
        """Rows of a table that match one of these; without any, all. Their order is no matter.

        Columns that a table of an earlier version does not have are left out.
        """

    def values(self, table: str, column: str) -> frozenset[int]:
        """The values that a partition column has in a table."""

    def sets(self, table: str) -> Mapping[int, int]:
        """The sets of a state history, and how many rows its log says that each has; 0 for none."""

    def names(self, directory: str) -> list[str]:
        """The names in a directory; empty if there is none."""

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""


class FactReader:
    """The facts of one job."""

    def __init__(self, reader: StorageReader, layout: Layout) -> None:
        """Read with ``reader``."""
        self._reader = reader
        self._layout = layout
        self._compacted = pa.table({"set_id": pa.array([], pa.int64())})

    @cached_property
    def _summary(self) -> Known:
        """Read once: an older one is as good, and goes with what the reader has seen since."""
        return read_summary(self._reader, self._layout)

    def known(
        self, *, attempt: int = 0, named: Collection[int] = (), triggers: bool = True
    ) -> Known:
        """All that matters of the job's checkpoints.

        Args:
            attempt: the current one, which may go on from a deleted checkpoint.
            named: checkpoints to be looked up, whatever has become of them.
            triggers: whether to look for what is pending.
        """
        summary = self._summary
        # Before the facts: what completes in between must be known, as pending or as completed.
        barriers = self._barriers(summary.upto, attempt) if triggers else None
        asked = {*summary.completions, *named}
        matches = [Match(summary.upto + 1, None, _KINDS)] if summary.upto else [Match(kinds=_KINDS)]
        old = (n for n in asked if n <= summary.upto)
        matches += [Match(first, last, _KINDS) for first, last in runs(old)]
        facts = self._reader.table(self._layout.checkpoints, _LIGHT, matches)
        ended = _with_ends(summary, facts)
        known = ended if barriers is None else _with_triggers(ended, barriers)
        since = bases_since(known.pending, attempt)
        if since is not None and since <= known.upto:
            only = [Match(since, known.upto, _KINDS)]
            more = self._reader.table(self._layout.checkpoints, _LIGHT, only)
            facts = pa.concat_tables([facts, more])
            asked |= {*more["checkpoint_id"].to_pylist()}
        # The ranges that were asked for have others in between.
        ids = facts["checkpoint_id"]
        facts = facts.filter(pc.or_(pc.greater(ids, known.upto), _among(ids, asked)))
        self._compacted = facts.filter(pc.equal(facts["kind"], _COMPACTED))
        return _with_completions(known, facts, attempt, named, since)

    def compacted(self, lineages: Iterable[tuple[str, Sequence[int]]]) -> tuple[Compacted, ...]:
        """The compactions by which lineages of what :meth:`known` has found last may be read.

        Args:
            lineages: stages with lineages, as manifests have them.
        """
        given = [(stage, tuple(lineage)) for stage, lineage in lineages]
        ends = {end_of(set_id) for _, lineage in given for set_id in lineage}
        # Of all that an old job has made, few become records.
        ids = pc.negate(self._compacted["set_id"])
        at = pc.subtract(ids, pc.multiply(pc.divide(ids, SPAN), SPAN))
        may = compacted_of(self._compacted.filter(_among(at, ends)).to_pylist())
        return readable_by(given, (*self._summary.compacted, *may))

    def _barriers(self, upto: int, attempt: int) -> pa.Table:
        wanted = [Match(kinds=(Kind.END.value,), equal=(("attempt", attempt),))] if attempt else []
        kinds = tuple(kind.value for kind in Kind if kind is not Kind.END)
        wanted.append(Match(upto + 1, None, kinds) if upto else Match(kinds=kinds))
        return self._reader.table(self._layout.barriers, _TRIGGER, wanted)

    def manifests(self, ids: Collection[int]) -> dict[int, Manifest]:
        """The manifests of completed checkpoints, as they were committed."""
        rows = self._rows(ids, _MANIFEST, (_COMPLETED,))
        return {row["checkpoint_id"]: manifest_of(row) for row in rows}

    def stages(self, ids: Collection[int]) -> dict[int, tuple[StageManifest, ...]]:
        """The stages in the manifests of completed checkpoints, as they were committed."""
        rows = self._rows(ids, ("checkpoint_id", "kind", "stages"), (_COMPLETED,))
        return {row["checkpoint_id"]: tuple(map(stage_of, row["stages"])) for row in rows}

    def lineages(self, ids: Collection[int]) -> dict[int, dict[str, tuple[int, ...]]]:
        """The lineage of each stage in the manifests of completed checkpoints."""
        return {
            n: {stage.report.stage: stage.lineage for stage in stages}
            for n, stages in self.stages(ids).items()
        }

    def expired_upto(self, checkpoint_id: int, stage: str) -> int | None:
        """Of a stage's state at a completed checkpoint: what was touched up to then had expired.

        In microseconds since 1970 (UTC); None if nothing had.
        """
        stages = self.stages([checkpoint_id]).get(checkpoint_id, ())
        mine = (s.report.expired_upto for s in stages if s.report.stage == stage)
        return next(mine, None)

    def ended(self, ids: Collection[int]) -> list[CheckpointRecord]:
        """Those of these checkpoints that have a terminal fact, as it has them."""
        return list(map(checkpoint_record, self._rows(ids, _ENDED, tuple(sorted(TERMINAL)))))

    def whole(self) -> tuple[pa.Table, pa.Table] | None:
        """All triggers, then all terminal facts and deletions, as rows.

        None of a job that has so many that they must stay where they are: as soon as a summary is
        written, behind the first 1,000 checkpoints.
        """
        if self._summary.upto:
            return None
        triggers = [Match(kinds=tuple(kind.value for kind in Kind if kind is not Kind.END))]
        barriers = self._reader.table(self._layout.barriers, _TRIGGER, triggers)
        if barriers.num_rows > _FEW:
            return None
        ends = [Match(kinds=(*sorted(TERMINAL), _DELETED))]
        return barriers, self._reader.table(self._layout.checkpoints, CHECKPOINTS.names, ends)

    def newest_ended(self, known: Known, limit: int | None) -> set[int]:
        """The newest checkpoints with a terminal fact, at least so many if there are; or all."""
        ids = {*known.done, *known.aborted}
        wide, upto = limit or 0, known.upto
        while upto and (limit is None or len(ids) < limit):
            wide *= 2
            first = 1 if limit is None else max(1, upto - wide)
            only = [Match(first, upto, tuple(sorted(TERMINAL)))]
            columns = ("checkpoint_id", "kind")
            found = self._reader.table(self._layout.checkpoints, columns, only)
            ids.update(found["checkpoint_id"].to_pylist())
            upto = first - 1
        return ids

    def durations(self, ids: Collection[int]) -> list[int]:
        """How long completed checkpoints took, in ms."""
        rows = self._rows(ids, ("checkpoint_id", "kind", "duration_ms"), (_COMPLETED,))
        return [row["duration_ms"] or 0 for row in rows]

    def aborted(self, checkpoint_id: int) -> Fact | None:
        """The fact that a checkpoint was aborted; None if it was not, or is not yet."""
        columns = ("checkpoint_id", "kind", "reason", "request")
        rows = self._rows([checkpoint_id], columns, (_ABORTED,))
        by_code = {reason.code: reason for reason in FailureReason}
        facts = (
            Fact(checkpoint_id, FactKind.ABORTED, by_code.get(r["reason"]), r["request"] or "")
            for r in rows
        )
        return next(facts, None)

    def is_completed(self, checkpoint_id: int) -> bool:
        """Whether a manifest was committed."""
        return bool(self._rows([checkpoint_id], ("checkpoint_id", "kind"), (_COMPLETED,)))

    def answer(self, request: str) -> Answer | None:
        """What answers a request; None while nothing does."""
        only = [Match(equal=(("request", request),))]
        columns = ("checkpoint_id", "kind", "reason", "cause")
        rows = self._reader.table(self._layout.checkpoints, columns, only).to_pylist()
        answers = (Answer(r["kind"], r["checkpoint_id"], r["reason"], r["cause"]) for r in rows)
        return next(answers, None)

    def answered(self, requests: Collection[str]) -> frozenset[str]:
        """Those of these requests that have an answer."""
        only = [Match(equal=(("request", request),)) for request in requests]
        found = self._reader.table(self._layout.checkpoints, ("request",), only)
        return frozenset(found["request"].to_pylist())

    def completed_since(self, checkpoint_id: int) -> dict[int, int]:
        """The attempt of each completed checkpoint from this one on, deleted ones included."""
        only = [Match(checkpoint_id or None, None, (_COMPLETED,))]
        columns = ("checkpoint_id", "attempt", "kind")
        done = self._reader.table(self._layout.checkpoints, columns, only)
        ids, attempts = (done[name].to_pylist() for name in ("checkpoint_id", "attempt"))
        return dict(zip(ids, attempts, strict=True))

    def _rows(
        self, ids: Collection[int], columns: Sequence[str], kinds: tuple[str, ...]
    ) -> list[dict[str, Any]]:
        if not ids:
            return []
        only = [Match(first, last, kinds) for first, last in runs(ids)]
        found = self._reader.table(self._layout.checkpoints, columns, only)
        return list(found.filter(_among(found["checkpoint_id"], ids)).to_pylist())


def _with_ends(known: Known, facts: pa.Table) -> Known:
    done, aborted = (facts.filter(pc.equal(facts["kind"], k)) for k in (_COMPLETED, _ABORTED))
    return replace(known, done=_above(done, known.upto), aborted=_above(aborted, known.upto))


def _with_completions(
    known: Known, facts: pa.Table, attempt: int, named: Collection[int], since: int | None
) -> Known:
    done, gone_rows = (facts.filter(pc.equal(facts["kind"], k)) for k in (_COMPLETED, _DELETED))
    deleted = gone_rows["checkpoint_id"]
    found = _completions(done, deleted, attempt, named, since)
    completions = {**known.completions, **found}
    gone = set(_among_both(deleted, completions)) | known.deleted
    mattering = matter(completions.values(), gone, attempt, named, since)
    return replace(
        known,
        completions={n: c for n, c in completions.items() if n in mattering},
        deleted=frozenset(gone & mattering),
    )


def _completions(
    done: pa.Table,
    deleted: pa.ChunkedArray,
    attempt: int,
    named: Collection[int],
    since: int | None,
) -> dict[int, Completion]:
    """Those that may :func:`matter`: of many, few become records."""
    ids, bases = done["checkpoint_id"], done["derived_from"]
    own = pc.and_(pc.equal(done["attempt"], attempt), pc.is_null(bases))
    clock = pc.and_(own, pc.not_equal(pc.fill_null(done["type"], ""), Kind.SAVEPOINT.value))
    newest = pc.max(ids.filter(clock)).as_py() or 0
    newest = newest if since is None else min(newest, since)
    may = pc.invert(pc.is_in(ids, value_set=deleted.combine_chunks()))
    may = pc.or_(may, pc.and_(own, pc.greater_equal(ids, newest)))
    may = pc.or_(may, pc.is_valid(bases))
    may = pc.or_(may, _among(ids, {*named, *bases.drop_null().to_pylist()}))
    return {
        row["checkpoint_id"]: Completion(
            row["checkpoint_id"],
            row["attempt"],
            row["incarnation"] or 0,
            row["type"] == Kind.SAVEPOINT.value,
            row["derived_from"],
        )
        for row in done.filter(may).to_pylist()
    }


def _with_triggers(known: Known, barriers: pa.Table) -> Known:
    is_end = pc.equal(barriers["kind"], Kind.END.value)
    triggers = barriers.filter(pc.invert(is_end))
    ids = triggers["checkpoint_id"]
    ended = pa.array(known.done | known.aborted, pa.int64())
    pending = triggers.filter(pc.invert(pc.is_in(ids, value_set=ended))).to_pylist()
    ends = barriers.filter(is_end).select(["stage", "input"]).to_pylist()
    return replace(
        known,
        triggered=max(known.upto, pc.max(ids).as_py() or 0),
        pending=tuple(
            sorted(map(trigger_of, pending), key=lambda trigger: trigger.barrier.checkpoint_id)
        ),
        ends=frozenset((row["stage"], row["input"]) for row in ends),
    )


def _among(ids: pa.ChunkedArray, wanted: Collection[int]) -> pa.ChunkedArray:
    return pc.is_in(ids, value_set=pa.array(sorted(wanted), pa.int64()))


def _among_both(ids: pa.ChunkedArray, wanted: Mapping[int, Any]) -> list[int]:
    return list(pc.unique(ids.filter(_among(ids, wanted.keys()))).to_pylist())


def _above(facts: pa.Table, upto: int) -> frozenset[int]:
    ids = facts["checkpoint_id"]
    return frozenset(ids.filter(pc.greater(ids, upto)).to_pylist())
