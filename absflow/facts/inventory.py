"""What a job has stored, gathered from its tables and directories with or without Spark.

Only facts, the logs of tables (which values their partition columns have) and the names in
directories are read, never the rows of a state history or a channel.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from absflow.errors import NotFoundError
from absflow.facts.attempts import noted_by, plain_root, read_attempts
from absflow.facts.reading import FactReader, StorageReader
from absflow.facts.records import AttemptRecord, Ready, attempts_of, details_of, ready_of
from absflow.facts.stages import Stages, stages_of, whose_completed
from absflow.protocol.checkpoints import AttemptFact, SetDigest, StageColumns, StageManifest
from absflow.protocol.known import Known, summarise
from absflow.protocol.lineage import Compacted
from absflow.protocol.recovery import attempts
from absflow.protocol.retention.inventory import (
    Channel,
    Completed,
    InFlight,
    Inventory,
    Pending,
    Sink,
)
from absflow.storage.layout import Layout

__all__ = ["JobInventory", "gather", "of_facts"]

_Stages = Sequence[StageManifest]


@dataclass(frozen=True, slots=True)
class JobInventory:
    """What there is, and where it lies.

    Attributes:
        inventory: for :func:`absflow.protocol.retention.plan.plan`.
        stages: the stages of every attempt.
        whose: by which description each completed checkpoint is to be read.
        sets: the sets in each table of state history, by stage and table, and their rows.
        known: the facts that it rests on.
        digests: of the sets that retained checkpoints name, by stage and set, as far as known.
    """

    inventory: Inventory
    stages: Stages
    whose: Mapping[int, tuple[int, int]]
    sets: Mapping[str, Mapping[str, Mapping[int, int]]]
    known: Known
    digests: Mapping[tuple[str, int], SetDigest] = field(default_factory=dict)

    @property
    def summary(self) -> Known:
        """What the facts come to."""
        there = self.inventory
        lineages = {c.checkpoint_id: c.lineages for c in there.completed}
        named = {*there.attempts.values()}
        return summarise(self.known, lineages, there.compacted, there.attempt, named)

    def columns(self, stage: str, checkpoint_id: int) -> StageColumns:
        """The stage as it was at a completed checkpoint."""
        return self.stages.by_attempt[self.whose[checkpoint_id]][stage]


def gather(
    reader: StorageReader,
    layout: Layout,
    sinks: Mapping[str, str],
    asked: Collection[int] = (),
) -> JobInventory:
    """Look into the storage root of a job that may be running.

    Args:
        reader: how to look.
        layout: where things lie.
        sinks: the stage of each on-checkpoint sink of the job.
        asked: checkpoints that somebody asks about, whatever has become of them.

    Raises:
        NotFoundError: no attempt of a job was ever started there.
    """
    started = read_attempts(reader, layout)
    attempts = _attempts(layout.root, started)
    current = attempts[-1].attempt
    origins = {a.attempt: _origin(layout.root, a) for a in attempts}
    facts = FactReader(reader, layout)
    ready = ready_of(started, current)
    held = noted_by(reader, layout, current, sinks, ready or Ready())
    named = {*origins.values(), *asked, *held.values()} - {0}
    known = facts.known(attempt=current, named=named)
    graph = details_of(started, current, AttemptFact.STARTED) or {}
    stages = stages_of(started)
    own = _own(known, current)
    manifests = facts.stages({*known.there, *own, *{origins[current]} & known.completions.keys()})
    sets = {
        stage: {table: reader.sets(layout.state(table)) for table in sorted(tables)}
        for stage, tables in _tables(stages, reader.names(layout.states)).items()
    }
    rows = {stage: _together(by_table.values()) for stage, by_table in sets.items()}
    done = known.attempts
    inventory = Inventory(
        attempts=origins,
        ready=attempts[-1].ready,
        **of_facts(known, manifests, current),
        compacted=facts.compacted(
            each for manifest in manifests.values() for each in _lineages(manifest).items()
        ),
        sets={stage: frozenset(counted) for stage, counted in rows.items()},
        rows=rows,
        channels=_channels(
            reader, layout, current, graph, {n: manifests[n] for n in own & manifests.keys()}
        ),
        sinks=tuple(
            Sink(name, stage, {done[held[name]]: held[name]} if held.get(name) in done else {})
            for name, stage in sinks.items()
        ),
        working=_attempts_in(reader.names(layout.works)),
        positions=_attempts_in(reader.names(layout.positions)),
    )
    taken_by = {n: whose_completed(c) for n, c in known.completions.items()}
    digests = _digests(manifests, inventory.compacted)
    return JobInventory(inventory, stages, taken_by, sets, known, digests)


def _digests(
    manifests: Mapping[int, _Stages], compacted: Iterable[Compacted]
) -> dict[tuple[str, int], SetDigest]:
    found = {(c.stage, c.set_id): c.digest for c in compacted if c.digest is not None}
    for stage in itertools.chain.from_iterable(manifests.values()):
        for digest in stage.sets:
            found[stage.report.stage, digest.set_id] = digest
    return found


def of_facts(known: Known, manifests: Mapping[int, _Stages], current: int) -> dict[str, Any]:
    """What facts say in an inventory.

    Args:
        known: the facts.
        manifests: the stages in the manifests that may be needed.
        current: the current attempt.
    """
    return {
        "completed": tuple(
            _completed(n, c.attempt, manifests.get(n, ()))
            for n, c in sorted(known.completions.items())
        ),
        "savepoints": frozenset(n for n, c in known.completions.items() if c.savepoint),
        "written": frozenset(known.written),
        "deleted": known.deleted,
        "pending": tuple(
            Pending(t.barrier.checkpoint_id, t.barrier.base_id)
            for t in known.pending
            if t.attempt == current
        ),
        # Of what is newer it is not known whether something is pending below it.
        "ended_id": min(known.triggered, known.ended_id),
    }


def _own(known: Known, current: int) -> set[int]:
    """What the current attempt has taken, of that which matters: written savepoints are not."""
    taken = (c for c in known.completions.values() if c.derived_from is None)
    return {c.checkpoint_id for c in taken if c.attempt == current}


def _attempts(root: str, started: Iterable[AttemptRecord]) -> list[attempts.Attempt]:
    """The attempts by number, up to the current one.

    Later ones are restores that failed: what they have left is nobody's.
    """
    known = attempts_of(started)
    current = attempts.current(known)
    if current is None:
        raise NotFoundError(
            f"no attempt of a job was ever started under {root!r}, so whatever is there is what "
            "one will begin with; start the job first"
        )
    return [a for a in known if a.attempt <= current.attempt]


def _origin(root: str, attempt: attempts.Attempt) -> int:
    """What an attempt was restored from; 0 if that lies under another root."""
    origin = attempt.origin
    return origin.checkpoint_id if origin and plain_root(origin.root) == plain_root(root) else 0


def _completed(checkpoint_id: int, attempt: int, manifest: _Stages) -> Completed:
    keys = {stage.report.stage: stage.report.keys_total for stage in manifest}
    return Completed(checkpoint_id, attempt, _lineages(manifest), _in_flight(manifest), keys)


def _lineages(manifest: _Stages) -> dict[str, tuple[int, ...]]:
    return {stage.report.stage: stage.lineage for stage in manifest}


def _in_flight(manifest: _Stages) -> tuple[InFlight, ...]:
    return tuple(
        InFlight(state.input, state.attempt, state.epoch)
        for stage in manifest
        for state in stage.in_flight
    )


def _tables(stages: Stages, there: Collection[str]) -> dict[str, set[str]]:
    """The tables of state history that each stage has written, of those that are there."""
    tables: dict[str, set[str]] = {}
    for attempt in stages.by_attempt.values():
        for stage, columns in attempt.items():
            if columns.key and columns.table in there:
                tables.setdefault(stage, set()).add(columns.table)
    return tables


def _together(by_table: Iterable[Mapping[int, int]]) -> dict[int, int]:
    return {set_id: rows for there in by_table for set_id, rows in there.items()}


def _channels(
    reader: StorageReader,
    layout: Layout,
    current: int,
    graph: Mapping[str, Any],
    manifests: Mapping[int, _Stages],
) -> tuple[Channel, ...]:
    """Every channel; the epochs of the current attempt's only, the others go as a whole.

    ``manifests`` are those of the current attempt: another one's batches have other numbers.
    """
    committed = {
        stage: _committed(reader, layout, _first_of_chain(graph, stage), current) for stage in graph
    }
    found = []
    for stage in reader.names(layout.channels):
        for attempt in sorted(_attempts_in(reader.names(f"{layout.channels}/{stage}"))):
            if attempt != current or stage not in graph:
                found.append(Channel(stage, attempt))
                continue
            takers = [stage, *(n for n, d in graph.items() if _reads(d, stage))]
            epochs = reader.values(layout.channel(stage, attempt), "_epoch")
            upto = _behind(stage, takers, committed, manifests)
            found.append(Channel(stage, attempt, epochs, upto))
    return tuple(found)


def _first_of_chain(graph: Mapping[str, Any], stage: str) -> str:
    """The stage whose name Spark's checkpoint of a stage's query has.

    A stage that has a reader and no channel is in its reader's query.
    """
    inputs = graph[stage]["inputs"]
    direct = [name for name, _, root, _ in inputs if not (root or graph[name]["channel"])]
    return _first_of_chain(graph, direct[0]) if direct else stage


def _reads(described: Mapping[str, Any], channel: str) -> bool:
    return any(name == channel and not root for name, _, root, _ in described["inputs"])


def _behind(
    channel: str,
    takers: Collection[str],
    committed: Mapping[str, int],
    manifests: Mapping[int, _Stages],
) -> int:
    """The newest checkpoint that all ``takers`` have snapshotted in batches that are committed.

    Every row of an epoch <= n has been read by then, unless n has overtaken the channel.
    """
    upto = 0
    for n, manifest in manifests.items():
        batches = {s.report.stage: s.report.batch_id for s in manifest}
        overtaken = any(rows.stage == channel for rows in _in_flight(manifest))
        done = (committed[t] >= batches.get(t, committed[t] + 1) for t in takers)
        if not overtaken and all(done):
            upto = max(upto, n)
    return upto


def _committed(reader: StorageReader, layout: Layout, stage: str, attempt: int) -> int:
    """The newest batch in Spark's commit log; -1 if there is none."""
    names = reader.names(f"{layout.spark_checkpoint(stage, attempt)}/commits")
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _attempts_in(names: Iterable[str]) -> frozenset[int]:
    return frozenset(int(name[8:]) for name in names if re.fullmatch(r"attempt=\d+", name))
