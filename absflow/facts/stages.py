"""What may be asked of a job's history, and what is said when it is not there.

Whoever reads the tables of a job, with Spark or without, asks here first, so that both know the
same stages and columns and refuse in the same words.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from absflow.errors import NotFoundError
from absflow.facts.records import AttemptRecord, sentence_of
from absflow.protocol.checkpoints import AttemptFact, StageColumns
from absflow.protocol.known import Completion
from absflow.protocol.recovery.savepoint_writer import NO_ATTEMPT

__all__ = [
    "Stages",
    "check_columns",
    "check_key",
    "find_stage",
    "no_stage_in_checkpoint",
    "sentence_of",
    "stages_of",
    "whose_completed",
]

# An attempt and 0, or NO_ATTEMPT and the incarnation that wrote a savepoint.
Whose = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a job, as each of its attempts had them, and each written savepoint.

    Attributes:
        by_attempt: the stages by name; what is to be believed goes behind what is not.
    """

    by_attempt: Mapping[Whose, Mapping[str, StageColumns]]

    @property
    def newest(self) -> dict[str, StageColumns]:
        """Every stage that there ever was; it is what the newest attempt that has it says."""
        return {name: s for stages in self.by_attempt.values() for name, s in stages.items()}

    def at(self, columns: StageColumns, taken_by: Whose) -> StageColumns:
        """The stage as a checkpoint has it; as it is now if there was none of this name."""
        return self.by_attempt.get(taken_by, {}).get(columns.stage, columns)

    def before(self, columns: StageColumns) -> list[StageColumns]:
        """The stage as it is in each of its other tables; the one that counts most comes last."""
        found = (stages.get(columns.stage, columns) for stages in self.by_attempt.values())
        return list({each.table: each for each in found if each.table != columns.table}.values())

    def key_groups(self, columns: StageColumns) -> int:
        """How many key groups the rows of its table are of; 0 if of several numbers, or unknown."""
        mine = [stages.get(columns.stage, columns) for stages in self.by_attempt.values()]
        counts = {each.key_groups for each in mine if each.table == columns.table}
        return counts.pop() if len(counts) == 1 else 0

    def elsewhere(self, columns: StageColumns, tables: Collection[str]) -> list[Whose]:
        """Those whose state of the stage lies in none of these tables."""
        return [n for n in self.by_attempt if self.at(columns, n).table not in tables]


def whose_completed(completion: Completion) -> Whose:
    """Whose description of the stages holds for a completed checkpoint."""
    if completion.derived_from is None:
        return completion.attempt, 0
    return NO_ATTEMPT, completion.incarnation


def stages_of(records: Iterable[AttemptRecord]) -> Stages:
    """The stages of a job.

    Args:
        records: of ``attempts``, in any order; STARTED, READY and WRITTEN ones count.

    >>> text = '{"legs": {"key": [["tailnum", "string"]], "state": [], "table": "legs.2"}}'
    >>> stages_of([AttemptRecord(2, 5, AttemptFact.STARTED, text=text)]).newest
    {'legs': StageColumns(stage='legs', key=('tailnum',), state=(), table='legs.2', key_groups=0)}
    """
    records = list(records)
    ready = {record.attempt for record in records if record.kind is AttemptFact.READY}
    # What an attempt says of a stage goes before what a written savepoint says, and both before an
    # attempt that was never ready, for that has written nothing: its restore may have failed.
    described = [
        (
            record.attempt in ready,
            (record.attempt, 0 if record.kind is AttemptFact.STARTED else record.incarnation),
            record.text or "{}",
        )
        for record in records
        if record.kind in {AttemptFact.STARTED, AttemptFact.WRITTEN}
    ]
    return Stages(
        {
            taken_by: {
                name: StageColumns(
                    name,
                    tuple(column for column, _ in described["key"]),
                    tuple(column for column, _ in described["state"]),
                    described["table"],
                    described.get("key-groups", 0),
                )
                for name, described in json.loads(text).items()
            }
            for _, taken_by, text in sorted(described)
        }
    )


def find_stage(stages: Mapping[str, StageColumns], name: str) -> StageColumns:
    """The columns of the stage ``name``.

    Raises:
        NotFoundError: there is no such stage, or it keeps no state.
    """
    if name not in stages:
        raise NotFoundError(f"there is no stage {name!r}; the job has {_names(stages)}")
    if not stages[name].key:
        stateful = [stage.stage for stage in stages.values() if stage.key]
        raise NotFoundError(
            f"stage {name!r} forwards a source and keeps no state; those that do are "
            f"{_names(stateful)}"
        )
    return stages[name]


def check_columns(columns: StageColumns, asked: Collection[str]) -> None:
    """Refuse names that are not columns of the stage's state.

    Raises:
        NotFoundError: naming what is unknown.
    """
    unknown = [name for name in asked if name not in {*columns.key, *columns.state}]
    if unknown:
        raise NotFoundError(
            f"stage {columns.stage!r} has no column {_names(unknown)}; it has the key columns "
            f"{_names(columns.key)} and the state columns {_names(columns.state)}"
        )


def check_key(columns: StageColumns, asked: Collection[str]) -> None:
    """Refuse names that are not the key columns of the stage.

    Args:
        columns: the stage.
        asked: the names given.

    Raises:
        NotFoundError: naming what is unknown or missing.
    """
    has = f"stage {columns.stage!r} has the key columns {_names(columns.key)}"
    unknown = [name for name in asked if name not in columns.key]
    if unknown:
        raise NotFoundError(
            f"{_names(unknown)} is no key column; {has}; a key is a value for each, as "
            f"{{{columns.key[0]!r}: ...}}, and --key {columns.key[0]}=... on the command line"
        )
    missing = [name for name in columns.key if name not in asked]
    if missing:
        raise NotFoundError(f"the key lacks {_names(missing)}; {has}; a null is given as None")


def no_stage_in_checkpoint(stage: str, checkpoint_id: int, has: Iterable[str]) -> NotFoundError:
    """The error for a stage of the job that a completed checkpoint does not hold."""
    return NotFoundError(
        f"checkpoint {checkpoint_id} holds nothing of stage {stage!r}; it has {_names(has)}"
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
