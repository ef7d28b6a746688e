"""What a job has stored, gathered from its tables and directories with or without Spark.

Only facts, the logs of tables (which values their partition columns have) and the names in
directories are read, never the rows of a state history or a channel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from absflow.errors import NotFoundError
from absflow.facts import records
from absflow.facts.records import compacted_of, deleted_of
from absflow.facts.stages import Stages, stages_of, whose
from absflow.protocol.checkpoints import TERMINAL, AttemptFact, Kind, StageColumns
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

__all__ = ["JobInventory", "StorageReader", "gather"]

_WHOSE = ("attempt", "incarnation", "derived_from")
_FACTS = ("checkpoint_id", "kind", "type", *_WHOSE, "stage", "set_id", "replaces")
_STARTS = ("attempt", "incarnation", "kind", "details", "restored_from")
_TRIGGERS = ("checkpoint_id", "base_id", "kind")
Row = Mapping[str, Any]


class StorageReader(Protocol):
    """How a storage root is looked into."""

    def rows(
        self, table: str, columns: Sequence[str], only: tuple[str, Collection[int]] | None = None
    ) -> list[dict[str, Any]]:
        """Rows of a table; ``only`` those with one of these values in this column."""

    def values(self, table: str, column: str) -> frozenset[int]:
        """The values that a partition column has in a table."""

    def names(self, directory: str) -> list[str]:
        """The names in a directory; empty if there is none."""

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""


@dataclass(frozen=True, slots=True)
class JobInventory:
    """What there is, and where it lies.

    Attributes:
        inventory: for :func:`absflow.protocol.retention.plan.plan`.
        stages: the stages of every attempt.
        whose: by which description each completed checkpoint is to be read.
        sets: the sets in each table of state history, by stage and table.
    """

    inventory: Inventory
    stages: Stages
    whose: Mapping[int, tuple[int, int]]
    sets: Mapping[str, Mapping[str, frozenset[int]]]

    def columns(self, stage: str, checkpoint_id: int) -> StageColumns:
        """The stage as it was at a completed checkpoint."""
        return self.stages.by_attempt[self.whose[checkpoint_id]][stage]


def gather(reader: StorageReader, layout: Layout, sinks: Mapping[str, str]) -> JobInventory:
    """Look into the storage root of a job that may be running.

    Args:
        reader: how to look.
        layout: where things lie.
        sinks: the stage of each on-checkpoint sink of the job.

    Raises:
        NotFoundError: no attempt of a job was ever started there.
    """
    started = reader.rows(layout.attempts, _STARTS)
    attempts = _attempts(layout.root, started)
    current = attempts[-1]
    # Before the facts: what completes in between must be known, as pending or as completed.
    triggers = reader.rows(layout.barriers, _TRIGGERS, ("attempt", [current.attempt]))
    facts = reader.rows(layout.checkpoints, _FACTS)
    whole = {r["checkpoint_id"]: r for r in facts if r["kind"] == "COMPLETED"}
    done = {n: r["attempt"] for n, r in whole.items()}
    graph = next(json.loads(r["details"]) for r in started if _is_start_of(r, current.attempt))
    stages = stages_of(started)
    savepoints = frozenset(n for n, r in whole.items() if r["type"] == Kind.SAVEPOINT.value)
    origins = {a.attempt: _origin(layout.root, a) for a in attempts}
    written = records.written_savepoints(whole.values()).keys()
    own = {n for n, attempt in done.items() if attempt == current.attempt and n not in written}
    bases = [max(some) for some in (own, own - savepoints) if some]
    there = done.keys() - deleted_of(facts)
    manifests = _manifests(reader, layout, {*there, *bases, origins[current.attempt]} & {*done})
    sets = {
        stage: {table: reader.values(layout.state(table), "set_id") for table in sorted(tables)}
        for stage, tables in _tables(stages, reader.names(layout.states)).items()
    }
    inventory = Inventory(
        attempts=origins,
        ready=current.ready,
        completed=tuple(_completed(n, done[n], manifests.get(n, ())) for n in done),
        savepoints=savepoints,
        written=frozenset(written),
        deleted=deleted_of(facts),
        compacted=compacted_of(facts),
        **_under_way(triggers, facts),
        sets={stage: frozenset().union(*there.values()) for stage, there in sets.items()},
        channels=_channels(
            reader,
            layout,
            current.attempt,
            graph,
            # A written savepoint was taken in no batch.
            {n: manifest for n, manifest in manifests.items() if n in own},
        ),
        sinks=tuple(
            Sink(name, stage, _published(reader, layout, current.attempt, name, started, done))
            for name, stage in sinks.items()
        ),
        working=_attempts_in(reader.names(layout.works)),
        positions=_attempts_in(reader.names(layout.positions)),
    )
    return JobInventory(inventory, stages, {n: whose(r) for n, r in whole.items()}, sets)


def _attempts(root: str, started: Iterable[Row]) -> list[attempts.Attempt]:
    """The attempts by number; there is at least one."""
    attempts = records.attempts_of(started)
    if not attempts:
        raise NotFoundError(
            f"no attempt of a job was ever started under {root!r}, so whatever is there is what "
            "one will begin with; start the job first"
        )
    return attempts


def _is_start_of(row: Row, attempt: int) -> bool:
    return bool(row["kind"] == AttemptFact.STARTED and row["attempt"] == attempt)


def _origin(root: str, attempt: attempts.Attempt) -> int:
    """What an attempt was restored from; 0 if that lies under another root."""
    origin = attempt.origin
    return origin.checkpoint_id if origin and _plain(origin.root) == _plain(root) else 0


def _plain(root: str) -> str:
    return re.sub("^file:/+", "/", root)


def _under_way(triggers: Iterable[Row], facts: Iterable[Row]) -> dict[str, Any]:
    """What is pending, and the newest id that has ended among those known then."""
    ends = {r["checkpoint_id"] for r in facts if r["kind"] in TERMINAL}
    triggers = [r for r in triggers if r["kind"] != Kind.END.value]
    known = max((r["checkpoint_id"] for r in triggers), default=0)
    pending = (
        Pending(r["checkpoint_id"], r["base_id"])
        for r in triggers
        if r["checkpoint_id"] not in ends
    )
    # Of what is newer it is not known whether something is pending below it.
    return {"pending": tuple(pending), "ended_id": min(known, max(ends, default=0))}


def _manifests(
    reader: StorageReader, layout: Layout, wanted: Collection[int]
) -> dict[int, list[Row]]:
    """The manifests that may be needed: of what is there, and of what the job goes on from."""
    rows = reader.rows(
        layout.checkpoints, ("checkpoint_id", "kind", "stages"), ("checkpoint_id", wanted)
    )
    return {r["checkpoint_id"]: r["stages"] for r in rows if r["kind"] == "COMPLETED"}


def _completed(checkpoint_id: int, attempt: int, manifest: Sequence[Row]) -> Completed:
    return Completed(checkpoint_id, attempt, _lineages(manifest), _in_flight(manifest))


def _lineages(manifest: Iterable[Row]) -> dict[str, tuple[int, ...]]:
    return {stage["stage"]: tuple(stage["lineage"]) for stage in manifest}


def _in_flight(manifest: Iterable[Row]) -> tuple[InFlight, ...]:
    return tuple(
        InFlight(state["input"], state["attempt"], state["epoch"])
        for stage in manifest
        for state in stage["in_flight"] or []
    )


def _tables(stages: Stages, there: Collection[str]) -> dict[str, set[str]]:
    """The tables of state history that each stage has written, of those that are there."""
    tables: dict[str, set[str]] = {}
    for attempt in stages.by_attempt.values():
        for stage, columns in attempt.items():
            if columns.key and columns.table in there:
                tables.setdefault(stage, set()).add(columns.table)
    return tables


def _channels(
    reader: StorageReader,
    layout: Layout,
    current: int,
    graph: Mapping[str, Any],
    manifests: Mapping[int, Iterable[Row]],
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
    manifests: Mapping[int, Iterable[Row]],
) -> int:
    """The newest checkpoint that all ``takers`` have snapshotted in batches that are committed.

    Every row of an epoch <= n has been read by then, unless n has overtaken the channel.
    """
    upto = 0
    for n, manifest in manifests.items():
        batches = {s["stage"]: s["batch_id"] for s in manifest}
        overtaken = any(rows.stage == channel for rows in _in_flight(manifest))
        done = (committed[t] >= batches.get(t, committed[t] + 1) for t in takers)
        if not overtaken and all(done):
            upto = max(upto, n)
    return upto


def _committed(reader: StorageReader, layout: Layout, stage: str, attempt: int) -> int:
    """The newest batch in Spark's commit log; -1 if there is none."""
    names = reader.names(f"{layout.spark_checkpoint(stage, attempt)}/commits")
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _published(
    reader: StorageReader,
    layout: Layout,
    current: int,
    sink: str,
    started: Iterable[Row],
    done: Mapping[int, int],
) -> dict[int, int]:
    """What a sink holds: the newest checkpoint, by its attempt."""
    noted = reader.read(layout.published(sink, current))
    begun = (
        json.loads(r["details"])["published"].get(sink)
        for r in started
        if r["kind"] == AttemptFact.READY and r["attempt"] == current
    )
    newest = int(next(begun, None) or 0) if noted is None else int(noted)
    return {done[newest]: newest} if newest in done else {}


def _attempts_in(names: Iterable[str]) -> frozenset[int]:
    return frozenset(int(name[8:]) for name in names if re.fullmatch(r"attempt=\d+", name))
