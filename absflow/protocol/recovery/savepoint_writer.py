"""A savepoint that a person writes from tables of state: what it holds, and whose it is.

Rules of this file: plain functions over facts and descriptions.

A written savepoint is its *base* (a completed checkpoint, or nothing) with the state of some stages
replaced. Each of these is one full set under the savepoint's own id; the others keep the sets of
the base, so nothing is copied. Positions and sinks are those of the base's cut, for no row was read
or written since. Without a base positions may be given: where another program stood whose state it
is. (Flink: State Processor API, ``SavepointWriter``.)

The order of the writes, and what a kill between two of them leaves behind:

1. a WRITTEN fact in ``attempts`` claims the storage root for this driver and describes the stages
   as the savepoint holds them; if there is no base, a READY fact says where the sinks stand;
2. a trigger of no attempt reserves the id: nobody else will write a set under it. Without what
   follows it is a trigger whose driver died, and the next driver aborts it;
3. a set for each stage that is replaced; orphans, until
4. the COMPLETED fact.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from absflow.protocol.checkpoints import (
    Kind,
    Manifest,
    SetDigest,
    StageManifest,
    StageReport,
)

__all__ = ["NO_ATTEMPT", "WrittenSavepoint", "compose", "cut_of", "describe", "table_for"]

# The attempt in the WRITTEN fact, and in the trigger: nobody's.
NO_ATTEMPT = 0
# A stage, or a whole graph, as :func:`absflow.graph.description.describe` says it.
_Described = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WrittenSavepoint:
    """How a savepoint was written.

    Attributes:
        base: the checkpoint that it was made from; 0 if it was made from nothing.
        incarnation: the driver that wrote it.
    """

    base: int
    incarnation: int


def cut_of(checkpoint_id: int, written: Mapping[int, WrittenSavepoint]) -> int:
    """The checkpoint whose positions and sinks a checkpoint has; 0 if it has none.

    >>> cut_of(9, {8: WrittenSavepoint(7, 2), 9: WrittenSavepoint(8, 3)})
    7
    """
    while checkpoint_id in written:
        checkpoint_id = written[checkpoint_id].base
    return checkpoint_id


def compose(
    savepoint_id: int,
    now_ms: int,
    base: Manifest | None,
    keys: Mapping[str, int],
    digests: Mapping[str, SetDigest],
    positions: Mapping[str, Mapping[str, str]] | None = None,
) -> Manifest:
    """The manifest of a savepoint.

    Args:
        savepoint_id: its id.
        now_ms: the clock.
        base: what it is made from.
        keys: how many keys each stage has whose state is given, by its name in the savepoint.
        digests: of the set of each of these that has keys.
        positions: where the sources of each stage go on, if it is made from nothing.
    """
    stages = {s.report.stage: s for s in base.stages} if base else {}
    for name, count in keys.items():
        before = stages.get(name)
        report = StageReport(name, savepoint_id, 0, rows_changed=count, keys_total=count)
        if before is not None:
            report = replace(
                report, batch_id=before.report.batch_id, positions=before.report.positions
            )
        elif positions:
            report = replace(report, positions=positions.get(name, {}))
        in_flight = before.in_flight if before else ()
        sets = (digests[name],) if name in digests else ()
        lineage = (savepoint_id,) if count else ()
        stages[name] = StageManifest(report, lineage, in_flight, sets=sets)
    return Manifest(
        savepoint_id,
        0,
        now_ms,
        tuple(stages.values()),
        Kind.SAVEPOINT,
        derived_from=base.checkpoint_id if base else 0,
    )


def describe(
    base: _Described, given: _Described, tables: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """The stages as a savepoint holds them.

    Args:
        base: the stages of what it is made from; empty for nothing.
        given: those of the job whose state is given, by their names in the savepoint.
        tables: name of the state history of each.
    """
    stages = {name: dict(stage) for name, stage in base.items()}
    for name, own in given.items():
        # What it has read is what its positions are of; a stage that is new has none.
        before = base.get(name, {**own, "inputs": []})
        form = {part: own[part] for part in ("key", "state", "key-groups")}
        stages[name] = {**before, **form, "table": tables[name]}
    return stages


def table_for(
    stage: str, own: Mapping[str, Any], known: Collection[_Described], savepoint_id: int
) -> str:
    """The state history for the given state of a stage: one with the same columns, or a new one.

    Args:
        stage: its name in the savepoint.
        own: what it is now.
        known: every description under the storage root, the one to be preferred first.
        savepoint_id: the savepoint's id.
    """
    form = ("key", "state")
    for stages in known:
        there = stages.get(stage)
        if there is not None and all(there[part] == own[part] for part in form):
            return str(there["table"])
    used = {there["table"] for stages in known for there in stages.values()}
    return stage if stage not in used else f"{stage}.s{savepoint_id}"
