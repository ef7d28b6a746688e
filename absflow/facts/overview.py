"""All checkpoints of a job as tables for people, made without a job of Spark.

They have the columns and values of the SELECTs in :mod:`absflow.storage.history_sql`, over facts
that somebody has read already: beside a job that keeps every core busy, each of the jobs that Spark
runs for such a SELECT waits for one.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from absflow.facts.columns import CHECKPOINTS
from absflow.protocol.checkpoints import TERMINAL, FactKind, FailureReason, Kind, Status
from absflow.protocol.recovery.branch import Branch

__all__ = ["checkpoint_rows", "stage_rows"]

_COLUMNS = (
    *("checkpoint_id", "type", "status", "abandoned", "reason", "sentence", "cause", "attempt"),
    *("base_id", "triggered_at", "ended_at", "duration_ms", "stages", "fingerprint", "versions"),
)
_SENTENCES = {reason.code: reason.sentence for reason in FailureReason}


def checkpoint_rows(barriers: pa.Table, facts: pa.Table, branch: Branch, *, lost: bool) -> pa.Table:
    """One row per triggered checkpoint, by id.

    Args:
        barriers: all triggers; read before ``facts``, so that what completed in between is not
            pending.
        facts: all terminal facts, and what was deleted.
        branch: of the job; what lies beside it is abandoned.
        lost: the driver is no more, and what is pending will not complete.
    """
    facts = _with_all_columns(facts)
    ended = facts.filter(_among(facts["kind"], TERMINAL))
    parts = [_pending(barriers, ended, branch, lost=lost), _ended(ended, _deleted(facts), branch)]
    return pa.concat_tables(_selected(part, facts.schema) for part in parts).sort_by(
        "checkpoint_id"
    )


def stage_rows(facts: pa.Table) -> pa.Table:
    """One row per stage of each completed checkpoint that is there, by id and name.

    Args:
        facts: as of :func:`checkpoint_rows`.
    """
    facts = _with_all_columns(facts)
    gone = _among(facts["checkpoint_id"], _deleted(facts))
    done = pc.equal(facts["kind"], FactKind.COMPLETED.value)
    rows = facts.filter(pc.and_(done, pc.invert(gone))).combine_chunks()
    stages = rows["stages"].combine_chunks()
    of_row, elements = pc.list_parent_indices(stages), pc.list_flatten(stages)
    fields = dict(zip(elements.type.names, elements.flatten(), strict=True))
    columns = {name: rows[name].take(of_row) for name in ("checkpoint_id", "triggered_at")}
    columns["snapshot_id"] = fields.pop("checkpoint_id")
    return pa.table(columns | fields).sort_by(
        [("checkpoint_id", "ascending"), ("stage", "ascending")]
    )


def _pending(barriers: pa.Table, ended: pa.Table, branch: Branch, *, lost: bool) -> pa.Table:
    rows = barriers.filter(
        pc.invert(_among(barriers["checkpoint_id"], ended["checkpoint_id"].to_pylist()))
    )
    reason = FailureReason.DRIVER_RESTART.code if lost else None
    status = Status.ABORTED if lost else Status.PENDING
    return _with(
        rows,
        type=rows["kind"],
        status=_same(status.value, rows),
        abandoned=_abandoned(rows, branch),
        reason=_same(reason, rows),
    )


def _ended(ended: pa.Table, deleted: Collection[int], branch: Branch) -> pa.Table:
    gone = _among(ended["checkpoint_id"], deleted)
    taken = pc.is_null(ended["derived_from"])  # what was written is no moment of the job
    stages = ended["stages"]
    return _with(
        ended,
        type=pc.fill_null(ended["type"], Kind.CHECKPOINT.value),
        status=pc.if_else(gone, Status.DELETED.value, ended["kind"]),
        abandoned=pc.and_(taken, _abandoned(ended, branch)),
        stages=pc.if_else(gone, pa.scalar(None, stages.type), stages),
    )


def _with(rows: pa.Table, **columns: pa.ChunkedArray) -> pa.Table:
    """The rows with other columns, or others in the place of theirs."""
    return pa.table({name: rows[name] for name in rows.column_names} | columns)


def _selected(rows: pa.Table, facts: pa.Schema) -> pa.Table:
    """The columns that people see, with the types that they have in the table of facts."""
    sentences = [_SENTENCES.get(code) for code in rows["reason"].to_pylist()]
    rows = _with(rows, sentence=pa.array(sentences, pa.string()))
    columns = []
    for name in _COLUMNS:
        type_ = facts.field(name).type if name in facts.names else rows[name].type
        there = name in rows.column_names
        columns.append(rows[name].cast(type_) if there else pa.nulls(rows.num_rows, type_))
    return pa.table(columns, names=list(_COLUMNS))


def _with_all_columns(facts: pa.Table) -> pa.Table:
    """With nulls in columns that a table of an earlier version does not have."""
    for field in CHECKPOINTS:
        if field.name not in facts.column_names:
            facts = facts.append_column(field, pa.nulls(facts.num_rows, field.type))
    return facts


def _abandoned(rows: pa.Table, branch: Branch) -> pa.Array:
    """Whether an attempt's checkpoint lies beside the branch; a later attempt is on it."""
    newest = branch.parts[0][0] if branch.parts else 0
    pairs = zip(rows["attempt"].to_pylist(), rows["checkpoint_id"].to_pylist(), strict=True)
    return pa.array([at <= newest and not branch.holds(at, n) for at, n in pairs], pa.bool_())


def _deleted(facts: pa.Table) -> list[int]:
    gone = facts.filter(pc.equal(facts["kind"], FactKind.DELETED.value))
    return list(gone["checkpoint_id"].to_pylist())


def _among(values: pa.ChunkedArray, wanted: Collection[object]) -> pa.ChunkedArray:
    return pc.is_in(values, value_set=pa.array(list(wanted), values.type))


def _same(value: str | None, rows: pa.Table) -> pa.Array:
    return pa.array([value] * rows.num_rows, pa.string())
